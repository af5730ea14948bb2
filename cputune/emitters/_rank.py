#!/usr/bin/env python3
"""Start one rank on its own CPUs, then become the training script.

    rank.py --launcher mpi --cpus 0-13/14-27 -- train.py --its-arguments

Launchers differ in what they bind and in how they number ranks; this file makes the same
of all of them. It needs Python 3.8 and nothing else, and replaces itself (exec).

--launcher  who numbers the ranks: mpi, slurm or torch. RANK, LOCAL_RANK, WORLD_SIZE and
            LOCAL_WORLD_SIZE are set from its variables. A job of one rank has no numbers:
            with LOCAL_RANK=0 accelerate wraps the model of a lone process in DDP.
--cpus      the CPUs of each local rank, as kernel lists between slashes.
--bind      exact:   take those CPUs, or fail (this is the default);
            offered: take them where they are allowed, else keep what the launcher bound;
            pod=N:   CPU numbers mean nothing in a container: where it has CPUs of its own
                     (no more than the N it asked for) cut them into one share per rank, by
                     sockets, NUMA nodes and cores (place.py), else leave it to the kernel.
--look      only look whether the CPUs of all local ranks can be had here, and start nothing.
--which A,B only print which of these hosts this one is, from 0: by its name and addresses.
--set K=V   set a variable that the launcher overwrites; --unset K removes one.

A rank of MPI that cannot run ends the others, on all hosts: it asks hydra for an abort (PMI-1), and
dies of a signal. After a mere exit status its ranks wait, those of Intel MPI after a signal too.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NoReturn

HEARD_SECONDS = 1.0
"""hydra passes a rank's message on well within this; what it has not read at an abort is lost."""
ABORT_SECONDS = 1.0
"""hydra ends a rank that asked for an abort well within this."""

TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
NUMBERING = {
    # in the order of TORCH
    "mpi": (
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
        (
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
        ),
    ),
    "slurm": (("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""),),
    "torch": (TORCH,),
}


EXAMPLE = "for example: rank.py --launcher mpi --cpus 0-3/4-7 --bind exact -- train.py"


class RankError(Exception):
    """What is wrong, and what to do about it."""


def say(reason: str, hint: str) -> None:
    sys.stderr.write(f"error: {reason}\nhint: {hint}\n")
    sys.stderr.flush()


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise RankError(message, EXAMPLE)


def options_of(words: list[str]) -> argparse.Namespace:
    """The options, and behind ``--`` the command."""
    own = words[: words.index("--")] if "--" in words else words
    parser = Parser(allow_abbrev=False, add_help=False)
    parser.add_argument("--launcher", choices=tuple(NUMBERING), default="torch")
    parser.add_argument("--bind", default="exact")
    parser.add_argument("--cpus", default="")
    parser.add_argument("--which")
    parser.add_argument("--look", action="store_true")
    for name in ("--set", "--unset"):
        parser.add_argument(name, action="append", default=[])
    options, unknown = parser.parse_known_args(own)
    if unknown:
        raise RankError(f"rank.py does not know {unknown[0]!r}", EXAMPLE)
    options.command = words[len(own) + 1 :]
    if not (options.command or options.look or options.which):
        raise RankError("rank.py was given no command", EXAMPLE)
    return options


def number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 7):
        raise RankError(f"{what} is a whole number, not {text!r}", EXAMPLE)
    return int(text)


def variable(name: str, usual: str) -> int:
    return number(os.environ.get(name, usual), name)


def parse(text: str) -> set[int]:
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        low = number(first, "a CPU")
        cpus.update(range(low, number(last or first, "a CPU") + 1))
    if not cpus:
        raise RankError(f"{text!r} is no list of CPUs", EXAMPLE)
    return cpus


def render(cpus: set[int]) -> str:
    return ",".join(str(cpu) for cpu in sorted(cpus))


def number_ranks(launcher: str, local_size: int) -> int:
    """Set the four variables that torch reads; return the local rank."""
    for names in NUMBERING[launcher]:
        rank, world, local_rank, local_world = (os.environ.get(name) for name in names)
        if rank is None or local_rank is None:
            continue
        values = (rank, world or "1", local_rank, local_world or str(local_size))
        os.environ.update(zip(TORCH, values))  # noqa: B905 - Python 3.8
        if values[1] == "1":
            for name in TORCH:
                del os.environ[name]
        return number(local_rank, names[2])
    if launcher == "torch":
        return 0  # a process that nobody numbered is alone
    tried = " or ".join(names[0] for names in NUMBERING[launcher])
    raise RankError(f"the launcher did not set {tried}", "start this through the launch script")


def bind(cpus: str, local_rank: int, exact: bool) -> None:
    wanted, before = parse(cpus), os.sched_getaffinity(0)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, wanted)
    if os.sched_getaffinity(0) == wanted:
        return
    os.sched_setaffinity(0, before)
    what = f"rank {local_rank} cannot have CPUs {render(wanted)}, it may use {render(before)}"
    if exact:
        raise RankError(
            what, "the plan is of another machine or a larger cpuset: tune where it runs"
        )
    sys.stderr.write(f"note: {what}; it keeps those\n")


