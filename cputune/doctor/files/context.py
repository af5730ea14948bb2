"""What every judge of a file needs: the file's name, the versions, the machine."""

from __future__ import annotations

import contextlib
import posixpath
from dataclasses import dataclass
from fnmatch import fnmatchcase

from packaging.version import Version

from cputune.cores import usable_cores
from cputune.facts import HostFacts
from cputune.host import Host
from cputune.knobs.precision import native_precisions
from cputune.stack import Versions, load, versions_of
from cputune.training_command import TrainingCommand


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One file before one machine and one stack.

    ``here`` is whether what the file starts will run on this machine: a pod will not.
    ``host`` is asked for the files that it names. ``batch_nodes`` are the machines that the
    ``#SBATCH`` lines of a script ask for. ``parser`` says who reads the flags of its training
    script ("trainer": TrainingArguments, or "its own"), where that is known.
    """

    name: str
    facts: HostFacts
    versions: Versions
    host: Host
    here: bool = True
    batch_nodes: int = 1
    parser: str | None = None

    @classmethod
    def of(cls, name: str, facts: HostFacts, host: Host) -> Context:
        """The context of a file, judged by the packages in these facts."""
        return cls(name=name, facts=facts, versions=versions_of(facts), host=host)

    def variables(self, launch: TrainingCommand) -> dict[str, str]:
        """What reaches the ranks: the environment around us, as the file changes it."""
        around = self.facts.environment if self.here else {}
        kept = {
            name: text
            for name, text in around.items()
            if not any(fnmatchcase(name, removed) for removed in launch.removed)
        }
        return {**kept, **launch.environment}

    def text_of(self, path: str) -> str | None:
        """The text of a file that the file names, where it can be read."""
        beside = posixpath.join(posixpath.dirname(self.name), path)
        # What a pod names from its root is the image's.
        for place in (path, beside) if self.here or not path.startswith("/") else ():
            with contextlib.suppress(OSError, ValueError):
                return self.host.read_text(place)
        return None

    @property
    def accelerate(self) -> Version:
        """The accelerate to judge by: the installed one, else today's."""
        return self.versions.accelerate or load().era("today").versions["accelerate"]

    @property
    def has_gpu(self) -> bool:
        """Whether an accelerator is known to be there."""
        return bool(self.facts.accelerators)

    @property
    def cores(self) -> int:
        """Physical cores that threads may be bound to, quota included."""
        return len(usable_cores(self.facts))

    @property
    def bf16(self) -> bool | None:
        """Whether this CPU multiplies bf16; None where its flags are not known."""
        if not self.facts.cpu.isa or not self.here:
            return None
        return "bf16" in native_precisions(self.facts)

    def at(self, line: int | None, text: str) -> str:
        """``train.sh:12: text``; of what has no lines (0) its name alone."""
        return f"{self.name}:{line}: {text}" if line else f"{self.name}: {text}"

    def read_by(self, package: str, version: Version) -> str:
        """``accelerate 1.15.0``, and that it is not installed, where it is not."""
        if self.versions.get(package) is None:
            return f"{package} {version} (not installed; today's stack)"
        return f"{package} {version}"
