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
from cputune.ranks.engines import own_address
from cputune.ranks.launched import observe
from cputune.ranks.work_folder import WorkFolder
from cputune.verifier.checks import own_affinity
from cputune.verifier.records import (
    PASSED,
    Artefact,
    ConsumerAnswer,
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


class SlurmConsumer:
    """sbatch, and srun inside the job."""

    def answer(self, artefact: Artefact, expected: Expected, host: Host) -> ConsumerAnswer:
        """``sbatch --test-only``, and the job itself on a cluster that is this machine."""
        if host.which("sbatch") is None:
            return ConsumerAnswer(checks=(not_installed("sbatch --test-only", "sbatch", INSTALL),))
        consumer = _version(host)
        tested = test_only(artefact.path, consumer, host)
        if tested.state != PASSED:
            return ConsumerAnswer(checks=(tested,))
        if not expected.run:
            return ConsumerAnswer(checks=(tested, not_run()))
        if expected.plan is None:
            return ConsumerAnswer(checks=(tested, no_plan(consumer)))
        others = _other_nodes(host)
        if others and not expected.submit:
            why = f"not submitted: the cluster has other machines than this: {others[0]}"
            remedy = f"cputune verify --submit {artefact.path}"
            return ConsumerAnswer(checks=(tested, not_checked("launch", why, remedy, consumer)))
        python, gone = interpreter(artefact, host.environment(), host)
        expected = replace(expected, hosts=tuple(others))
        run = _run(artefact.path, expected, consumer, None if gone else python, host)
        checks = (tested, *run.checks, *((gone,) if gone else ()))
        return ConsumerAnswer(checks=checks, throughput=run.throughput)


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
    path: Path, expected: Expected, consumer: str, python: str | None, host: Host
) -> ConsumerAnswer:
    plan = expected.plan
    assert plan is not None
    name = f"cputune-verify-{os.getpid()}-{path.stem}"
    with WorkFolder() as work:
        output = work.path / "job.out"
        command = Command(
            argv=(
                *("sbatch", "--wait", f"--job-name={name}", f"--output={output}"),
                str(path.resolve()),
            ),
            environment=host.environment(),
        )
        try:
            return measured(
                lambda: observe(
                    [command],
                    ranks=plan.world_size,
                    steps=expected.steps,
                    timeout_seconds=expected.timeout_seconds,
                    logs=[output],
                    show=expected.environment or (),
                    host=own_address(_addresses(host)) if expected.hosts else None,
                ),
                expected,
                plan,
                consumer,
                affinity=own_affinity,
                interpreter=python,
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


def _version(host: Host) -> str:
    text = _ask(("sbatch", "--version"), host).stdout.strip()
    return text or "slurm"


def _ask(argv: tuple[str, ...], host: Host) -> Completed:
    with contextlib.suppress(OSError):
        return host.run(Command(argv=argv, timeout_seconds=ASK_SECONDS))
    return Completed(returncode=127, stdout="", stderr=f"{argv[0]} did not start", seconds=0.0)
