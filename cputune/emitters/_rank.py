#!/usr/bin/env python3
"""Start one rank on its own CPUs, then become the training script.

    rank.py --launcher mpi --cpus 0-13/14-27 -- train.py --its-arguments

Launchers differ in what they bind and in how they number ranks; this file makes the same
of all of them. It needs Python 3.7 and nothing else, and replaces itself (exec).

--launcher  who numbers the ranks: mpi, slurm or torch. RANK, LOCAL_RANK, WORLD_SIZE and
            LOCAL_WORLD_SIZE are set from its variables. A job of one rank has no numbers:
            with LOCAL_RANK=0 accelerate wraps the model of a lone process in DDP.
--cpus      the CPUs of each local rank, as kernel lists between slashes.
--bind      exact:   take those CPUs, or fail (this is the default);
            offered: take them where they are allowed, else keep what the launcher bound;
            pod=N:   CPU numbers mean nothing in a container: where it has CPUs of its own
                     (no more than the N it asked for) cut them into one share per rank,
                     else leave it to the kernel.
--look      only look whether the CPUs of all local ranks can be had here, and start nothing.
--set K=V   set a variable that the launcher overwrites; --unset K removes one.
"""

from __future__ import annotations

import contextlib
import os
import sys

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


class Options:
    launcher = "torch"
    cpus = ""
    bind = "exact"
    look = False

    def __init__(self, words: list[str]) -> None:
        self.changes: list[tuple[str, str | None]] = []
        self.command: list[str] = []
        while words:
            word = words.pop(0)
            if word == "--":
                self.command = words
                return
            if word == "--look":
                self.look = True
                return
            if not words:
                break
            value = words.pop(0)
            if word in ("--launcher", "--cpus", "--bind"):
                setattr(self, word[2:], value)
            elif word == "--set":
                name, _, text = value.partition("=")
                self.changes.append((name, text))
            elif word == "--unset":
                self.changes.append((value, None))
            else:
                raise RankError(f"rank.py does not know {word!r}", EXAMPLE)
        raise RankError("rank.py was given no command", EXAMPLE)


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
    if launcher not in NUMBERING:
        raise RankError(f"--launcher is one of {', '.join(NUMBERING)}, not {launcher!r}", EXAMPLE)
    for names in NUMBERING[launcher]:
        rank, world, local_rank, local_world = (os.environ.get(name) for name in names)
        if rank is None or local_rank is None:
            continue
        values = (rank, world or "1", local_rank, local_world or str(local_size))
        for position, name in enumerate(TORCH):
            os.environ[name] = values[position]
            if values[1] == "1":
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


def siblings(cpu: int) -> set[int]:
    try:
        path = f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        with open(path, encoding="ascii") as file:
            return parse(file.read().strip())
    except (OSError, RankError):
        return {cpu}


def share_pod(local_size: int, local_rank: int, asked: int) -> None:
    """Cut the CPUs of a container: oneCCL workers first in each share, then threads."""
    allowed = os.sched_getaffinity(0)
    workers = variable("CCL_WORKER_COUNT", "0")
    each = variable("OMP_NUM_THREADS", "1") + workers
    cores = [cpu for cpu in sorted(allowed) if cpu == min(siblings(cpu) & allowed)]
    units = cores if len(cores) >= each * local_size else sorted(allowed)
    if len(allowed) > asked or len(units) < each * local_size:
        if local_rank == 0:
            sys.stderr.write(
                f"note: this container has no CPUs of its own (it may use {len(allowed)}, "
                f"asked for {asked}): ranks are not bound\n"
            )
        return
    shares = [units[i * each : (i + 1) * each] for i in range(local_size)]
    os.sched_setaffinity(0, shares[local_rank][workers:])
    if workers:
        ids = [str(cpu) for share in shares for cpu in share[:workers]]
        os.environ["CCL_WORKER_AFFINITY"] = ",".join(ids)


def main() -> None:
    options = Options(sys.argv[1:])
    pod = options.bind.startswith("pod=")
    shares = options.cpus.split("/")
    if not pod and options.bind not in ("exact", "offered"):
        raise RankError(f"--bind is exact, offered or pod=N, not {options.bind!r}", EXAMPLE)
    if options.look:
        look(shares)
        return
    local_size = variable("LOCAL_WORLD_SIZE", "1") if pod else len(shares)
    local_rank = number_ranks(options.launcher, local_size)
    if local_rank >= local_size:
        raise RankError(
            f"local rank {local_rank} has no CPUs: the plan has {local_size} ranks on a node",
            "start as many ranks as the launch script does",
        )
    if pod:
        share_pod(local_size, local_rank, number(options.bind[4:], "N of --bind pod=N"))
    elif options.cpus:
        bind(shares[local_rank], local_rank, options.bind == "exact")
    for name, value in options.changes:
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    for library in os.environ.get("LD_PRELOAD", "").replace(":", " ").split():
        if "/" in library and not os.path.isfile(library):
            raise RankError(
                f"the plan preloads {library}, which is not here", "install it here too"
            )
    if os.environ.get("CCL_PROCESS_LAUNCHER") == "none":
        os.environ["CCL_LOCAL_RANK"] = str(local_rank)
        os.environ["CCL_LOCAL_SIZE"] = str(local_size)
    if not options.command:
        raise RankError("rank.py was given no command", EXAMPLE)
    os.execv(sys.executable, [sys.executable, *options.command])


if __name__ == "__main__":
    try:
        main()
    except RankError as error:
        sys.stderr.write("error: {}\nhint: {}\n".format(*error.args))
        sys.exit(3)
    except (OSError, ValueError) as error:  # a variable or an argument that the system refuses
        sys.stderr.write(f"error: {error}\nhint: {EXAMPLE}\n")
        sys.exit(3)
