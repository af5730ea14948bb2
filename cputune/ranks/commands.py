"""The commands that start the ranks of a plan here, as messages for a supervisor."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import util
from pathlib import Path

from cputune import cpulist
from cputune.carrier.environment import rank_numbers
from cputune.facts import HostFacts
from cputune.host.interpreter import training_interpreter, training_python
from cputune.inside import (
    CPUS_VARIABLE,
    FORCE_VARIABLE,
    SAMPLES_VARIABLE,
    SCRATCH_VARIABLE,
    SOCKET_VARIABLE,
    TURNS_VARIABLE,
    site_directory,
)
from cputune.inside.carry import Force
from cputune.plan import Plan
from cputune.ranks.engines import Engine, Launch
from cputune.ranks.messages import RankCommand, command
from cputune.ranks.supervisor import bootstrap
from cputune.stack import load
from cputune.steps import Infeasible

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
        CPUS_VARIABLE: "",
        FORCE_VARIABLE: "" if force is None else force.to_json(),
        TURNS_VARIABLE: "1",
        SAMPLES_VARIABLE: str(TRIAL_SAMPLES),
        KERNELS_VARIABLE: str(kernels),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Here(Engine):
    """The engine of this machine: a process for each rank, or a launcher that starts them.

    ``argv`` is the command of a rank; of a fork, the script and its arguments. ``fork``: the ranks
    are forks of the supervisor. ``typed``: ``argv`` is a launcher's command, as the user typed it.
    ``holder`` reserves the port at which the ranks meet.
    """

    facts: HostFacts
    fork: bool = False
    typed: bool = False
    holder: socket.socket = field(default_factory=lambda: held_port())

    def start(self, launch: Launch) -> list[RankCommand]:
        """Start the ranks: see ``Engine``. Raises Infeasible where oneCCL has no mpirun."""
        plan, given = launch.plan, (launch.argv, launch.environment, launch.variables)
        if self.typed:
            return typed_launch(*given)
        port = int(self.holder.getsockname()[1])
        if needs_mpirun(plan):
            return mpi_ranks(plan, *given, self.facts, port=port)
        return local_ranks(plan, *given, fork=self.fork, port=port)

    def end(self, launch: Launch) -> None:
        """Release the port at which the ranks met."""
        self.holder.close()


def needs_mpirun(plan: Plan) -> bool:
    """Whether a launcher has to start the ranks: with oneCCL they find each other by MPI."""
    return plan.backend == "ccl" and plan.world_size > 1


def local_ranks(
    plan: Plan,
    argv: Sequence[str],
    base: Mapping[str, str],
    variables: Mapping[str, str],
    *,
    fork: bool = False,
    port: int,
) -> list[RankCommand]:
    """One message per rank; each is bound to its CPUs before it loads anything.

    ``argv`` is the command that is started; of a fork, the script and its arguments.
    """
    return [
        command(
            argv,
            {**base, **rank_numbers(plan, rank, port), **variables},
            cpus=None if plan.as_found else plan.cpus[rank],
            fork=fork,
        )
        for rank in range(plan.processes_per_node)
    ]


def python_command(argv: Sequence[str]) -> list[str]:
    """``python SCRIPT ARGS``, measured: the hooks are set before the script runs."""
    code = bootstrap("cputune.inside.hooks", "sys.exit(run_script(sys.argv[1:]))")
    return [training_python(), "-c", code, *argv]


def as_activated(words: Sequence[str], environment: Mapping[str, str]) -> RankCommand:
    """A command as typed, run as if the environment of this Python were activated."""
    beside = os.path.join(training_interpreter().prefix, "bin")
    path = f"{beside}:{environment.get('PATH', os.defpath)}"
    return command(words, {**environment, "PATH": path})


def typed_launch(
    words: Sequence[str], base: Mapping[str, str], variables: Mapping[str, str]
) -> list[RankCommand]:
    """One message for the launcher that the user typed; the launcher starts the ranks.

    Environment variables alone make its ranks report.
    """
    return [as_activated(words, on_python_path({**base, **variables}))]


def on_python_path(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which every Python process sets its hooks as it starts."""
    others = environment.get("PYTHONPATH")
    site = str(site_directory())
    return {**environment, "PYTHONPATH": f"{site}:{others}" if others else site}


def mpi_ranks(
    plan: Plan,
    argv: Sequence[str],
    base: Mapping[str, str],
    variables: Mapping[str, str],
    facts: HostFacts,
    *,
    port: int,
) -> list[RankCommand]:
    """One message for ``mpirun``, which starts ``argv`` as every rank.

    oneCCL wants an MPI launcher.

    The environment is that of oneCCL's ``setvars.sh``, which brings oneCCL and Intel MPI.
    Raises Infeasible where there are no bindings or no Intel MPI.
    """
    environment = {**oneccl_environment(base), **variables}
    if "LD_PRELOAD" in base:
        environment["LD_PRELOAD"] = base["LD_PRELOAD"]
    mpirun = intel_mpirun(environment, facts)
    masks = ",".join(cpulist.render_mask(cpus) for cpus in plan.cpus)
    environment.update(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        # Without 0x in front of a mask the ranks run with default pinning, and no error.
        I_MPI_PIN_DOMAIN=f"[{masks}]",
        I_MPI_HYDRA_BOOTSTRAP="fork",
    )
    environment[CPUS_VARIABLE] = json.dumps(plan.cpus)  # mpirun cannot bind them exactly
    ranks = str(plan.processes_per_node)
    return [command([mpirun, "-n", ranks, "-ppn", ranks, *argv], environment)]


def intel_mpirun(environment: Mapping[str, str], facts: HostFacts) -> str:
    """The path of Intel MPI's mpirun: the one of setvars.sh, else one that is found here."""
    if "I_MPI_ROOT" in environment:
        brought = shutil.which("mpirun", path=environment.get("PATH"))
        if brought and os.path.realpath(brought).startswith(
            os.path.realpath(environment["I_MPI_ROOT"])
        ):
            return brought
    for launcher in facts.launchers:
        if launcher.dialect == "intelmpi":
            return launcher.path
    raise Infeasible("oneCCL needs Intel MPI's mpirun, and there is none")


def oneccl_environment(base: Mapping[str, str]) -> dict[str, str]:
    """The environment after sourcing the bindings' ``env/setvars.sh``. Raises Infeasible."""
    script = setvars_script()
    if script is None:
        raise Infeasible("the oneCCL bindings for PyTorch are not installed")
    answer = subprocess.run(
        ["bash", "-c", '. "$1" >/dev/null 2>&1; env -0', "bash", str(script)],
        env=dict(base),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    variables = dict(
        line.split("=", 1)
        for line in answer.stdout.decode(errors="surrogateescape").split("\0")
        if "=" in line
    )
    for name in ("_", "SHLVL", "PWD", "OLDPWD"):
        if name not in base:
            variables.pop(name, None)
    return variables


def setvars_script() -> Path | None:
    """Where the bindings' ``setvars.sh`` lies; found without importing them."""
    for name in sorted({row.module for row in load().oneccl}):
        spec = util.find_spec(name)
        for place in (spec.submodule_search_locations or []) if spec else []:
            script = Path(place) / "env" / "setvars.sh"
            if script.is_file():
                return script
    return None


def held_port() -> socket.socket:
    """A socket that reserves a free port: bound, not listening, so nobody else is given the port.

    Rank 0 can still listen on the port, since both set SO_REUSEADDR (socket(7)).
    """
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("", 0))
    return holder
