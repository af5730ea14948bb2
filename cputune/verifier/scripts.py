"""Launch scripts: read by bash and shellcheck, run by their launchers for a few steps.

Of a batch script Slurm is asked first whether it would run (``sbatch --test-only``, which submits
nothing). The job itself is submitted where every node of the cluster is this machine, and else only
where that is asked for: a job on a shared cluster costs other people's time.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cputune.emitters import EmittedFile
from cputune.errors import CputuneError
from cputune.host import Command, Completed, Host, read_document
from cputune.inside import SCRATCH_VARIABLE
from cputune.plan import Plan
from cputune.ranks.engines import HERE, FromHere, Held, Launch, is_here, own_address
from cputune.ranks.launched import Begin, Launched, observe
from cputune.ranks.supervisor_main import RankCommand
from cputune.ranks.work_folder import WorkFolder
from cputune.remote.ask import ask_each
from cputune.remote.named import Node
from cputune.remote.reach import Ssh
from cputune.steps import TrialError
from cputune.verifier.checks import SLOWEST_RATIO, outcomes, throughput, throughput_check
from cputune.verifier.records import (
    FAILED,
    PASSED,
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


TUNED = re.compile(r"^tuned=(.+)$", re.MULTILINE)
"""How an emitted script names the interpreter of the tuning."""
ASK_SECONDS = 60.0


def run_script(artefact: Artefact, expected: Expected, host: Host) -> Answer:
    """Run the script as it is, and compare what its ranks saw with the plan.

    What the script needs and does not find it says itself.
    """
    plan, consumer = expected.plan, artefact.format
    environment = host.environment()
    python, gone = interpreter(artefact, environment, host)
    if not expected.run:
        yield not_run()
        return
    if plan is None:
        yield no_plan(consumer)
        return
    if plan.nodes > 1:
        yield from over_hosts(artefact, expected, plan, consumer, python, environment)
    else:
        command = Command(argv=("bash", str(artefact.path.resolve())), environment=environment)
        yield from measured([command], expected, plan, consumer, interpreter=python)
    yield from gone


def over_hosts(
    artefact: Artefact,
    expected: Expected,
    plan: Plan,
    consumer: str,
    python: str | None,
    environment: Mapping[str, str],
) -> Answer:
    """One launch on the hosts that it names, as a trial is run there; or why it cannot be.

    The engine of a trial brings the launch's files, and what makes its ranks report.
    """
    nodes, reach = tuple(Node(name=host) for host in expected.hosts), Ssh(words=expected.ssh)
    if len(nodes) != plan.nodes:
        why = f"it starts ranks on {plan.nodes} nodes, and does not say which hosts those are"
        yield not_checked("launch", why, "cputune emit --hosts a,b writes them down", consumer)
        return
    try:
        for one in ask_each(nodes, reach, "print('{}')", lambda _: {}, REACH_SECONDS):
            if one.unreachable is not None and not is_here(one.node.name):
                raise one.unreachable
    except CputuneError as error:
        yield not_checked("launch", str(error), error.hint, consumer)
        return
    engine = Held(reach) if artefact.format == "torchrun" else FromHere(reach)
    with WorkFolder() as work:
        launch = Launch(
            plan=plan,
            nodes=nodes,
            files=_with_companions(artefact),
            variables={},
            environment=environment,
            folder=work.path / "launch",
        )

        def begin(reporting: Mapping[str, str]) -> Sequence[RankCommand]:
            told = {**reporting, SCRATCH_VARIABLE: f"{HERE}/scratch"}
            return engine.start(replace(launch, variables=told))

        try:
            address = own_address(expected.hosts)
            yield from measured(
                begin, expected, plan, consumer, interpreter=python, address=address
            )
        finally:
            engine.end(launch)


COMPANIONS = re.compile(r"(rank|carry|train|in_torch|padding)\.py|.*\.(json|yaml)|hosts\..*")


def _with_companions(artefact: Artefact) -> tuple[EmittedFile, ...]:
    """The script, and of what lies beside it the files that a launch may need."""
    beside = [path for path in artefact.path.parent.iterdir() if COMPANIONS.fullmatch(path.name)]
    others = (EmittedFile(name=one.name, text=read_document(one)) for one in sorted(beside))
    return (EmittedFile(name=artefact.path.name, text=artefact.text, executable=True), *others)


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
) -> Answer:
    """Start a launch, and judge what its ranks saw and how fast they were.

    One that is slower than the tuned trial is started once more, and the faster run
    counts: what else runs on a machine can only slow it down. ``address`` is where ranks of
    other hosts reach this one.
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
) -> tuple[str | None, tuple[Outcome, ...]]:
    """The interpreter that a script is to take: PYTHON, else the one of the tuning.

    None where any will do. Where the one of the tuning is not here, the launch is another than the
    one that was measured, and the outcome says so.
    """
    found = TUNED.search(artefact.text)
    tuned = shlex.split(found[1])[0] if found else None
    chosen = environment.get("PYTHON", tuned)
    python = chosen and host.which(chosen)
    if python or chosen is None:
        return python, ()
    why = f"the plan was tuned with {chosen}, which is not here"
    return None, (not_checked("interpreter", why, "set PYTHON to the interpreter that trains"),)


