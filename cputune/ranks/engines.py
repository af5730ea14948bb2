"""What starts a launch: this machine, or over hosts the engine that the cluster has.

A trial is the launch that ``emit`` would write for its plan: the same files, started as an operator
starts them. Only variables are added: the socket for reports, and whose turn it is. What ranks of
other hosts report comes over a connection of that host (``relay``). The commands of this machine by
which a launch begins run below a supervisor.

======= ============ ==================================================================
way     format       how it is started
======= ============ ==================================================================
none    none         here: a process for each rank (``local_ranks``)
none    mpirun.sh    here, if oneCCL needs an MPI to start the ranks
ssh     torchrun.sh  on every host, held there by ``remote/sent/hold.py``: that ends all
                     of it when its standard input ends
srun    slurm.sh     here, inside our allocation: its srun is a step of it
sbatch  slurm.sh     by Slurm, if ``verify --submit`` asks for it
mpirun  mpirun.sh    here; its daemons go through an ssh that hands our variables on
======= ============ ==================================================================

The baseline is held on its host, whichever way leads there.
"""

from __future__ import annotations

import ast
import contextlib
import os
import random
import re
import secrets
import shutil
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cputune.errors import CputuneError, UsageError
from cputune.host.facts import HostFacts
from cputune.host.remote.ask import ask_each, far_command, script_text, sent_lines
from cputune.host.remote.named import Node
from cputune.host.remote.reach import SSH_FAILED, Mpirun, Reach, Srun, Ssh
from cputune.inside import (
    ASK_VARIABLE,
    FORCE_VARIABLE,
    SCRATCH_VARIABLE,
    SOCKET_VARIABLE,
    TURNS_VARIABLE,
    recipe_script,
    root_directory,
    site_directory,
)
from cputune.inside.applying.force import Force
from cputune.inside.messages import RELAY
from cputune.plans.delivery.environment import rank_numbers
from cputune.plans.plan import Plan
from cputune.plans.workload import Workload
from cputune.ranks.failure import signal_name
from cputune.ranks.supervisor import bootstrap
from cputune.ranks.supervisor_main import Exit, RankCommand
from cputune.records.options import Cluster
from cputune.records.steps import HostLost, Infeasible, TrialError

if TYPE_CHECKING:
    from cputune.emitters import EmittedFile

# Variables that hold for one machine alone and are not sent to other hosts.
OWN_VARIABLES = (
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "HOSTNAME",
    "TMPDIR",
    "TEMP",
    "TMP",
    "XDG_RUNTIME_DIR",
    "SSH_CONNECTION",
    "SSH_CLIENT",
    "SSH_TTY",
    "SSH_AUTH_SOCK",
    "DISPLAY",
    "PWD",
    "OLDPWD",
    "_",
)

# The ports at which the ranks of a held launch may meet, below those that kernels assign.
PORTS = (20000, 32000)

PLACE_SECONDS = 30.0  # to unpack a launch on a host. Assumed.
# Stands for the folder in which a held launch is unpacked.
HERE = "{folder}"

SOCKET = "socket"
# Where ranks on hosts report: to a socket in the folder of the launch (``ranks/relay.py``).
RELAYED = f"{RELAY}{HERE}/{SOCKET}"

