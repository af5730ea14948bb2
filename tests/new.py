"""Begin a new check, knob, format or option: ``make new-check NAME=swap-full IN=limits``.

What CONTRIBUTING.md lists for it is written (the record and its row, its test, its word in the
docs), with FILL where somebody has to decide. ``tests/test_filled.py`` fails until no FILL is left,
and so do the tests of what stays empty.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

HERE = Path(__file__).resolve().parent.parent


class NotBegunError(Exception):
    """Why nothing was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """A file that is not there yet."""

    path: str
    text: str

    def put_into(self, old: str | None) -> str:
        """The text of the file. Raises NotBegunError where there is one."""
        if old is not None:
            raise NotBegunError(f"{self.path} is there already")
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Lines for a file that is there, before the first place that ``before`` finds."""

    path: str
    before: str
    text: str

    def put_into(self, old: str | None) -> str:
        """The text of the file with these lines. Raises NotBegunError where there is no place."""
        if old is None:
            raise NotBegunError(f"there is no {self.path}")
        place = re.search(self.before, old, re.MULTILINE)
        if place is None:
            raise NotBegunError(f"{self.path} has no place for it any more: {self.before}")
        return old[: place.start()] + self.text + old[place.start() :]


Part: TypeAlias = NewFile | Row


def changelog(what: str) -> Row:
    """The line that users read."""
    return Row(
        path="CHANGELOG.md",
        before=r"^\*\*Tune\*\*$",
        text=f"- FILL: what a user notices ({what}); put the line under its subject.\n\n",
    )


def new_check(name: str, theme: str) -> Iterable[Part]:
    """A check of a theme, a machine that has its fault, and one that nearly has it."""
    if theme == "versions":
        raise NotBegunError(
            "a check of versions has its test in tests/doctor/test_versions.py: by hand"
        )
    function = name.replace("-", "_")
    tests = "tests/doctor/test_doctor_checks.py"
    yield Row(
        path=f"cputune/doctor/checks/{theme}.py",
        before=r"^CHECKS = ",
        text=f'''@check("{name}", Severity.WARNING)
def {function}(facts: HostFacts) -> Iterator[Finding]:
    """FILL: what is wrong, as a title

    Symptom: FILL: what people see.

    Cause: FILL: why it happens.

    Remedy: FILL: what to do, in one sentence.

    Source: FILL: owner/repo#n, or URLs
    """
    if facts.topology.sockets < 0:  # FILL: when it is wrong
        yield {function}.finding("FILL: what was seen, with its numbers", command=None)


''',
    )
    fault = f'    at("{name}"),  # FILL: what differs on a machine that has the fault\n'
    yield Row(path=tests, before=r"^\)\n\nNEARLY: ", text=fault)
    nearly = f'    at("{name}"),  # FILL: what differs on one that nearly has it\n'
    yield Row(path=tests, before=r"^\)\n\nBORDERS: ", text=nearly)
    yield changelog(f"check `{name}`")


def new_knob(name: str, _: str) -> Iterable[Part]:
    """A knob in a file of its own, its row, and its test; ``make doc`` renews docs/knobs.md."""
    constant = name.upper()
    register = "cputune/plans/knobs/__init__.py"
    yield NewFile(
        path=f"cputune/plans/knobs/{name}.py",
        text=f'''"""FILL: what this knob changes of a launch."""

from __future__ import annotations

from collections.abc import Mapping

from cputune.host.facts import HostFacts
from cputune.plans.knobs.record import Ask, Effect, Knob, changed_shown, in_settings
from cputune.plans.plan import Plan


def _why_not(facts: HostFacts, ask: Ask) -> str | None:
    return "FILL: why it is not offered here; None if all values are"


def _variables(plan: Plan) -> Mapping[str, str]:
    return {{}}  # FILL: or an argument, or set_in_torch


{constant} = Knob(
    name="{name}",
    summary="FILL: what it is, in one line",
    values=("default", "other"),  # FILL: the current one first
    keeps="nothing",  # FILL: what of the training stays the same
    offers=_why_not,
    put=in_settings("{name}"),
    variables=_variables,
    shown=(changed_shown("{name}", "{name}", "{name}"),),  # FILL: the key in RankState
    description=lambda plan: str(value) if (value := plan.settings.get("{name}")) else None,
    effect=Effect(size=0.05, source="FILL: where the size comes from"),
)
''',
    )
    yield Row(
        path=register,
        before=r"^from cputune.plans.knobs.record import",
        text=f"from cputune.plans.knobs.{name} import {constant}\n",
    )
    yield Row(path=register, before=r"^\)\n\nNAMES = ", text=f"    {constant},\n")
    yield NewFile(
        path=f"tests/knobs/test_{name}.py",
        text=f'''"""FILL: what is tested of the knob {name}."""

from __future__ import annotations

import pytest


@pytest.mark.torch
def test_real_ranks_show_it() -> None:
    pytest.fail("FILL: ProcessRunner, a plan with {name}, and what its ranks show")
''',
    )
    reported = f'{{"{name}": "FILL: what a rank reports"}}'
    shown = f'    ("{name}", "{name}", "other", {reported}, "other", "FILL: what it shows"),\n'
    yield Row(
        path="tests/knobs/test_knobs.py", before=r'^\)\n"""How a rank shows each knob', text=shown
    )
    left_out = f'    ("{name}=other", FACTS, RECIPE, {{}}, "FILL: why not there"),\n'
    yield Row(
        path="tests/knobs/test_offered.py",
        before=r'^\)\n\n\n@every_row\(\("what"',
        text=left_out,
    )
    yield changelog(f"knob `{name}`")


