"""Every command that README and docs/ show is run, made small where it is heavy.

A command stands in a ```sh block, or behind ``$`` in a ```console block, or as an example of
``--help``, or as `cputune …` in a sentence. Each is run by itself in a folder that holds what it
reads. Trials are a fake's; what starts torch for real is marked so. A block that cannot be run says
why: ``<!-- not run: … -->`` above it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hosts.recordings import open_recording
from in_process import ran
from simulated_ranks import simulate

from cputune import Plan, Result
from cputune.cli import main

HERE = Path(__file__).resolve().parent.parent
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "recipes/*.md", "tests/*/README.md")
    for path in HERE.glob(pattern)
    if path.name not in ("CHANGELOG.md", "checks.md")
)
FENCE = re.compile(r"(?:^<!-- not run: (.+?) -->\n)?^```(\w*)\n(.*?)^```$", re.M | re.S)
INLINE = re.compile(
    r"(?<!`)`((?:(?:salloc|srun) [^`]*)?cputune -?[a-z]+[^`]*|make [a-z][^`]*"
    r"|pip install [^`]+|python benchmarks/[^`]+)`(?!`)"
)
"""A command in a sentence, which may go on in the next line."""
EXAMPLE = re.compile(r"^  (cputune [a-z].*)$", re.M)


class Shown(NamedTuple):
    """A block of a page: its language, its text, and why it is not run (None where it is)."""

    page: str
    language: str
    text: str
    not_run: str | None


def shown() -> list[Shown]:
    return [
        Shown(page.name, language, text, reason or None)
        for page in PAGES
        for reason, language, text in FENCE.findall(page.read_text(encoding="utf-8"))
    ]


def typed(block: Shown) -> list[str]:
    """The commands of a block."""
    text = block.text.replace("\\\n", " ")
    if block.page == "cli.md":
        return EXAMPLE.findall(text)
    if block.language == "console":
        return re.findall(r"^\$ (.*)$", text, re.M)
    return [line for line in text.splitlines() if line.strip()] if block.language == "sh" else []


def commands() -> Iterator[Any]:
    """Each command once, without its comment, under the first page that shows it.

    Commands that are the same once they are made small are one, too. Of those with the same options
    the first is in every run, and the others are in the weekly one.
    """
    seen: dict[str, str] = {}
    for block in shown():
        if block.not_run is None:
            for line in typed(block):
                seen.setdefault(without_comment(line), block.page)
    for page in PAGES:
        for words in INLINE.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
            line = " ".join(words.split())
            if line not in ALL_OF_IT:
                seen.setdefault(without_comment(line), page.name)
    run: set[str] = set()
    kinds: set[tuple[str, ...]] = set()
    for number, (line, page) in enumerate(seen.items()):
        if line and small(line) not in run:
            run.add(small(line))
            marks = (pytest.mark.torch, pytest.mark.slow) if is_heavy(line) else ()
            # tests/doctor/test_deep.py starts --deep.
            if "--deep" in line or kind_of(line) in kinds:
                marks += (pytest.mark.matrix,)
            kinds.add(kind_of(line))
            yield pytest.param(line, id=f"{page}-{number}", marks=marks)


def kind_of(line: str) -> tuple[str, ...]:
    """The program, its subcommand and its options before the training command."""
    words = small(line).partition(" -- ")[0].split()
    options = {word.partition("=")[0] for word in words if word.startswith("-")}
    return (*words[:2], *sorted(options))


def is_heavy(line: str) -> bool:
    """Whether it starts torch, and nothing smaller would show the same."""
    return "--deep" in line or re.match(r"launch/(?!.*kubectl)", line) is not None


def without_comment(line: str) -> str:
    """What a shell runs of a line; three dots stand for more of the same kind."""
    return re.sub(r"(^|\s+)#.*$", "", line).replace(" …", "").replace(" ...", "").strip()


PLACEHOLDERS = {
    "--explain CODE": "--explain quota-threads",
    "--fix NAME=VALUE": "--fix precision=fp32",
    "--pid 4711": f"--pid {os.getpid()}",
    "--root DIR": "--root recording",
    "--record DIR": "--record new-recording",
    "--check-file FILE": "--check-file train.sh",
    "--recipe FILE": "--recipe my.toml",
    "--python ~/venv": f"--python {sys.prefix}",
    "recipes NAME": "recipes bert-mini",
    "--config FILE": "--config none doctor",
    "show ID": "show 20261121-193000",
    "--interface NAME": "--interface eth0",
    "run_qa.py ARGUMENTS": "run_qa.py --do_train",
}
"""What a page names in capitals, or what lies elsewhere on each machine."""

ALL_OF_IT = ("cputune -vv …",)
"""A pattern of every command."""

SMALLER = (
    # The package index has no release of this tree; tests/test_wheel.py starts the built wheel.
    (r"^uvx (?=cputune\b)", ""),
    # Alone it is the name of a subcommand that needs more words.
    (r"^cputune (emit|verify|run)$", r"cputune \1 --help"),
    (r"^python (benchmarks/\w+\.py)\b.*", rf"{sys.executable} {HERE}/\1 --help"),
    # A launch is checked for real by tests/consumers and tests/verifier.
    (r"^cputune verify\b(?!.*--no-run)", "cputune verify --no-run"),
    # What is proven is of tests/ranks and of the corpus of scripts.
    (r"^cputune prove\b.*", "cputune prove --help"),
    # Hosts that are made for it, and Slurm, are of tests/nodes.
    (r"^(?:salloc|srun)(?: -\S+)+ (?=cputune)", ""),
    (r"^cputune doctor\b.* --host(s|file)\b.*", "cputune doctor --hosts none"),
    (r"^(cputune tune\b.*?) --host(s|file) \S+", r"\1 --hosts none"),
    # pip asks this tree in place of PyPI, and for none of what it needs.
    (
        r"^pip install '?cputune(\[[\w,]+\])?'?( --extra-index-url \S+)?$",
        f"{sys.executable} -m pip install --dry-run --no-index --no-deps --no-build-isolation "
        rf"'{HERE}\1'",
    ),
    # The environment stays as it is.
    (r"^pip install py-spy$", f"{sys.executable} -m pip install --help"),
    # A trial more is a second more; what is searched, and how, is of tests/tuner.
    (r"^(cputune tune\b(?!.* --dry-run).*?) --budget \d+", r"\1"),
    (r"^cputune tune\b(?!.* --dry-run)", "cputune tune --budget 2"),
    (r"^\.ci/run$", f"bash -n {HERE}/.ci/run"),
    (r"^make\b", f"make --dry-run --directory {HERE}"),
)
"""Heavy commands, and what is run in their place."""


def is_pattern(line: str) -> bool:
    """Whether words in capitals are left, which stand for something else."""
    return any(re.fullmatch(r"\[?[A-Z][A-Z-]*\]?|\[.*", word) for word in small(line).split())


def small(line: str) -> str:
    for words, meant in PLACEHOLDERS.items():
        line = line.replace(words, meant)
    for pattern, instead in SMALLER:
        line = re.sub(pattern, instead, line)
    return line


def seconds(plan: Plan) -> float:
    """More threads are faster, bf16 twice as fast."""
    return (1.0 if plan.precision == "bf16" else 2.0) / plan.threads_per_process


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_measured() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        simulate(patch, seconds)
        patch.setenv("PIP_NO_INDEX", "1")  # no test asks an index what it has today
        yield


def ours(*words: str) -> int:
    """The exit code of `cputune words`, here in this process."""
    before, sys.argv = sys.argv, ["cputune", *words]
    try:
        main()
    except SystemExit as ended:
        return int(ended.code or 0)
    finally:
        sys.argv = before
    return 0


EARLIER = "20261121-193000"
"""The result of the history that the examples name."""

LAUNCH = "#!/bin/bash\npython train.py --no_cuda --bf16\n"
SCRIPT = "import sys\nprint('trained with', *sys.argv[1:])\n"
SCRIPTS = ("train.py", "run_qa.py", "package/__init__.py", "package/train.py")
STAND_INS = ("docker", "kubectl", "sbatch", "jq")
STAND_IN = """#!/bin/sh
case "$0 $*" in
*/jq*) cat ;;
*' -f -') cat >/dev/null ;;
*" get pods "*) echo pod/bert-master-0 ;;
esac
"""


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory, _nothing_is_measured: None) -> Path:
    """What commands read: scripts, a result and its study, launch files, a recorded machine."""
    folder = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        for name in SCRIPTS:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(SCRIPT)
        shutil.copy(HERE / "recipes" / "bert-mini.toml", folder / "my.toml")
        assert ours("tune", "--budget", "2", "-o", "of-recipe.json") == 0
        assert ours("tune", "--budget", "4", "--", "train.py") == 0
        kept_results = (folder / "state").rglob("*.json")  # two may be of one second
        earlier = max(kept_results, key=lambda file: file.stat().st_mtime_ns)
        for file in earlier.parent.glob(f"{earlier.stem}.*"):
            text = file.read_text().replace(earlier.stem, EARLIER)
            (file.parent / f"{EARLIER}{file.suffix}").write_text(text.replace("2026-", "2025-"))
        image = ("--image", "r.example.com/bert:1", "--partition", "cpu")
        assert ours("emit", "--format", "all", *image) == 0
        (folder / "train.sh").write_text(LAUNCH)
        assert ours("emit", "--like", "train.sh", "-o", "changed.sh") == 0
    open_recording("whole", folder / "recording")
    (folder / "bin").mkdir()
    for name in STAND_INS:
        program = folder / "bin" / name
        program.write_text(STAND_IN)
        program.chmod(0o755)
    return folder


def lay(kept: Path, folder: Path, line: str) -> None:
    """Put into an empty folder what the command reads, and nothing that it writes."""
    for name in (*SCRIPTS, "my.toml"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(kept / name, folder / name)
    shutil.copytree(kept / "state", folder / "state")
    if not re.match(r"cputune tune\b", line):
        shutil.copy(kept / "cputune.json", folder)
    if "--patch team.yaml" in line:
        (folder / "team.yaml").write_text("metadata: {labels: {team: nlp}}\n")
    if "train.sh" in line:
        shutil.copy(kept / ("changed.sh" if "verify" in line else "train.sh"), folder / "train.sh")
    if "--resume" in line:
        shutil.copy(kept / "of-recipe.db", folder / "cputune.db")
        shutil.copy(kept / "of-recipe.json", folder / "cputune.json")
    if "launch/" in line and "cputune emit" not in line:
        shutil.copytree(kept / "launch", folder / "launch")
    if "--root recording" in line:
        shutil.copytree(kept / "recording", folder / "recording")
    for word in re.findall(r"(?<!-o )(?<!--report )\b[\w-]+\.json\b", line):
        if not re.match(r"cputune tune\b", line) and not (folder / word).exists():
            result = Result.load(kept / "cputune.json")
            replace(result, notes=(word,)).save(folder / word)  # each is of a study of its own


GOOD = {"doctor": (0, 1), "verify": (0, 3), "compare": (0, 1)}
"""Exit codes beside 0 that say something about this machine."""


def run(line: str, kept: Path, read: Callable[[], tuple[str, str]]) -> str:
    """Run a command here; raises AssertionError where it did not do what it says."""
    words = shlex.split(line)
    if words[0] == "cputune" and words[1:2] != ["run"] and not re.search(r"[|><&;$]", line):
        code = ours(*words[1:])
        out, err = read()
    else:
        path = f"{kept / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        argv = ["bash", "-euo", "pipefail", "-c", line]
        env = {**os.environ, "PATH": path, "PYTHON": sys.executable}
        done = ran(argv, env=env)
        code, out, err = done.returncode, done.stdout, done.stderr
    name = words[1] if words[0] == "cputune" and words[1:] else ""
    assert code in GOOD.get(name, (0,)), f"{line}\n{out[-2000:]}\n{err[-2000:]}"
    assert "Traceback" not in err
    assert "does not provide the extra" not in err
    return out


@pytest.mark.usefixtures("history")
@pytest.mark.parametrize("line", tuple(commands()))
def test_a_command_does_what_it_says(
    line: str, kept: Path, workdir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lay(kept, workdir, small(line))
    run(small(line), kept, capfd.readouterr)


SECTION = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.M | re.S)
GETTING_STARTED = (HERE / "docs" / "getting-started.md").read_text(encoding="utf-8")
TUTORIALS = [
    (who, FENCE.findall(text))
    for who, text in SECTION.findall(GETTING_STARTED)
    if who not in ("Install", "When something is not as it should be") and ":" not in who
]
"""The ways in, with their blocks (why not run, language, text)."""


@pytest.mark.usefixtures("history")
@pytest.mark.parametrize(("who", "blocks"), TUTORIALS, ids=[who for who, _ in TUTORIALS])
def test_a_tutorial_is_typed_to_its_end(
    who: str,
    blocks: list[tuple[str, str, str]],
    kept: Path,
    workdir: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (workdir / "train.py").write_text(SCRIPT)
    names: dict[str, Any] = {}
    for _, language, text in blocks:
        if language == "python":
            exec(compile(text.replace('max_time="10m"', "budget=2"), who, "exec"), names)
        for line in text.splitlines() if language == "sh" else ():
            if not is_heavy(line):
                run(small(line), kept, capfd.readouterr)


def test_a_tutorial_leads_to_its_first_answer_in_two_commands() -> None:
    for who, blocks in TUTORIALS:
        _, language, text = blocks[0]
        assert language == "python" or len(text.splitlines()) == 2, who


def test_what_is_not_run_says_why_and_is_little() -> None:
    not_run = [(block.page, block.not_run) for block in shown() if block.not_run is not None]
    print(*not_run, sep="\n")
    assert len(not_run) <= 4
    assert all(len(reason.split()) > 4 for _, reason in not_run)


def test_no_command_is_left_out_because_it_names_something_in_capitals() -> None:
    """A page said `recipes show NAME`, which there is not: it was no command but a pattern."""
    lines = [str(parameter.values[0]) for parameter in commands()]
    assert [line for line in lines if is_pattern(without_comment(line))] == []


def test_every_block_says_what_it_is_and_no_command_hides_in_another() -> None:
    bare = [(b.page, b.text[:40]) for b in shown() if not b.language]
    hidden = [
        (b.page, line)
        for b in shown()
        if b.language not in ("sh", "console") and b.page != "cli.md"
        for line in b.text.splitlines()
        if re.match(r"(\$ )?(cputune [a-z]|make |pip install )", line)
    ]
    assert (bare, hidden) == ([], [])