LAUNCH, LIBRARY = "launch", "lib"
SITE = f"{LIBRARY}/cputune/inside/site"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What an engine is given.

    Attributes:
        plan: what is launched.
        nodes: the hosts, in the order of the plan's nodes; none: this machine.
        files: the emitted files; the first is started. None if ``argv`` is given.
        argv: a command that is run unchanged, instead of an emitted file.
        variables: make its ranks report.
        report_socket: the path of a socket of this machine to which they report; empty: they do
            not, and what the launch writes is shown.
        environment: that of this process.
        folder: of this launch, on this machine; other hosts may have it at the same path.
    """

    plan: Plan
    nodes: tuple[Node, ...] = ()
    files: tuple[EmittedFile, ...] = ()
    argv: tuple[str, ...] = ()
    variables: Mapping[str, str]
    report_socket: str = ""
    environment: Mapping[str, str]
    folder: Path = Path()


@dataclass(frozen=True, slots=True)
class Held:
    """One command for each host, which holds the launch there (``remote/sent/hold.py``).

    ``format`` is the format that is emitted for it, and started.
    """

    reach: Reach
    format: str = "torchrun"

    def start(self, launch: Launch) -> list[RankCommand]:
        """The commands of this machine by which a launch begins."""
        ours = {}
        for name, value in launch.environment.items():
            if name not in OWN_VARIABLES:
                ours[name] = value
        reported = reporting(launch.variables, HERE, ours.get("PYTHONPATH"))
        meeting = str(random.randrange(*PORTS))
        started = launch.argv or ("bash", f"{HERE}/{LAUNCH}/{launch.files[0].name}")
        commands: list[RankCommand] = []
        for number, node in enumerate(launch.nodes):
            variables = {**ours, **reported}
            if launch.plan.nodes > 1:
                variables["NODE_RANK"], variables["PORT"] = str(number), meeting
            request = {
                **file_request(launch, all_files(launch)),
                "argv": [_moved(word) for word in started],
                "env": variables,
                "cwd": os.getcwd(),
                "shown": not launch.report_socket,
            }
            commands.append(
                {
                    "argv": list(self.reach.argv(node, far_command())),
                    "env": {**launch.environment, **self.reach.variables},
                    "input": sent_lines(script_text("hold.py"), request).decode(),
                    "relay": launch.report_socket,
                }
            )
        return commands

    def end(self, launch: Launch) -> None:
        """Nothing stays on a host once the command that leads there has ended."""

    def reason_of_end(self, launch: Launch, exits: Sequence[Exit]) -> TrialError | None:
        """Why it ended: the way to a host that dies (status above 128) means a lost host."""
        for exit in exits:
            node, status = launch.nodes[exit["rank"]], exit["status"]
            if status < 0:
                died = signal_name(-status)
                return HostLost(
                    node.name, f"{self.reach.name}, which connects to it, ended with {died}"
                )
            if status == SSH_FAILED:
                return HostLost(node.name, self.reach.explain(node, status, exit["tail"])[0])
        return None


@dataclass(frozen=True, slots=True)
class FromHere:
    """A script that is started on this machine alone, and reaches the other hosts by itself.

    Either by the script's own srun, a step of the Slurm allocation that we are in; or by its
    mpirun, whose daemons go through an ssh that hands our variables on.
    """

    reach: Reach
    format: str = "mpirun"

    def start(self, launch: Launch) -> list[RankCommand]:
        """The commands of this machine by which a launch begins. Raises HostLost."""
        folder, environment = launch.folder, launch.environment
        request = file_request(launch, all_files(launch))
        self._send_to_others(launch, script_text("place.py"), request)
        for name, text in request["files"].items():
            write(folder / name, text, 0o700 if name in request["programs"] else 0o600)
        (folder / "scratch").mkdir(exist_ok=True)
        reported = reporting(launch.variables, str(folder), environment.get("PYTHONPATH"))
        if isinstance(self.reach, Srun):
            reported["LAUNCH_DIR"] = str(folder / LAUNCH)
            reported["LAUNCH_NODES"] = ",".join(node.name for node in launch.nodes)
        elif launch.nodes:
            ssh = self.reach.words if isinstance(self.reach, Ssh) else ("ssh",)
            programs = ssh_handing_on(folder, reported, ssh, environment)
            reported["PATH"] = f"{programs}:{environment.get('PATH', os.defpath)}"
        script = str(folder / LAUNCH / launch.files[0].name)
        commands: list[RankCommand] = [
            {"argv": ["bash", script], "env": {**environment, **reported}}
        ]
        if not launch.report_socket:
            return commands
        if launch.nodes and launch.report_socket != str(folder / SOCKET):
            (folder / SOCKET).symlink_to(launch.report_socket)
        for node in self._others(launch):
            relay = {"relay": str(folder / SOCKET), "place": script_text("place.py")}
            commands.append(
                {
                    "argv": list(self.reach.argv(node, far_command())),
                    "env": {**environment, **self.reach.variables},
                    "input": sent_lines(script_text("hold.py"), relay).decode(),
                    "relay": launch.report_socket,
                    "host": node.name,
                }
            )
        return commands

    def _others(self, launch: Launch) -> list[Node]:
        return [node for node in launch.nodes if not is_here(node.name)]

    def end(self, launch: Launch) -> None:
        """Remove the files from every other host; a host that is lost keeps them."""
        with contextlib.suppress(CputuneError, HostLost):
            self._send_to_others(launch, script_text("place.py"), file_request(launch, None))

    def reason_of_end(self, launch: Launch, exits: Sequence[Exit]) -> TrialError | None:
        """The host that one command for all names as it ends: a way or a node has failed."""
        for exit in exits:
            if exit["status"] == 0:
                continue
            for node in launch.nodes:
                lines = [line for line in exit["tail"].splitlines() if node.name in line]
                if LOST.search("\n".join(lines)):
                    reason = self.reach.explain(node, exit["status"], lines[-1])[0]
                    return HostLost(node.name, reason)
        return None

    def _send_to_others(self, launch: Launch, script: str, request: Mapping[str, object]) -> None:
        """Raise HostLost if another host gives no answer: its ranks will not come up."""
        for answer in ask_each(
            self._others(launch), self.reach, script, lambda _: request, PLACE_SECONDS
        ):
            if answer.unreachable is not None:
                raise HostLost(answer.node.name, answer.unreachable.reason)


# Starts a launch, ends it, and says why it ended.
Engine = Held | FromHere


def engine_of(reach: Reach, plan: Plan) -> Engine:
    """The engine for this way to hosts; a command as typed, or on one host, is held there."""
    if isinstance(reach, Srun) and not plan.as_found:
        return FromHere(reach, "slurm")
    if isinstance(reach, Mpirun):
        return FromHere(reach) if plan.nodes > 1 else Held(reach, "mpirun")
    return Held(reach)


# How srun, hydra, Open MPI and ssh report that a host is gone; the line contains its name.
LOST = re.compile(
    r"(?i)node failure|NODE_FAIL|not responding|No route to host|Connection (timed out|refused|"
    r"reset|closed)|lost connection|unreachable|Could not resolve hostname|daemon.*terminated"
)


# Starts on this machine what an MPI has to start: the emitted launch.
BY_MPIRUN = FromHere(Mpirun(dialect="intelmpi"))


# Waits until the job of this name runs; then a step of it begins.
JOB_STEP = """
until id=$(squeue --noheader --states=RUNNING --name="$0" --format=%A </dev/null) && [ -n "$id" ]
do
  sleep 1