def _like_torchrun(name: str, constant: str) -> str:
    """The code of a format that starts its ranks by torchrun until its own launcher is written."""
    text = (HERE / "cputune/emitters/torchrun.py").read_text(encoding="utf-8")
    begun = '"""FILL: what starts this launch, and what it does not do by itself."""'
    text = re.sub(r'(?s)\A""".*?"""', begun, text)
    for old, new in (
        ("TORCHRUN", constant),
        ("emit_torchrun", f"emit_{name}"),
        ('"torchrun"', f'"{name}"'),
        ('"torchrun.sh"', f'"{name}.sh"'),
    ):
        text = text.replace(old, new)
    return re.sub(
        rf'start\(\n( +)"{name}",\n',
        r'start(\n\1"torchrun",  # FILL: your launcher, of cputune/launch/launchers/\n',
        text,
    )


def new_format(name: str, _: str) -> Iterable[Part]:
    """A format: what it writes, its row, its words in the docs, and a test by its consumer."""
    constant = name.upper()
    register = "cputune/emitters/__init__.py"
    yield NewFile(path=f"cputune/emitters/{name}.py", text=_like_torchrun(name, constant))
    script = (HERE / "cputune/emitters/texts/torchrun.sh").read_text(encoding="utf-8")
    yield NewFile(path=f"cputune/emitters/texts/{name}.sh", text=script)
    imported = f"from cputune.emitters.{name} import {constant}\n"
    yield Row(path=register, before=r"^from cputune.emitters.hand import", text=imported)
    yield Row(path=register, before=r"(?<=_ALL = \()", text=f"{constant}, ")
    yield NewFile(
        path=f"tests/consumers/test_consumers_{name}.py",
        text=f'''"""FILL: who takes the files of {name}."""

import pytest
from launches import two_ranks

from cputune import verify

pytestmark = [pytest.mark.consumer, pytest.mark.torch, pytest.mark.slow]


def test_the_recipe_trains_as_planned(write, tiny):
    directory = write("{name}", two_ranks(), tiny)
    (verdict,) = verify([directory / "{name}.sh"], steps=4)
    assert verdict.state == "passed", verdict
''',
    )
    written = f"| `{name}` | `{name}.sh` | FILL: files beside it |\n"
    yield Row(path="docs/emit.md", before=r"^\| `pytorchjob` \|", text=written)
    checked = f"| `{name}.sh` | FILL: what is checked | FILL: by whom |\n"
    yield Row(path="docs/verify.md", before=r"^\| `pytorchjob.yaml` \|", text=checked)
    yield changelog(f"format `{name}`")


