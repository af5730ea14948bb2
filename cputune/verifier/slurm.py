"""Batch scripts, asked of Slurm: would it run, and does it.

``sbatch --test-only`` submits nothing. The job itself is submitted where every node of the
cluster is this machine, and else only where that is asked for: a job on a shared cluster costs
other people's time.
"""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import replace
from pathlib import Path

from cputune.host import Command, Completed, Host
from cputune.plan import Plan
from cputune.ranks.engines import own_address
from cputune.ranks.work_folder import WorkFolder
from cputune.verifier.records import (
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
from cputune.verifier.scripts import interpreter, measured, no_plan, not_run

INSTALL = "apt-get install slurm-client, or run this on a login node"
ASK_SECONDS = 60.0
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
        yield not_installed("sbatch --test-only", "sbatch", INSTALL)
        return
    consumer = _ask(("sbatch", "--version"), host).stdout.strip() or "slurm"
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
        yield from _run(artefact.path, expected, plan, consumer, None if gone else python, host)
        if gone is not None:
            yield gone


def test_only(path: Path, consumer: str, host: Host) -> Outcome:
    """Whether the cluster would ever run this script."""
    name = "sbatch --test-only"
    done = _ask(("sbatch", "--test-only", str(path.resolve())), host)
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    first = said[-1] if said else f"ended with {done.returncode}"
    if any(phrase in line for line in said for phrase in NO_CONTROLLER):
        why = f"no cluster answers: {said[0]}"
        return not_checked(name, why, "run this on a login node of the cluster", consumer)
    refused = [Evidence(what="sbatch", seen=line) for line in said or [first]]
    return judged(name, consumer, refused if done.returncode else (), first, wrong=first)


def _run(
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
            _ask(("scancel", f"--name={name}"), host)


def _other_nodes(host: Host) -> list[str]:
    """The nodes of the cluster that are not this machine."""
    names = _ask(("sinfo", "--noheader", "--Node", "--format=%N"), host).stdout.split()
    here = {socket.gethostname(), socket.gethostname().partition(".")[0], "localhost"}
    return sorted(set(names) - here) if names else ["none that sinfo knows"]


def _addresses(host: Host) -> list[str]:
    """Where the nodes of the cluster are reached (NodeAddr)."""
    return _ask(("sinfo", "--noheader", "--Node", "--format=%o"), host).stdout.split()


def _ask(argv: tuple[str, ...], host: Host) -> Completed:
    with contextlib.suppress(OSError):
        return host.run(Command(argv=argv, timeout_seconds=ASK_SECONDS))
    return Completed(returncode=127, stdout="", stderr=f"{argv[0]} did not start", seconds=0.0)