done
export SLURM_JOB_ID="$id"
exec "$@"
"""


def batch_job(
    sbatch: Sequence[str],
    *,
    name: str,
    nodes: int,
    reporting: Mapping[str, str],
    environment: Mapping[str, str],
) -> list[RankCommand]:
    """The commands by which a batch job on this many nodes begins and reports to us.

    Its ranks connect to a socket on their node, in a folder that no other launch has. On each node
    a step of the job copies what they send to the socket of ``reporting`` (``ranks/relay.py``).
    """
    folder = f"/tmp/{name}-{secrets.token_hex(8)}"
    path = f"{folder}/{SOCKET}"
    variables = {**environment, **reporting, SOCKET_VARIABLE: f"{RELAY}{path}"}
    commands: list[RankCommand] = [{"argv": list(sbatch), "env": on_python_path(variables)}]
    ours = {}
    for variable, value in environment.items():
        if variable == "SLURM_CONF" or not variable.startswith("SLURM_"):
            ours[variable] = value
    question = {"relay": path, "place": script_text("place.py")}
    for number in range(nodes):
        step = Srun().on_node(number, far_command())
        commands.append(
            {
                "argv": ["sh", "-c", JOB_STEP, name] + list(step),
                "env": ours,
                "input": sent_lines(script_text("hold.py"), question).decode(),
                "relay": reporting[SOCKET_VARIABLE],
                "host": "",
            }
        )
    return commands


def needs_mpirun(plan: Plan) -> bool:
    """Whether a launcher has to start the ranks: with oneCCL they find each other by MPI."""
    return plan.backend == "ccl" and plan.world_size > 1


def trial_variables(
    report_to: str, scratch: str | Path, force: Force | None, questions: Sequence[str] = ()
) -> dict[str, str]:
    """The variables by which a rank knows that it is measured, and what it sets in the script.

    After each step the rank waits for leave to take another. ``questions``: those to its model.
    """
    return {
        ASK_VARIABLE: ",".join(questions),
        SOCKET_VARIABLE: report_to,
        SCRATCH_VARIABLE: str(scratch),
        FORCE_VARIABLE: "" if force is None else force.to_json(),
        TURNS_VARIABLE: "1",
    }


def local_ranks(
    plan: Plan,
    argv: Sequence[str],
    environment: Mapping[str, str],
    holder: socket.socket,
    *,
    fork: bool = False,
) -> list[RankCommand]:
    """The ranks of a plan as processes of this machine, bound before they load anything.

    ``argv`` is the command of a rank; of a fork of the supervisor, the script and its arguments.
    They meet at the port that ``holder`` reserves.
    """
    port = int(holder.getsockname()[1])
    commands: list[RankCommand] = []
    for rank in range(plan.processes_per_node):
        command: RankCommand = {
            "argv": list(argv),
            "env": {**rank_numbers(plan, rank, port), **environment},
            "cpus": None if plan.as_found else list(plan.cpus[rank]),
            "fork": fork,
        }
        commands.append(command)
    return commands


def python_command(python: str, argv: Sequence[str]) -> list[str]:
    """``python SCRIPT ARGS``, measured: the hooks are set before the script runs."""
    code = bootstrap("cputune.inside.hooks", "sys.exit(run_script(sys.argv[1:]))")
    return [python, "-c", code, *argv]


def on_python_path(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which every Python process sets its hooks as it starts."""
    others = environment.get("PYTHONPATH")
    site = str(site_directory())
    return {**environment, "PYTHONPATH": f"{site}:{others}" if others else site}