def look(shares: list[str]) -> None:
    """Whether every local rank can have its CPUs, said before a launcher binds anything."""
    before = os.sched_getaffinity(0)
    for local_rank, cpus in enumerate(shares):
        bind(cpus, local_rank, True)
    wanted = set().union(*map(parse, shares))
    if not wanted <= before:
        sys.stderr.write(
            f"note: this launch was bound to CPUs {render(before)} (taskset, numactl); its ranks "
            f"leave those for the plan's, {render(wanted)}\n"
        )


def share_pod(local_size: int, local_rank: int, asked: int) -> None:
    """Cut the CPUs of a container as the plan was cut: no rank astride sockets (place.py)."""
    import place  # type: ignore[import-not-found]

    allowed = os.sched_getaffinity(0)
    workers, threads = variable("CCL_WORKER_COUNT", "0"), variable("OMP_NUM_THREADS", "1")
    shares = None
    if len(allowed) <= asked:
        shares = place.pod_shares(place.seen_cores(allowed), local_size, threads, workers)
    if shares is None:
        if local_rank == 0:
            sys.stderr.write(
                f"note: this container has no CPUs of its own (it may use {len(allowed)}, "
                f"asked for {asked}): ranks are not bound\n"
            )
        return
    os.sched_setaffinity(0, shares[local_rank][0])
    if workers:
        ids = [str(cpu) for _, own in shares for cpu in own]
        os.environ["CCL_WORKER_AFFINITY"] = ",".join(ids)


def is_here(host: str) -> bool:
    """Whether a host is this one: by its name, else because an address of it can be bound."""
    if host in (os.environ.get("SLURMD_NODENAME"), socket.gethostname()):
        return True
    with contextlib.suppress(OSError, UnicodeError):
        for family, kind, _, _, address in socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
                probe.bind(address)
                return True
    return False


def which(hosts: str) -> int:
    """Which of the hosts this is."""
    here = [position for position, name in enumerate(hosts.split(",")) if is_here(name)]
    if len(here) != 1:
        name, known = socket.gethostname(), hosts.replace(",", ", ")
        raise RankError(
            f"this host, {name}, is not one alone of {known}",
            "NODE_RANK=0 on the first of them, 1 on the next, and so on",
        )
    return here[0]


def main() -> None:
    options = options_of(sys.argv[1:])
    if options.which:
        print(which(options.which))
        return
    shares = options.cpus.split("/") if options.cpus else []
    if options.look:
        look(shares)
        return
    pod = options.bind.startswith("pod=")
    if not pod and options.bind not in ("exact", "offered"):
        raise RankError(f"--bind is exact, offered or pod=N, not {options.bind!r}", EXAMPLE)
    local_size = variable("LOCAL_WORLD_SIZE", "1") if pod else len(shares) or 1
    local_rank = number_ranks(options.launcher, local_size)
    for name in options.unset:
        os.environ.pop(name, None)
    for change in options.set:
        name, _, value = change.partition("=")
        os.environ[name] = value
    try:
        take_place(options.bind, shares, local_rank, local_size)
    except RankError as error:
        if options.launcher != "mpi" or "RANK" not in os.environ:
            raise
        say(f"{socket.gethostname()}: {error.args[0]}", error.args[1])
        end_all_ranks()
    os.execv(sys.executable, [sys.executable, *options.command])


def end_all_ranks() -> NoReturn:
    """Have mpirun end the ranks of all hosts: by PMI's abort under hydra, else by a signal."""
    with contextlib.suppress(OSError, ValueError):  # no hydra, or it closed the line
        line = int(os.environ.get("PMI_FD", ""))
        time.sleep(HEARD_SECONDS)
        os.write(line, b"cmd=abort exitcode=3\n")
        time.sleep(ABORT_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    sys.exit(3)


def take_place(binding: str, shares: list[str], local_rank: int, local_size: int) -> None:
    """Bind this rank, and see that it has what it needs."""
    if local_rank >= local_size:
        raise RankError(
            f"local rank {local_rank} has no CPUs: the plan has {local_size} ranks on a node",
            "start as many ranks as the launch script does",
        )
    if binding.startswith("pod="):
        share_pod(local_size, local_rank, number(binding[4:], "N of --bind pod=N"))
    elif shares:
        bind(shares[local_rank], local_rank, binding == "exact")
    for library in os.environ.get("LD_PRELOAD", "").replace(":", " ").split():
        if "/" in library and not os.path.isfile(library):
            raise RankError(
                f"the plan preloads {library}, which is not here", "install it here too"
            )
    if os.environ.get("CCL_PROCESS_LAUNCHER") == "none":
        os.environ["CCL_LOCAL_RANK"] = str(local_rank)
        os.environ["CCL_LOCAL_SIZE"] = str(local_size)


if __name__ == "__main__":
    try:
        main()
    except RankError as error:
        say(*error.args)
        sys.exit(3)
    except (OSError, ValueError) as error:  # a variable or an argument that the system refuses
        say(str(error), EXAMPLE)
        sys.exit(3)
