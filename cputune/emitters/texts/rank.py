#!/usr/bin/env python3
"""Number one rank, bind it to its CPUs, and become its training. Needs Python 3.8 alone.

    rank.py --launcher mpi --cpus 0-3/4-7 [--bind offered] -- train.py --its-arguments

mpi, slurm or torch has numbered it; offered: where it may not have its CPUs, it keeps those it has.
"""

import contextlib
import os
import signal
import sys
import time

TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
HYDRA = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
OPENMPI = [f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
SLURM = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "")
NUMBERS = {"mpi": (HYDRA, OPENMPI), "slurm": (SLURM,), "torch": (TORCH,)}

env, end = os.environ, sys.argv.index("--")
options = dict(zip(sys.argv[1:end:2], sys.argv[2:end:2]))  # noqa: B905 - Python 3.8
launcher, shares = options["--launcher"], options["--cpus"].split("/")


def fail(why: str) -> None:
    sys.stderr.write(f"error: {os.uname().nodename}: {why}\nhint: tune where it runs\n")
    sys.stderr.flush()
    if launcher == "mpi":  # after a mere exit status the others wait
        if "PMI_FD" in env:  # with Intel MPI after a signal, too: hydra is asked for an abort
            time.sleep(1)  # what hydra has not read of stderr by then is lost
            os.write(int(env["PMI_FD"]), b"cmd=abort exitcode=3\n")
        os.kill(os.getpid(), signal.SIGTERM)
    sys.exit(3)


names = next((row for row in NUMBERS[launcher] if {row[0], row[2]} <= {*env}), ())
if not names:
    fail(f"{launcher} did not number this process")
env.update(zip(TORCH, [env.get(name, str(len(shares))) for name in names]))  # noqa: B905
local, before = int(env["LOCAL_RANK"]), os.sched_getaffinity(0)
if local >= len(shares):
    fail(f"local rank {local} has no CPUs: the plan has {len(shares)} ranks on a machine")
gone = [x for x in env.get("LD_PRELOAD", "").split(":") if "/" in x and not os.path.exists(x)]
if gone:
    fail(f"the plan preloads {gone[0]}, which is not here")
if env.get("CCL_PROCESS_LAUNCHER") == "none":
    env.update(CCL_LOCAL_RANK=str(local), CCL_LOCAL_SIZE=str(len(shares)))
ends = [[int(cpu) for cpu in part.split("-")] for part in shares[local].split(",")]
cpus = {cpu for first, *last in ends for cpu in range(first, (last or [first])[0] + 1)}
with contextlib.suppress(OSError):  # the machine has none of them
    os.sched_setaffinity(0, cpus)
if os.sched_getaffinity(0) != cpus:
    os.sched_setaffinity(0, before)
    own = open("/proc/self/status").read().partition("\nCpus_allowed_list:")[2]  # noqa: SIM115
    said = f"rank {local} cannot have CPUs {shares[local]}, it may use {own.split()[0]}"
    if options.get("--bind") != "offered":
        fail(said)
    sys.stderr.write(f"note: {said}; it keeps those\n")
os.execv(sys.executable, [sys.executable, *sys.argv[end + 1 :]])