def held_port() -> socket.socket:
    """A socket that reserves a free port: bound, not listening, so no other process gets the port.

    Rank 0 can still listen on the port, since both set SO_REUSEADDR (socket(7)).
    """
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("", 0))
    return holder


def render_for(
    engine: Engine,
    plan: Plan,
    workload: Workload,
    facts: HostFacts,
    nodes: Sequence[Node] = (),
    interface: str | None = None,
    *,
    guard: bool = False,
) -> tuple[EmittedFile, ...]:
    """The launch that ``emit`` writes for this plan on these hosts. Raises Infeasible.

    Trials compare their ranks themselves; ``guard``: the launch does.
    """
    from cputune.emitters import Emission, render  # slow to import, and `run` has no need of it

    emission = Emission(
        facts=facts,
        hosts=tuple(nodes) if plan.nodes > 1 else (),
        python=facts.training_python.executable,
        cluster=Cluster(interface=interface if plan.nodes > 1 else None),
        mpi=engine.reach.dialect if isinstance(engine.reach, Mpirun) else None,
        no_guard=not guard,
    )
    try:
        return render(plan, workload, engine.format, emission)
    except UsageError as error:
        raise Infeasible(f"{error}: {error.hint}" if error.hint else str(error)) from error


def is_here(host: str) -> bool:
    """Whether a host is this machine: by its name, or because an address of it can be bound."""
    if host == socket.gethostname():
        return True
    with contextlib.suppress(OSError, UnicodeError):
        for family, kind, _, _, place in socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
                probe.bind(place)
                return True
    return False


def reporting_files() -> dict[str, str]:
    """The files of cputune that ranks load, so that hosts need no installation of it.

    Docstrings, the types of arguments and imports for them are left out: what is sent has to be
    short (``sent_lines``). A launch over hosts is not rehearsed.
    """
    package = root_directory() / "cputune"
    files = {f"{LIBRARY}/cputune/__init__.py": ""}
    for path in (package / "inside").rglob("*.py"):
        if path.name not in ("rehearsing.py", "trained_weights.py"):
            files[f"{LIBRARY}/cputune/{path.relative_to(package)}"] = _code_alone(path)
    return files


