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

if TYPE_CHECKING:  # isort: off
    from typing import Any

    __version__: str
    from cputune.doctor import Diagnosis, Finding, Severity, diagnose
    from cputune.doctor.hosts import HostsDiagnosis, SeenHost, diagnose_hosts
    from cputune.emitters import EmittedFile, Node, emit
    from cputune.errors import (
        CannotError,
        CputuneError,
        HostError,
        Interrupted,
        MissingPackageError,
        NotMeasurableError,
        NoValidTrialError,
        RecipeError,
        ResultError,
        Unreachable,
        UsageError,
    )
    from cputune.host.facts import HostFacts
    from cputune.records.history import Kept, kept_results
    from cputune.host import RecordedHost
    from cputune.records.options import Cluster, EmitOptions, SecretKey, TuneOptions
    from cputune.plans.plan import Plan
    from cputune.host.probing import probe
    from cputune.report.show import show
    from cputune.records.result import ConfirmRun, Result, Trial
    from cputune.records.steps import Runner, Step, TrialError
    from cputune.tuner import SearchSpace, search_space, tune
    from cputune.tuner.comparing import Comparison, compare
    from cputune.tuner.events import (
        ComparisonSoFar,
        ConfirmStarted,
        Event,
        OnEvent,
        Message,
        StepTaken,
        StudyEnded,
        StudyStarted,
        TrialEnded,
        TrialStarted,
    )
    from cputune.verifier import Verification, verify
    from cputune.plans.workload import Workload

__all__ = [
    "CannotError",
    "Cluster",
    "Comparison",
    "ComparisonSoFar",
    "ConfirmRun",
    "ConfirmStarted",
    "CputuneError",
    "Diagnosis",
    "EmitOptions",
    "EmittedFile",
    "Event",
    "Finding",
    "HostError",
    "HostFacts",
    "HostsDiagnosis",
    "Interrupted",
    "Kept",
    "Message",
    "MissingPackageError",
    "NoValidTrialError",
    "Node",
    "NotMeasurableError",
    "OnEvent",
    "Plan",
    "RecipeError",
    "RecordedHost",
    "Result",
    "ResultError",
    "Runner",
    "SearchSpace",
    "SecretKey",
    "SeenHost",
    "Severity",
    "Step",
    "StepTaken",
    "StudyEnded",
    "StudyStarted",
    "Trial",
    "TrialEnded",
    "TrialError",
    "TrialStarted",
    "TuneOptions",
    "Unreachable",
    "UsageError",
    "Verification",
    "Workload",
    "compare",
    "diagnose",
    "diagnose_hosts",
    "emit",
    "kept_results",
    "probe",
    "search_space",
    "show",
    "tune",
    "verify",
]

_PUBLIC = {
    # where a name is defined: the names
    "cputune.doctor": ("Diagnosis", "Finding", "Severity", "diagnose"),
    "cputune.doctor.hosts": ("HostsDiagnosis", "SeenHost", "diagnose_hosts"),
    "cputune.emitters": ("EmittedFile", "Node", "emit"),
    "cputune.errors": (
        "CannotError",
        "CputuneError",
        "HostError",
        "Interrupted",
        "MissingPackageError",
        "NoValidTrialError",
        "NotMeasurableError",
        "RecipeError",
        "ResultError",
        "Unreachable",
        "UsageError",
    ),
    "cputune.host.facts": ("HostFacts",),
    "cputune.records.history": ("Kept", "kept_results"),
    "cputune.host": ("RecordedHost",),
    "cputune.records.options": ("Cluster", "EmitOptions", "SecretKey", "TuneOptions"),
    "cputune.plans.plan": ("Plan",),
    "cputune.host.probing": ("probe",),
    "cputune.tuner.comparing": ("Comparison", "compare"),
    "cputune.report.show": ("show",),
    "cputune.records.result": ("ConfirmRun", "Result", "Trial"),
    "cputune.records.steps": ("Runner", "Step", "TrialError"),
    "cputune.tuner": ("SearchSpace", "search_space", "tune"),
    "cputune.tuner.events": (
        "ComparisonSoFar",
        "ConfirmStarted",
        "Event",
        "OnEvent",
        "Message",
        "StepTaken",
        "StudyEnded",
        "StudyStarted",
        "TrialEnded",
        "TrialStarted",
    ),
    "cputune.verifier": ("Verification", "verify"),
    "cputune.plans.workload": ("Workload",),
}
_HOMES = {name: home for home, names in _PUBLIC.items() for name in names}

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
