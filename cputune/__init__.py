"""Find what is wrong with a CPU training machine, tune training on it, emit the launch.

What is public is named here; every other module is private to the project::

    facts  = cputune.probe()
    report = cputune.diagnose(facts)
    job    = cputune.Workload.from_recipe("bert-base-squad")
    space  = cputune.search_space(facts, job)
    result = cputune.tune(job, facts=facts, budget=20)
    files  = cputune.emit(result, "mpirun", nodes=1)
    seen   = cputune.verify(["launch/"])

A name is loaded when it is first used, so that ``import cputune`` takes no time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from cputune.doctor import Diagnosis as Diagnosis
    from cputune.doctor import Finding as Finding
    from cputune.doctor import Severity as Severity
    from cputune.doctor import diagnose as diagnose
    from cputune.doctor.hosts import HostsDiagnosis as HostsDiagnosis
    from cputune.doctor.hosts import SeenHost as SeenHost
    from cputune.doctor.hosts import diagnose_hosts as diagnose_hosts
    from cputune.emitters import Cluster as Cluster
    from cputune.emitters import EmittedFile as EmittedFile
    from cputune.emitters import Node as Node
    from cputune.emitters import SecretKey as SecretKey
    from cputune.emitters import Toleration as Toleration
    from cputune.emitters import emit as emit
    from cputune.errors import CputuneError as CputuneError
    from cputune.facts import HostFacts as HostFacts
    from cputune.host import RecordedHost as RecordedHost
    from cputune.plan import Plan as Plan
    from cputune.probing import probe as probe
    from cputune.result import ConfirmRun as ConfirmRun
    from cputune.result import Result as Result
    from cputune.result import Trial as Trial
    from cputune.steps import Runner as Runner
    from cputune.steps import Step as Step
    from cputune.steps import TrialError as TrialError
    from cputune.tuner import SearchSpace as SearchSpace
    from cputune.tuner import search_space as search_space
    from cputune.tuner import tune as tune
    from cputune.tuner.events import ConfirmStarted as ConfirmStarted
    from cputune.tuner.events import Disturbed as Disturbed
    from cputune.tuner.events import Event as Event
    from cputune.tuner.events import Said as Said
    from cputune.tuner.events import StepTaken as StepTaken
    from cputune.tuner.events import StudyEnded as StudyEnded
    from cputune.tuner.events import StudyStarted as StudyStarted
    from cputune.tuner.events import TrialEnded as TrialEnded
    from cputune.tuner.events import TrialRepeated as TrialRepeated
    from cputune.tuner.events import TrialStarted as TrialStarted
    from cputune.tuner.events import Waiting as Waiting
    from cputune.verifier import Verification as Verification
    from cputune.verifier import verify as verify
    from cputune.workload import Workload as Workload

_PUBLIC = {
    # where a name is defined: the names
    "cputune.doctor": ("Diagnosis", "Finding", "Severity", "diagnose"),
    "cputune.doctor.hosts": ("HostsDiagnosis", "SeenHost", "diagnose_hosts"),
    "cputune.emitters": ("Cluster", "EmittedFile", "Node", "SecretKey", "Toleration", "emit"),
    "cputune.errors": ("CputuneError",),
    "cputune.facts": ("HostFacts",),
    "cputune.host": ("RecordedHost",),
    "cputune.plan": ("Plan",),
    "cputune.probing": ("probe",),
    "cputune.result": ("ConfirmRun", "Result", "Trial"),
    "cputune.steps": ("Runner", "Step", "TrialError"),
    "cputune.tuner": ("SearchSpace", "search_space", "tune"),
    "cputune.tuner.events": (
        "ConfirmStarted", "Disturbed", "Event", "Said", "StepTaken", "StudyEnded",
        "StudyStarted", "TrialEnded", "TrialRepeated", "TrialStarted", "Waiting",
    ),
    "cputune.verifier": ("Verification", "verify"),
    "cputune.workload": ("Workload",),
}  # fmt: skip
_HOMES = {name: home for home, names in _PUBLIC.items() for name in names}

__all__ = sorted(_HOMES)


if not TYPE_CHECKING:  # a type checker would believe that every name exists

    def __getattr__(name: str) -> Any:
        from importlib import import_module

        if name == "__version__":
            globals()[name] = _installed_version()
            return globals()[name]
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(home), name)
        return found


def _installed_version() -> str:
    """The version that was installed: a tag of git, as pyproject.toml says."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("cputune")
    except PackageNotFoundError:  # run from a tree that was never installed
        return "0+unknown"


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
