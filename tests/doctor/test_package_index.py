"""What pip's index says of versions that need not be installed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rows import every_row
from stacks import TODAY, machine

from cputune.doctor.named_stack import judge_stack
from cputune.doctor.package_index import with_index
from cputune.host.base import Command, Completed, Host

PINS = ("torch==2.13.0", "transformers==5.23.0")
BROKEN = """\
WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError("...")'
ERROR: No matching distribution found for torch==2.13.0"""
CONFLICT = """\
WARNING: Ignored
ERROR: Cannot install tokenizers==0.20.0 and transformers==4.36.0 because these conflict.
ERROR: ResolutionImpossible: for help visit https://pip.pypa.io"""
UV = """\
  × No solution found when resolving dependencies:
  ╰─▶ Because there is no version of torch==9.0 your requirements are unsatisfiable."""


@dataclass
class FakeHost(Host):
    """A machine whose pip, or uv, ends so."""

    ends: Completed = field(default_factory=lambda: Completed(returncode=0))
    pip: bool = True
    uv: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    asked: list[tuple[str, ...]] = field(default_factory=list)
    live: bool = True

    def environment(self) -> Mapping[str, str]:
        return self.variables

    def which(self, program: str) -> str | None:
        return "/usr/bin/uv" if self.uv and program == "uv" else None

    def run(self, command: Command) -> Completed:
        self.asked.append(command.argv)
        if command.argv[0] != "uv" and not self.pip:
            return Completed(returncode=1, stderr="/usr/bin/python3: No module named pip")
        return self.ends


@every_row(
    ("host", "says", "refuses"),
    [
        (FakeHost(), "has these versions, and they can be installed together", None),
        (FakeHost(ends=Completed(returncode=None)), "gave no answer within 30 s: pip", None),
        (FakeHost(ends=Completed(returncode=1, stderr=BROKEN)), "could be reached", None),
        (FakeHost(variables={"PIP_NO_INDEX": "1"}), "because PIP_NO_INDEX is set", None),
        (FakeHost(pip=False), "because this Python has no pip", None),
        (FakeHost(pip=False, uv=True), "has these versions", None),
        (
            FakeHost(ends=Completed(returncode=1, stderr=CONFLICT)),
            "The package index refuses it: pip install --dry-run --ignore-installed torch==2.13.0",
            "Cannot install tokenizers==0.20.0 and transformers==4.36.0 because these conflict",
        ),
        (
            FakeHost(pip=False, uv=True, ends=Completed(returncode=1, stderr=UV)),
            "The package index refuses it",
            "No solution found when resolving dependencies:; Because there is no version of "
            "torch==9.0 your requirements are unsatisfiable",
        ),
    ],
)
def test_the_index_is_asked_and_what_it_says_is_reported(
    host: FakeHost, says: str, refuses: str | None
) -> None:
    findings = judge_stack("torch=2.13.0,transformers=5.23.0", machine(TODAY))
    judged = {one.code: one for one in with_index(findings, PINS, None, host)}
    assert says in judged["stack-fits"].remedy
    refused = judged.get("stack-index")
    assert (refused.evidence if refused else None) == refuses


def test_what_pip_would_install_is_not_said_to_fit_if_it_does_not() -> None:
    findings = judge_stack("transformers=5.1.0,accelerate=1.0.0", machine(TODAY))
    (fits,) = [one for one in with_index(findings, PINS, None, FakeHost()) if "fits" in one.code]
    assert "their metadata does not say" in fits.remedy


def test_another_python_is_asked_for_and_nothing_is_built() -> None:
    host = FakeHost()
    with_index((), PINS, "3.12", host)
    (argv,) = host.asked
    assert argv[1:4] == ("-m", "pip", "install")
    assert "--dry-run" in argv
    at = argv.index("--only-binary")
    assert argv[at + 1] == ":all:"
    at = argv.index("--python-version")
    assert argv[at + 1] == "3.12"
    assert argv[-2:] == PINS
