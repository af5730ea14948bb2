"""Finds what slows down training on CPUs, tunes it, and emits the launch.

``__init__.pyi`` lists the public names. Every other module is private::

    facts  = cputune.probe()
    report = cputune.diagnose(facts)
    job    = cputune.Workload.from_recipe("bert-base-squad")
    space  = cputune.search_space(facts, job)
    result = cputune.tune(job, facts=facts, budget=20)
    files  = cputune.emit(result, "mpirun", nodes=1)
    seen   = cputune.verify(["launch/"])

A name is loaded on first use, so that ``import cputune`` is fast.
"""

from __future__ import annotations

from types import ModuleType

_HOMES: dict[str, str] = {}
"""The module of each public name, read from ``__init__.pyi`` on first use."""


def _homes() -> dict[str, str]:
    """Read the public names from ``__init__.pyi``, where type checkers read them too."""
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
        value: object = _installed_version()
    elif name == "__all__":
        value = sorted(_homes())
    elif name.startswith("_") or name not in _homes():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    else:
        value = getattr(import_module(_homes()[name]), name)
    globals()[name] = value
    return value


class DoctorModule(ModuleType):
    """The package ``cputune.doctor``. It has the name of a function, so it can be called."""

    def __call__(self, *args: object, **kwargs: object) -> object:
        from importlib import import_module

        diagnosis: object = import_module(_homes()["doctor"]).doctor(*args, **kwargs)
        return diagnosis


def _installed_version() -> str:
    """Return the installed version, which hatch takes from the git tag (see pyproject.toml)."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("cputune")
    except PackageNotFoundError:  # run from a tree that was never installed
        return "0+unknown"


def __dir__() -> list[str]:
    return [*_homes(), "__version__"]
