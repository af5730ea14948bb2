"""Find what is wrong with a CPU training machine, tune training on it, emit the launch.

The public names, loaded when they are first used::

    facts  = cputune.probe()
    report = cputune.diagnose(facts)
    job    = cputune.Workload.from_recipe("bert-base-squad")
    space  = cputune.search_space(facts, job)
    result = cputune.tune(job, facts=facts, budget=20)
    files  = cputune.emit(result, "mpirun", nodes=1)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from cputune.doctor import diagnose
    from cputune.emitters import emit
    from cputune.errors import CputuneError
    from cputune.host import RecordedHost
    from cputune.plan import Plan
    from cputune.probing import probe
    from cputune.result import Result
    from cputune.steps import Step
    from cputune.tuner import search_space, tune
    from cputune.verifier import verify
    from cputune.workload import Workload

_HOMES = {
    "CputuneError": "cputune.errors",
    "Plan": "cputune.plan",
    "RecordedHost": "cputune.host",
    "Result": "cputune.result",
    "Step": "cputune.steps",
    "Workload": "cputune.workload",
    "diagnose": "cputune.doctor",
    "emit": "cputune.emitters",
    "probe": "cputune.probing",
    "search_space": "cputune.tuner",
    "tune": "cputune.tuner",
    "verify": "cputune.verifier",
}

__all__ = [
    "CputuneError",
    "Plan",
    "RecordedHost",
    "Result",
    "Step",
    "Workload",
    "diagnose",
    "emit",
    "probe",
    "search_space",
    "tune",
    "verify",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
