"""The commands that start the ranks of a plan here, as messages for a supervisor."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cputune.carrier.environment import rank_numbers
from cputune.host.interpreter import training_interpreter, training_python
from cputune.inside import (
    FORCE_VARIABLE,
    SAMPLES_VARIABLE,
    SCRATCH_VARIABLE,
    SOCKET_VARIABLE,
    TURNS_VARIABLE,
    site_directory,
)
from cputune.inside.carry import Force
from cputune.plan import Plan
from cputune.ranks.engines import Engine, FromHere, Launch
from cputune.ranks.messages import RankCommand, command
from cputune.ranks.supervisor import bootstrap
from cputune.remote.reach import Mpirun

TRIAL_SAMPLES = 2048
"""How many examples of a recipe's real data set a trial tokenizes: enough for 100 steps."""

KERNELS_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
"""The variable that names torch.compile's cache (torch/_inductor/runtime/cache_dir_utils.py).
Unset, the cache is a folder of the user in /tmp."""


def trial_variables(
    post: str, scratch: str | Path, kernels: str | Path, force: Force | None
) -> dict[str, str]:
    """The variables by which a rank knows that it is measured, and what it sets in the script.

    After each step the rank waits for leave to take another. ``kernels`` is where torch.compile
    keeps what it has compiled, for later trials. It is never the user's own cache: a trial has to
    compile what a first run compiles.
    """
    return {
        SOCKET_VARIABLE: post,
        SCRATCH_VARIABLE: str(scratch),
        FORCE_VARIABLE: "" if force is None else force.to_json(),
        TURNS_VARIABLE: "1",
        SAMPLES_VARIABLE: str(TRIAL_SAMPLES),
        KERNELS_VARIABLE: str(kernels),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Here(Engine):
    """The engine of this machine: a process for each rank, bound before it loads anything.

    ``argv`` is the command of a rank; of a fork, the script and its arguments. ``fork``: the ranks
    are forks of the supervisor. ``typed``: ``argv`` is the command of a launcher, as the user typed
    it, which starts the ranks; variables alone make them report. ``holder`` reserves the port at
    which the ranks meet.
    """

    fork: bool = False
    typed: bool = False
    holder: socket.socket = field(default_factory=lambda: held_port())

    def start(self, launch: Launch) -> list[RankCommand]:
        """As every verb: see ``Engine``."""
        plan, environment = launch.plan, launch.environment
        if self.typed:
            measured = on_python_path({**environment, **launch.variables})
            return [as_activated(launch.argv, measured)]
        port = int(self.holder.getsockname()[1])
        return [
            command(
                launch.argv,
                {**environment, **rank_numbers(plan, rank, port), **launch.variables},
                cpus=None if plan.as_found else plan.cpus[rank],
                fork=self.fork,
            )
            for rank in range(plan.processes_per_node)
        ]

    def end(self, launch: Launch) -> None:
        """Release the port at which the ranks met."""
        self.holder.close()


BY_MPIRUN = FromHere(Mpirun(dialect="intelmpi"))
"""Starts on this machine what an MPI has to start: the emitted launch."""


def needs_mpirun(plan: Plan) -> bool:
    """Whether a launcher has to start the ranks: with oneCCL they find each other by MPI."""
    return plan.backend == "ccl" and plan.world_size > 1


def python_command(argv: Sequence[str]) -> list[str]:
    """``python SCRIPT ARGS``, measured: the hooks are set before the script runs."""
    code = bootstrap("cputune.inside.hooks", "sys.exit(run_script(sys.argv[1:]))")
    return [training_python(), "-c", code, *argv]


def as_activated(words: Sequence[str], environment: Mapping[str, str]) -> RankCommand:
    """A command as typed, run as if the environment of this Python were activated."""
    beside = os.path.join(training_interpreter().prefix, "bin")
    path = f"{beside}:{environment.get('PATH', os.defpath)}"
    return command(words, {**environment, "PATH": path})


def on_python_path(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which every Python process sets its hooks as it starts."""
    others = environment.get("PYTHONPATH")
    site = str(site_directory())
    return {**environment, "PYTHONPATH": f"{site}:{others}" if others else site}


def held_port() -> socket.socket:
    """A socket that reserves a free port: bound, not listening, so nobody else is given the port.

    Rank 0 can still listen on the port, since both set SO_REUSEADDR (socket(7)).
    """
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("", 0))
    return holder
