#!/usr/bin/env python3
"""Number one rank, bind it to its CPUs, and run its training. Needs Python 3.9 and torch alone.

    rank.py --launcher mpi --cpus 0-3/4-7 [--bind offered] [--compare no] [--draw apart] -- train.py

mpi, slurm or torch has numbered it; offered: other CPUs will do; apart: dropout differs by rank.
Before passes 0, 1, 2, 4, ..., 64, 128, 192, ... weights are compared: exit status 5 if they differ.
"""

import atexit
import os
import runpy
import sys
import time

TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
HYDRA = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
OPENMPI = tuple(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))
SLURM = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "")
NUMBERS = {"mpi": (HYDRA, OPENMPI), "slurm": (SLURM,), "torch": (TORCH,)}


def bind(launcher, shares, offered, env=os.environ):
    names = next((row for row in NUMBERS[launcher] if {row[0], row[2]} <= {*env}), None)
    if names is None:
        return f"{launcher} did not number this process"
    env.update(zip(TORCH, [env.get(name, str(len(shares))) for name in names]))
    local, start = int(env["LOCAL_RANK"]), os.sched_getaffinity(0)
    if local >= len(shares):
        return f"local rank {local} has no CPUs: the plan has {len(shares)} ranks on a machine"
    gone = [x for x in env.get("LD_PRELOAD", "").split(":") if "/" in x and not os.path.exists(x)]
    if gone:
        return f"the plan preloads {gone[0]}, which is not here"
    if env.get("CCL_PROCESS_LAUNCHER") == "none":  # oneCCL without MPI
        env.update(CCL_LOCAL_RANK=str(local), CCL_LOCAL_SIZE=str(len(shares)))
    ends = [[int(cpu) for cpu in part.split("-")] for part in shares[local].split(",")]
    cpus = {cpu for part in ends for cpu in range(part[0], part[-1] + 1)}
    os.sched_setaffinity(0, cpus | start)  # CPUs that are not here are passed over
    found = cpus <= os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus if found else start)
    why = f"rank {local} cannot have CPUs {shares[local]}, it may use {str(sorted(start))[1:-1]}"
    if offered and not found:
        sys.stderr.write(f"note: {why}; it keeps those\n")
    return "" if found or offered else why


def compare(model):
    norms = torch.stack([weight.detach().float().norm() for weight in model.module.parameters()])
    most = torch.stack((norms, -norms)).nan_to_num()
    torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX)
    apart = (most.sum(0) > 1e-3 * most[0]).tolist()  # the largest of all ranks, less the smallest
    if True in apart:
        time.sleep(os.environ["RANK"] != "0")  # the first one reports before a launcher ends it
        name = [name for name, _ in model.module.named_parameters()][apart.index(True)]
        problem = f"{name} is not equal on all ranks, before training pass {model.passes}"
        sys.stderr.write(f"error: {problem}\nhint: tune with --fix ranks=1\n")
        os._exit(5)


def forward(model, *args, **kwargs):
    if model.training and torch.is_grad_enabled():
        if given.pop("--draw", "") == "apart" and os.environ["RANK"] != "0":
            seed = torch.initial_seed() ^ int(os.environ["RANK"]) * 0x9E3779B97F4A7C15
            own = torch.Generator().manual_seed(seed & (1 << 63) - 1).get_state()
            torch.set_rng_state(torch.cat((torch.get_rng_state()[:8], own[8:])))
        passes = model.passes = getattr(model, "passes", -1) + 1
        kept[model.process_group] = due = not (passes % 64 if passes > 64 else passes & passes - 1)
        alike = model.require_backward_grad_sync and not model._join_config.enable
        if due and alike and given.get("--compare") != "no":
            compare(model)
    return plain(model, *args, **kwargs)


if __name__ == "__main__":
    end = sys.argv.index("--")
    given, words = dict(zip(sys.argv[1:end:2], sys.argv[2:end:2])), sys.argv[end + 1 :]
    launcher, cpus = given.pop("--launcher", None), given.pop("--cpus", "")
    if launcher and not (why := bind(launcher, cpus.split("/"), "--bind" in given)):
        os.execv(sys.executable, [sys.executable, __file__, *sum(given.items(), ()), "--", *words])
    if launcher:
        print(f"error: {os.uname().nodename}: {why}\nhint: tune on this machine", file=sys.stderr)
        if launcher == "mpi":  # after a mere exit status the others wait
            if "PMI_FD" in os.environ:  # Intel MPI's do after a signal, too: ask hydra for an abort
                time.sleep(1)  # what hydra has not read of stderr by then is lost
                os.write(int(os.environ["PMI_FD"]), b"cmd=abort exitcode=3\n")
            os.kill(os.getpid(), 15)  # SIGTERM
        sys.exit(3)
    module, ended, kept = words[0] == "-m", [], {}
    sys.argv, sys.path[0] = words[module:], os.path.dirname(os.path.realpath(words[0]))
    torch = __import__("torch")
    plain = torch.nn.parallel.DistributedDataParallel.forward
    torch.nn.parallel.DistributedDataParallel.forward = forward
    atexit.register(lambda: ended and os._exit(0))  # before Python frees what gloo's threads hold
    try:
        if module:
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as exit_:
        if exit_.code:
            raise
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()
    ended.append(sys.stdout.flush())