def not_run() -> Outcome:
    """What is said where launches shall not be run."""
    return not_checked("launch", "it was not run, as asked", "cputune verify without --no-run")


def no_plan(consumer: str) -> Outcome:
    """What is said where nobody knows what the launch should do."""
    why = "the file does not say its plan, and there is no result file beside it"
    return not_checked("launch", why, "give it with --result cputune.json", consumer)


INSTALL_SLURM = "apt-get install slurm-client, or run this on a login node"
NO_CONTROLLER = (
    "Unable to contact slurm controller",
    "Unable to establish controller machine",
    "Could not establish a configuration source",
    "Unable to process configuration file",
    "resolve_ctls_from_dns_srv",
    "error reading slurm.conf",
)


def submit_script(artefact: Artefact, expected: Expected, host: Host) -> Answer:
    """``sbatch --test-only``, and the job itself on a cluster that is this machine."""
    if host.which("sbatch") is None:
        yield not_installed("sbatch --test-only", "sbatch", INSTALL_SLURM)
        return
    consumer = _slurm(("sbatch", "--version"), host).stdout.strip() or "slurm"
    tested = test_only(artefact.path, consumer, host)
    yield tested
    if tested.state != PASSED:
        return
    plan, others = expected.plan, _other_nodes(host) if expected.run else []
    if not expected.run:
        yield not_run()
    elif plan is None:
        yield no_plan(consumer)
    elif others and not expected.submit:
        why = f"not submitted: the cluster has other machines than this: {others[0]}"
        yield not_checked("launch", why, f"cputune verify --submit {artefact.path}", consumer)
    else:
        python, gone = interpreter(artefact, host.environment(), host)
        expected = replace(expected, hosts=tuple(others))
        yield from _run_batch(artefact.path, expected, plan, consumer, python, host)
        yield from gone


def test_only(path: Path, consumer: str, host: Host) -> Outcome:
    """Whether the cluster would ever run this script."""
    name = "sbatch --test-only"
    done = _slurm(("sbatch", "--test-only", str(path.resolve())), host)
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    first = said[-1] if said else f"ended with {done.returncode}"
    if any(phrase in line for line in said for phrase in NO_CONTROLLER):
        why = f"no cluster answers: {said[0]}"
        return not_checked(name, why, "run this on a login node of the cluster", consumer)
    refused = [Evidence(what="sbatch", seen=line) for line in said or [first]]
    return judged(name, consumer, refused if done.returncode else (), first, wrong=first)


def _run_batch(
    path: Path, expected: Expected, plan: Plan, consumer: str, python: str | None, host: Host
) -> Answer:
    name = f"cputune-verify-{os.getpid()}-{path.stem}"
    with WorkFolder() as work:
        output = work.path / "job.out"
        own = ("sbatch", "--wait", f"--job-name={name}", f"--output={output}")
        command = Command(argv=(*own, str(path.resolve())), environment=host.environment())
        try:
            yield from measured(
                [command],
                expected,
                plan,
                consumer,
                interpreter=python,
                dealt_out=True,
                logs=[output],
                address=own_address(_addresses(host)) if expected.hosts else None,
            )
        finally:
            _slurm(("scancel", f"--name={name}"), host)


def _other_nodes(host: Host) -> list[str]:
    """The nodes of the cluster that are not this machine."""
    names = _slurm(("sinfo", "--noheader", "--Node", "--format=%N"), host).stdout.split()
    here = {socket.gethostname(), socket.gethostname().partition(".")[0], "localhost"}
    return sorted(set(names) - here) if names else ["none that sinfo knows"]


def _addresses(host: Host) -> list[str]:
    """Where the nodes of the cluster are reached (NodeAddr)."""
    return _slurm(("sinfo", "--noheader", "--Node", "--format=%o"), host).stdout.split()


def _slurm(argv: tuple[str, ...], host: Host) -> Completed:
    with contextlib.suppress(OSError):
        return host.run(Command(argv=argv, timeout_seconds=ASK_SECONDS))
    return Completed(returncode=127, stdout="", stderr=f"{argv[0]} did not start", seconds=0.0)
