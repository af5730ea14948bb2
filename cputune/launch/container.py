"""A container that a shell command starts around a launch: ``docker run``, ``apptainer exec``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cputune.launch.located_words import value_of

# Programs whose containers have variables of their own, and those whose containers inherit them.
APART = ("docker", "podman", "nerdctl")
INHERITING = ("singularity", "apptainer")
_BEGINS = ("run", "exec")


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """The command in front of a launch.

    Attributes:
        program: ``docker``, ``podman``, ``nerdctl``, ``singularity`` or ``apptainer``.
        at: its place among the words.
        words: from the program to the launcher.
    """

    program: str
    at: int
    words: tuple[str, ...]

    @property
    def apart(self) -> bool:
        """Whether variables of the shell do not reach it unless it names them."""
        return self.program in APART

    @property
    def begins(self) -> str:
        """``run`` or ``exec``, behind which its options are."""
        return next(word for word in self.words if word in _BEGINS)

    @property
    def called(self) -> str:
        """``docker run``"""
        return f"{self.program} {self.begins}"

    @property
    def passed(self) -> frozenset[str]:
        """The variables that it takes from the shell (``-e NAME``); "*" for those of a file."""
        names = set()
        for option, word in zip(self.words, self.words[1:], strict=False):
            if option in ("-e", "--env") and re.fullmatch(r"[A-Za-z_]\w*", word):
                names.add(word)
            name, equals, value = option.partition("=")
            if name == "--env" and equals and "=" not in value:
                names.add(value)
            if name == "--env-file":
                names.add("*")
        return frozenset(names)

    @property
    def cpus(self) -> float:
        """Its limit of CPU time, in CPUs; 0 if it has none."""
        limit = value_of(self.words, "--cpus") if self.apart else None
        if limit and re.fullmatch(r"\d{1,5}(\.\d{1,3})?", limit):
            return float(limit)
        return 0.0

    @property
    def cpuset(self) -> str | None:
        """The CPUs on which it may run, as written."""
        return value_of(self.words, "--cpuset-cpus")


def container_of(words: Sequence[str]) -> Container | None:
    """The innermost container that these words in front of a launch start, or None."""
    for at in reversed(range(len(words))):
        program = words[at].rpartition("/")[2]
        if program in (*APART, *INHERITING) and set(_BEGINS) & set(words[at + 1 :]):
            return Container(program=program, at=at, words=tuple(words[at:]))
    return None
