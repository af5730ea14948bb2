"""Four laws of launch files, over our own inputs and over a folder of public ones.

(a) A launch that is read, written and read again means the same.
(b) After a fix every option is there, decides the same under another name, or is named with the
    reason: among what is left, or by the finding that was fixed.
(c) A fixed file parses if it did before: ``bash -n`` and shellcheck, YAML and accelerate's own
    loader, the parser of ``docker build`` (of BuildKit, as the package ``dockerfile`` has it).
(d) A launch has the same findings typed and in a file.

``CPUTUNE_LAUNCH_FILES=FOLDER pytest -m matrix tests/launch/test_laws.py`` takes every file of a
folder, and those of ours that are like others; ``sources.txt`` lists the public ones.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from rows import like_others
from stacks import TODAY, machine

from cputune import UsageError
from cputune.doctor.checkfile import FixedFile, check_file, fix_file, is_yaml
from cputune.doctor.files.context import Context
from cputune.doctor.files.judge import judge_launches
from cputune.host import Host
from cputune.launch.launch import Launch
from cputune.launch.option import Given
from cputune.launch.shell import read_shell, read_words
from cputune.launch.target import target_of
from cputune.launch.write import line_of, quoted

HERE = Path(__file__).parent
FACTS = machine(TODAY, cores=16)
FOLDERS = [HERE / "files", HERE.parent / "doctor" / "guides"]
if os.environ.get("CPUTUNE_LAUNCH_FILES"):
    FOLDERS.append(Path(os.environ["CPUTUNE_LAUNCH_FILES"]))
FILES = [path for folder in FOLDERS for path in sorted(folder.rglob("*")) if path.is_file()]
KINDS = (
    *("Dockerfile", "accelerate.yaml", "arrays.sh", "deepspeed.sh", "job.pbs", "mixed.sh"),
    *("pytorchjob.yaml", "run_cpu.sh", "slurm.sbatch", "two_machines.sh", "workers.yaml"),
)
"""Files that differ in kind. The others, and those of a folder that is named, are like these."""
USUAL = [path for path in FILES if path.name in KINDS]
OTHERS = [path for path in FILES if path.name not in KINDS]


def shell_of(launch: Launch) -> str:
    """The launch as a script: what it unsets and exports, and its line."""
    on_line = {word.partition("=")[0] for word in launch.words}
    lines = [f'unset "${{!{name[:-1]}@}}"' for name in sorted(launch.removed) if name[-1:] == "*"]
    lines += [f"unset {name}" for name in sorted(launch.removed) if re.fullmatch(r"\w+", name)]
    for name, value in sorted(launch.environment.items()):
        if name not in on_line:
            lines.append(f"export {name}={quoted(value)}")
    return "\n".join([*lines, line_of(launch.words), ""])


def text_of(path: Path) -> str:
    return path.read_bytes().decode(errors="replace")


def is_shell(path: Path, text: str) -> bool:
    return not is_yaml(text, path.name) and "ockerfile" not in path.name


def launches_of(path: Path) -> tuple[Launch, ...]:
    text = text_of(path)
    if not is_shell(path, text):
        pytest.skip("no script")
    try:
        return read_shell(text, path.name, target_of(text).variables).launches
    except UsageError:
        pytest.skip("not read: a quote is open")


@pytest.fixture(scope="module", params=[*USUAL, *like_others(OTHERS)], ids=lambda path: path.name)
def path(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


@pytest.fixture(scope="module")
def fixed(path: Path) -> FixedFile:
    try:
        return fix_file(text_of(path), path.name, FACTS)
    except UsageError:
        pytest.skip("nothing that is judged")


def meaning(launch: Launch) -> tuple[object, ...]:
    return (
        launch.launcher,
        [(one.name, one.value) for one in launch.given],
        launch.argv,
        launch.module,
        launch.before,
        launch.environment,
        launch.part,
    )


def test_a_launch_is_read_as_it_was_written(path: Path) -> None:
    for launch in launches_of(path):
        if any(
            re.search(r"\$[^A-Za-z_{@?]|\$\?|\$\{[^}]*[^\w}]|\$$|`|\n", w) for w in launch.words
        ):
            continue  # what only running shows
        (again,) = read_shell(shell_of(launch), "again.sh").launches
        assert meaning(again)[:5] == meaning(launch)[:5]
        known = {k: v for k, v in launch.environment.items() if "$" not in v}
        assert known.items() <= {**again.environment}.items()


def options_of(launch: Launch) -> list[Given]:
    """The options of launcher and script, each as it is written."""
    arguments = [
        Given(words=(word,)) for word in launch.arguments if re.match(r"--?[A-Za-z]", word)
    ]
    return [*launch.given, *arguments]


ALONE = ("ranks", "ranks per node", "nodes", "module")


def test_no_option_is_lost_unseen(path: Path, fixed: FixedFile) -> None:
    text = text_of(path)
    if fixed.text == text or not is_shell(path, text):
        pytest.skip("nothing was changed")
    before, after = launches_of(path), read_shell(fixed.text, path.name).launches
    assert len(before) == len(after)
    named = " ".join(
        f"{one.evidence} {' '.join(one.dropped)}" for one in (*fixed.unfixed, *fixed.fixed)
    )
    for old, new in zip(before, after, strict=True):
        kept = {one.name for one in options_of(new)}
        means = {one.option.means for one in new.given if one.option and one.option.means}
        for one in options_of(old):
            said = one.option.means if one.option else ""
            spellings = {one.name, one.name.replace("_", "-"), re.sub(r"(?<=\w)-", "_", one.name)}
            if one.name in kept or any(name in named for name in spellings) or said in means:
                continue
            if said in ALONE and new.launcher in ("python", "torchrun", "mpirun"):
                assert (old.ranks or 1, old.machines) == (new.ranks or 1, new.machines)
                continue
            if one.option and (one.option.variable or said in ("threads", "precision", "use cpu")):
                assert set(new.environment) - set(old.environment)
                continue
            pytest.fail(f"line {old.line}: {one.text} is gone")


def parses(text: str) -> bool:
    done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
    return done.returncode == 0


def is_loaded(text: str, folder: Path) -> bool:
    """Whether accelerate 1.15 takes a configuration."""
    from accelerate.commands.config.config_args import load_config_from_file

    file = folder / "config.yaml"
    file.write_text(text, encoding="utf-8")
    try:
        load_config_from_file(str(file))
    except (ValueError, TypeError, KeyError, AttributeError):
        return False
    return True


def incomplete(text: str) -> int:
    """Instructions without a value, which ``docker build`` refuses."""
    dockerfile = pytest.importorskip("dockerfile")
    return sum(not "".join(one.value) for one in dockerfile.parse_string(text))


def test_what_parsed_before_parses_after(path: Path, fixed: FixedFile, tmp_path: Path) -> None:
    text = text_of(path)
    if fixed.text == text:
        pytest.skip("nothing was changed")
    if "ockerfile" in path.name:
        assert incomplete(fixed.text) <= incomplete(text)
    elif is_yaml(text, path.name):
        assert len(list(yaml.compose_all(fixed.text))) == len(list(yaml.compose_all(text)))
        if "distributed_type:" in text:
            assert is_loaded(fixed.text, tmp_path) or not is_loaded(text, tmp_path)
    elif is_shell(path, text) and parses(text):
        assert parses(fixed.text)
        shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.defpath}")
        if shellcheck is not None:
            assert errors(shellcheck, fixed.text) <= errors(shellcheck, text)


def errors(shellcheck: str, text: str) -> int:
    argv = [shellcheck, "--shell", "bash", "--severity", "error", "--format", "gcc", "-"]
    done = subprocess.run(argv, input=text, text=True, capture_output=True, check=False)
    return len(done.stdout.splitlines())


def test_a_launch_has_the_same_findings_typed_and_in_a_file(path: Path) -> None:
    for launch in launches_of(path):
        words = [str(word) for word in launch.words]
        if any("\n" in word or "$" in word for word in words) or launch.inner is not None:
            continue
        (typed,) = read_words(words) or (None,)
        if typed is None:
            continue
        context = Context(name="x", facts=FACTS, host=Host())
        here = {(one.code, one.severity) for one in judge_launches([typed], context)}
        file = shell_of(typed)
        there = {(one.code, one.severity) for one in check_file(file, "x.sh", FACTS)}
        assert here == there
