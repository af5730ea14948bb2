"""Where ranks run: this machine, or another host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from cputune.ranks.messages import RankCommand
from cputune.ranks.process_here import ProcessHere, SupervisorProcess

if TYPE_CHECKING:
    from cputune.ranks.work_folder import WorkFolder


class Place(Protocol):
    """A machine on which one runner starts ranks.

    Attributes:
        name: of the host; "" for this machine.
        post: the path of the socket there on which the ranks speak to the runner.
        scratch: the path of the folder there that takes what they would have written.
        kernels: the path of the folder there for what torch.compile has compiled.
        root: where this copy of cputune lies there; None: where it lies here.
    """

    name: str
    post: str
    scratch: str
    kernels: str
    root: str | None

    def start(
        self, environment: Mapping[str, str], modules: Sequence[str], work: WorkFolder
    ) -> SupervisorProcess:
        """Start a supervisor's process there."""
        ...

    def environment(self, ours: Mapping[str, str]) -> dict[str, str]:
        """Our variables as they are right there."""
        ...

    def command(self, ours: RankCommand) -> RankCommand:
        """A command with the paths of our own files as they are there."""
        ...


class Here:
    """The machine that we are on: everything is as it is."""

    def __init__(self, post: str, folder: Path, kernels: Path) -> None:
        self.name = ""
        self.root: str | None = None
        self.post = post
        self.scratch = str(folder / "scratch")
        self.kernels = str(kernels)

    def start(
        self, environment: Mapping[str, str], modules: Sequence[str], work: WorkFolder
    ) -> SupervisorProcess:
        """Start a supervisor's process."""
        return ProcessHere(environment, modules, work)

    def environment(self, ours: Mapping[str, str]) -> dict[str, str]:
        """Our variables."""
        return dict(ours)

    def command(self, ours: RankCommand) -> RankCommand:
        """The command."""
        return ours
