"""Values of options that a shell completes."""

from __future__ import annotations

from collections.abc import Iterable

from click.shell_completion import CompletionItem


def values(name: str, typed: str) -> list[CompletionItem] | None:
    """The values of an option that begin as typed, behind its last comma; None: not known."""
    before, comma, last = typed.rpartition(",")
    known = _known(name, last)
    if known is None:
        return None
    return [CompletionItem(before + comma + word) for word in known if word.startswith(last)]


def _known(name: str, typed: str) -> Iterable[str] | None:
    if name == "recipe":
        from cputune.workload import recipe_names

        return recipe_names()
    if name == "format_":
        from cputune.emitters import FORMATS, PRINTED_FORMATS

        return (*FORMATS, *PRINTED_FORMATS, "all")
    if name == "mpi":
        from cputune.emitters import MPI_DIALECTS

        return MPI_DIALECTS
    if name in ("explain", "only", "ignore"):
        from cputune.doctor.registry import all_checks

        return (check.code for check in all_checks())
    if name in ("knobs", "fix"):
        from cputune.knobs import KNOBS

        if name == "fix":
            return (f"{knob.name}=" for knob in KNOBS)
        return (f"+{knob.name}" if typed.startswith("+") else knob.name for knob in KNOBS)
    return None
