"""Find what is wrong with a CPU training machine, tune training on it, emit the launch.

What is public is named in ``__init__.pyi``; every other module is private to the project::

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

from types import ModuleType

_HOMES: dict[str, str] = {}
"""Where each public name is defined: read from ``__init__.pyi`` when the first one is used."""


def _homes() -> dict[str, str]:
    """The names of ``__init__.pyi``; type checkers read them there."""
    if not _HOMES:
        import ast
        from pathlib import Path

        stub = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
        for node in ast.parse(stub).body:
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("cputune"):
                _HOMES.update({name.name: str(node.module) for name in node.names})
    return _HOMES


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name == "__version__":
        found: object = _installed_version()
    elif name == "__all__":
        found = sorted(_homes())
    elif name.startswith("_") or name not in _homes():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    else:
        found = getattr(import_module(_homes()[name]), name)
    globals()[name] = found
    return found


class DoctorModule(ModuleType):
    """The package ``cputune.doctor``, which bears the name of a function: it can be called."""

    def __call__(self, *given: object, **named: object) -> object:
        from importlib import import_module

        found: object = import_module(_homes()["doctor"]).doctor(*given, **named)
        return found


def _installed_version() -> str:
    """The version that was installed: a tag of git, as pyproject.toml says."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("cputune")
    except PackageNotFoundError:  # run from a tree that was never installed
        return "0+unknown"


def __dir__() -> list[str]:
    return [*_homes(), "__version__"]
