"""A file that is judged, before the machine and the packages that will run what it starts."""

from __future__ import annotations

import contextlib
import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Concatenate, ParamSpec

from packaging.version import Version

from cputune.doctor.edit import Edit
from cputune.doctor.files.places import Places
from cputune.host import Host
from cputune.host.facts import HostFacts
from cputune.plans.training_command import TrainingCommand
from cputune.stack import Versions, versions_of
from cputune.stack.tables import load

_More = ParamSpec("_More")


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One file before one machine and the packages in its facts.

    Attributes:
        facts: of the machine that the launch will run on.
        host: is asked for the files that the launch names.
        here: whether the launch will run on that machine, so that its ranks are judged too.
        parser: who reads the flags of its training script ("trainer": TrainingArguments, or "its
            own"), where that is known.
        lines: where the keys or the variables stand, in a file that has no lines of commands.
        places: where its words stand, so that what is found can be mended there; None where the
            launch stands in no file.
    """

    name: str
    facts: HostFacts
    host: Host
    here: bool = True
    parser: str | None = None
    lines: Mapping[str, int | None] = field(default_factory=dict)
    places: Places | None = None

    def mended(
        self,
        mend: Callable[Concatenate[Places, _More], tuple[Edit, ...]],
        *what: _More.args,
        **more: _More.kwargs,
    ) -> tuple[Edit, ...]:
        """The edits that a function of ``mending`` makes; none where there is no file."""
        return () if self.places is None else mend(self.places, *what, **more)

    @property
    def versions(self) -> Versions:
        """What the launch is judged by."""
        return versions_of(self.facts)

    @property
    def accelerate(self) -> Version:
        """The accelerate to judge by: the installed one, else today's."""
        return self.versions.accelerate or load().era("today").versions["accelerate"]

    @property
    def read_by(self) -> str:
        """``accelerate 1.15.0``, and that it is not installed, where it is not."""
        absent = "" if self.versions.accelerate else " (not installed; today's stack)"
        return f"accelerate {self.accelerate}{absent}"

    def variables(self, launch: TrainingCommand) -> dict[str, str]:
        """What reaches the launcher: the environment around us, as the file changes it."""
        around = self.facts.environment if self.here else {}
        kept = {
            name: text
            for name, text in around.items()
            if not any(fnmatchcase(name, removed) for removed in launch.removed)
        }
        return {**kept, **launch.environment}

    def text_of(self, path: str) -> str | None:
        """The text of a file that the file names, where it can be read."""
        for place in (path, posixpath.join(posixpath.dirname(self.name), path)):
            with contextlib.suppress(OSError, ValueError):
                return self.host.read_text(place)
        return None

    def at(self, line: int | None, text: str) -> str:
        """``train.sh:12: text``; a line of ``lines`` that the text names goes before ``line``."""
        line = next((self.lines[w] for w in re.findall(r"\w+", text) if w in self.lines), line)
        text = re.sub(r"--(\w+)", lambda key: key[1] if key[1] in self.lines else key[0], text)
        return f"{self.name}:{line}: {text}" if line else f"{self.name}: {text}"
