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

TYPE_CHECKING = False  # as type checkers know it: an interrupt while typing is read has no handler

if TYPE_CHECKING:
    from typing import Any

    __version__: str
    from cputune.doctor import Diagnosis as Diagnosis
    from cputune.doctor import Finding as Finding
    from cputune.doctor import Severity as Severity
    from cputune.doctor import diagnose as diagnose
    from cputune.doctor.hosts import HostsDiagnosis as HostsDiagnosis
    from cputune.doctor.hosts import SeenHost as SeenHost
    from cputune.doctor.hosts import diagnose_hosts as diagnose_hosts
    from cputune.emitters import EmittedFile as EmittedFile
    from cputune.emitters import Node as Node
    from cputune.emitters import emit as emit
    from cputune.errors import CannotError as CannotError
    from cputune.errors import CputuneError as CputuneError
    from cputune.errors import HostError as HostError
    from cputune.errors import Interrupted as Interrupted
    from cputune.errors import MissingPackageError as MissingPackageError
    from cputune.errors import NotMeasurableError as NotMeasurableError
    from cputune.errors import NoValidTrialError as NoValidTrialError
    from cputune.errors import RecipeError as RecipeError
    from cputune.errors import ResultError as ResultError
    from cputune.errors import Unreachable as Unreachable
    from cputune.errors import UsageError as UsageError
    from cputune.facts import HostFacts as HostFacts
    from cputune.history import Kept as Kept
    from cputune.history import kept_results as kept_results
    from cputune.host import RecordedHost as RecordedHost
    from cputune.options import Cluster as Cluster
    from cputune.options import EmitOptions as EmitOptions
    from cputune.options import SecretKey as SecretKey
    from cputune.options import Toleration as Toleration
    from cputune.options import TuneOptions as TuneOptions
    from cputune.plan import Plan as Plan
    from cputune.probing import probe as probe
    from cputune.report.compare import Compared as Compared
    from cputune.report.compare import compare as compare
    from cputune.report.show import show as show
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
    from cputune.tuner.events import Event as Event
    from cputune.tuner.events import OnEvent as OnEvent
    from cputune.tuner.events import Said as Said
    from cputune.tuner.events import StepTaken as StepTaken
    from cputune.tuner.events import StudyEnded as StudyEnded
    from cputune.tuner.events import StudyStarted as StudyStarted
    from cputune.tuner.events import TrialEnded as TrialEnded
    from cputune.tuner.events import TrialStarted as TrialStarted
    from cputune.verifier import Verification as Verification
    from cputune.verifier import verify as verify
    from cputune.workload import Workload as Workload

_PUBLIC = {
    # where a name is defined: the names
    "cputune.doctor": ("Diagnosis", "Finding", "Severity", "diagnose"),
    "cputune.doctor.hosts": ("HostsDiagnosis", "SeenHost", "diagnose_hosts"),
    "cputune.emitters": ("EmittedFile", "Node", "emit"),
    "cputune.errors": (
        "CannotError", "CputuneError", "HostError", "Interrupted", "MissingPackageError",
        "NoValidTrialError", "NotMeasurableError", "RecipeError", "ResultError", "Unreachable",
        "UsageError",
    ),
    "cputune.facts": ("HostFacts",),
    "cputune.history": ("Kept", "kept_results"),
    "cputune.host": ("RecordedHost",),
    "cputune.options": ("Cluster", "EmitOptions", "SecretKey", "Toleration", "TuneOptions"),
    "cputune.plan": ("Plan",),
    "cputune.probing": ("probe",),
    "cputune.report.compare": ("Compared", "compare"),
    "cputune.report.show": ("show",),
    "cputune.result": ("ConfirmRun", "Result", "Trial"),
    "cputune.steps": ("Runner", "Step", "TrialError"),
    "cputune.tuner": ("SearchSpace", "search_space", "tune"),
    "cputune.tuner.events": (
        "ConfirmStarted", "Event", "OnEvent", "Said", "StepTaken", "StudyEnded",
        "StudyStarted", "TrialEnded", "TrialStarted",
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