def _code_alone(path: Path) -> str:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            continue
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        node.body = [line for line in node.body if not _is_for_readers(line)] or [ast.Pass()]
        if not isinstance(node, ast.ClassDef):  # there a type makes a field
            node.body = [_without_type(line) for line in node.body]
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for line in list(tree.body):
        if isinstance(line, ast.ImportFrom) and line.module != "__future__":
            line.names = [name for name in line.names if (name.asname or name.name) in used]
            if not line.names:
                tree.body.remove(line)
    return ast.unparse(ast.fix_missing_locations(tree))


def _without_type(line: ast.stmt) -> ast.stmt:
    if isinstance(line, ast.AnnAssign) and line.value is not None:
        return ast.Assign(targets=[line.target], value=line.value)
    return line


def _is_for_readers(line: ast.stmt) -> bool:
    """Whether a line is a text, or for type checkers: an import, an alias, a TypedDict."""
    if isinstance(line, ast.If):
        return isinstance(line.test, ast.Name) and line.test.id == "TYPE_CHECKING"
    if isinstance(line, ast.AnnAssign):
        return isinstance(line.annotation, ast.Name) and line.annotation.id == "TypeAlias"
    if isinstance(line, ast.ClassDef):
        return any(isinstance(base, ast.Name) and base.id == "TypedDict" for base in line.bases)
    value = line.value if isinstance(line, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def all_files(launch: Launch) -> dict[str, str]:
    """Every file of a launch by its path in the folder.

    An emitted one has its recipe's script, its rank.py, and its apply_plan.py with the guard and
    what loads batches.
    """
    files = reporting_files()
    if launch.files:
        of_plan = [f"applying/{name}.py" for name in ("__main__", "guard", "dispatch")]
        for name in (recipe_script().name, "rank.py", *of_plan):
            del files[f"{LIBRARY}/cputune/inside/{name}"]
    for file in launch.files:
        files[f"{LAUNCH}/{file.name}"] = file.text
    return files


def file_request(launch: Launch, files: Mapping[str, str] | None) -> dict[str, Any]:
    """The request to ``remote/sent``: put files into the launch's folder; None: remove it.

    There an operator's programs are executable.
    """
    programs = [f"{LAUNCH}/{file.name}" for file in launch.files if file.executable]
    return {"folder": str(launch.folder), "files": files, "programs": programs}


def write(path: Path, text: str, mode: int = 0o600) -> None:
    """Write a file and its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)


def reporting(variables: Mapping[str, str], folder: str, others: str | None) -> dict[str, str]:
    """The variables of a launch that reports, if its folder is at this path."""
    path = f"{folder}/{SITE}"
    placed = {name: value.replace(HERE, folder) for name, value in variables.items()}
    return {**placed, "PYTHONPATH": f"{path}:{others}" if others else path}


def _moved(word: str) -> str:
    """The path of a file of cputune in the folder of the launch."""
    here = f"{root_directory()}/cputune/"
    return f"{HERE}/{LIBRARY}/cputune/{word[len(here) :]}" if word.startswith(here) else word


# An ssh that hands variables on. The command becomes one word for a shell, because Open MPI's is a
# line of several commands.
SSH = """#!{python}
import os, shlex, sys
words, at = sys.argv[1:], 0
while at < len(words) and words[at].startswith("-"):
    at += 2 if words[at][1:] in set("BbcDEeFIiJLlmOopQRSWw") else 1
command = words[at + 1 :]
if command:
    given = [shlex.quote(n + "=" + os.environ[n]) for n in {passed_on!r} if n in os.environ]
    command = ["env", *given, "sh", "-c", shlex.quote(" ".join(command))]
os.execv({ssh!r}[0], [*{ssh!r}, *words[: at + 1], *command])
"""


def ssh_handing_on(
    folder: Path, passed_on: Iterable[str], ssh: Sequence[str], environment: Mapping[str, str]
) -> str:
    """A folder with an ssh that hands variables on; it is put first on PATH.

    Open MPI hands no variables on unasked. This ssh also takes the options by which the user
    reaches hosts.
    """
    program = shutil.which(ssh[0], path=environment.get("PATH")) or ssh[0]
    text = SSH.format(python=sys.executable, passed_on=tuple(passed_on), ssh=[program, *ssh[1:]])
    write(folder / "bin" / "ssh", text, 0o700)
    return str(folder / "bin")
