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
    from cputune.emit import emit
    from cputune.errors import CputuneError
    from cputune.host import RecordedHost
    from cputune.plan import Plan
    from cputune.probe import probe
    from cputune.result import Result
    from cputune.tune import search_space, tune
    from cputune.tune.steps import Step
    from cputune.workload import Workload

_HOMES = {
    "CputuneError": "cputune.errors",
    "Plan": "cputune.plan",
    "RecordedHost": "cputune.host",
    "Result": "cputune.result",
    "Step": "cputune.tune.steps",
    "Workload": "cputune.workload",
    "diagnose": "cputune.doctor",
    "search_space": "cputune.tune",
}
_CALLABLE_FOLDERS = ("emit", "probe", "tune")  # see _callable.py

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
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _CALLABLE_FOLDERS:
        return import_module(f"cputune.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
