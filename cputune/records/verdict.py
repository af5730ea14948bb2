"""The first lines of the output of ``tune``, ``show`` and ``doctor``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The first lines of the output: what the result means, what to do now, and how sure it is.

    ``do`` is a command, or "nothing: ...". ``when`` is a condition for it. ``good``: a gain was
    measured. ``ladder`` has a line for each kind of change in the training.
    """

    means: str
    do: str
    sure: str
    when: str | None = None
    good: bool = False
    ladder: tuple[str, ...] = ()

    @property
    def do_line(self) -> str:
        """``Do now: COMMAND``, or ``When the machine is quiet: COMMAND``."""
        label = self.when or "do now"
        return f"{label[:1].upper()}{label[1:]}: {self.do}"

    def lines(self) -> tuple[str, str, str]:
        return self.means, self.do_line, f"How sure: {self.sure}"