def flags_of(program: str) -> set[str]:
    """The options of ``cputune tune`` or ``cputune emit``, as docs/cli.md lists them."""
    page = (HERE / "docs/cli.md").read_text(encoding="utf-8")
    section = page.partition(f"## cputune {program}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"--[a-z][a-z-]*", section))


def new_option(name: str, command: str) -> Iterable[Part]:
    """An option of tune or emit; ``make doc`` renews docs/cli.md and the man page."""
    record = {"tune": "TuneOptions", "emit": "EmitOptions", "cluster": "Cluster"}.get(command)
    if record is None:
        raise NotBegunError(
            f"IN=tune, IN=emit or IN=cluster (what only users know), not {command!r}"
        )
    flag = f"--{name.replace('_', '-')}"
    program = "tune" if command == "tune" else "emit"
    if flag in flags_of(program):
        raise NotBegunError(f"{flag} is an option of {program} already")
    last = {"tune": "share_machine", "emit": "cluster", "cluster": "interface"}[command]
    field = f'    {name}: bool = option(False, "FILL: what it does, in one line.")\n'
    yield Row(path="cputune/records/options.py", before=rf"^    {last}: ", text=field)
    group = {"tune": "Limits", "emit": "What to write", "cluster": "Slurm"}[command]
    yield Row(path="cputune/cli/help_groups.py", before=rf'(?<="{group}": \()', text=f'"{name}", ')
    room = "tuner" if command == "tune" else "emitters"
    yield NewFile(
        path=f"tests/{room}/test_option_{name}.py",
        text=f'''"""What {flag} does."""

from __future__ import annotations

import pytest


def test_what_it_does() -> None:
    pytest.fail("FILL: what changes with {flag}, and what it refuses")
''',
    )
    yield changelog(f"option `{flag}`")


KINDS: Mapping[str, Callable[[str, str], Iterable[Part]]] = {
    "check": new_check,
    "knob": new_knob,
    "format": new_format,
    "option": new_option,
}
NAMES = {"check": r"[a-z]+(-[a-z0-9]+)+", "knob": r"[a-z]+(_[a-z]+)*"}
NAMES |= {"format": r"[a-z]+", "option": NAMES["knob"]}


def begin(kind: str, name: str, place: str, root: Path = HERE) -> list[str]:
    """Write all parts of a new thing, or none; return their paths. Raises NotBegunError."""
    if not re.fullmatch(NAMES[kind], name):
        raise NotBegunError(f"NAME={name} is no name of a {kind}: {NAMES[kind]}")
    texts: dict[str, str] = {}
    for part in KINDS[kind](name, place):
        there = root / part.path
        if part.path not in texts and there.exists():
            texts[part.path] = there.read_text(encoding="utf-8")
        texts[part.path] = part.put_into(texts.get(part.path))
    for path, text in texts.items():
        (root / path).write_text(text, encoding="utf-8")
    return list(texts)


def main() -> int:
    """Begin what is named, and list what was written."""
    parser = argparse.ArgumentParser(description="Begin a new check, knob, format or option.")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("name", nargs="?", default="")
    parser.add_argument("place", nargs="?", default="")
    asked = parser.parse_args()
    try:
        paths = begin(asked.kind, asked.name, asked.place)
    except NotBegunError as error:
        print(f"error: {error}", file=sys.stderr)
        print("hint: make new-check NAME=swap-full IN=limits", file=sys.stderr)
        return 2
    print("Written, to be filled where FILL stands (CONTRIBUTING.md says what with):")
    print("\n".join(f"  {path}" for path in paths))
    print("`ruff check --fix` sorts the imports, `make doc` renews the pages.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
