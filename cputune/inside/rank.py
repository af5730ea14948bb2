#!/usr/bin/env python3
"""Number one rank, bind it to its CPUs, and run its training. Needs Python 3.9 and torch alone.

    rank.py --launcher mpi --cpus 0-3/4-7 [--bind offered] [--compare no] [--draw apart] -- train.py

    --launcher  which launcher has numbered the rank: mpi, slurm or torch
    --cpus      the CPUs of each local rank, separated by slashes
    --bind      offered: a rank that cannot have its CPUs keeps those that it was started with
    --compare   no: do not compare the weights of the ranks
    --draw      apart: each rank draws random numbers of its own, so that dropout differs

If the weights of the ranks differ, the training ends with exit status 5. They are compared before
the training passes 0, 1, 2, 4, ..., 64, and then before each 64th.
"""

import atexit
import os
import runpy
import sys
import time

# The variables of rank, size, local rank and local size: those that torch reads come first.
TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
HYDRA = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
OPENMPI = tuple(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))
SLURM = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "")
NUMBERS = {"mpi": (HYDRA, OPENMPI), "slurm": (SLURM,), "torch": (TORCH,)}


class PlanError(Exception):
    """The plan cannot be used here."""


def main():
    end = sys.argv.index("--")
    names, values, words = sys.argv[1:end:2], sys.argv[2:end:2], sys.argv[end + 1 :]
    options = dict(zip(names, values))
    launcher = options.pop("--launcher", None)
    if launcher is None:
        train(words, options)
        return
    shares = options.pop("--cpus", "").split("/")
    try:
        number(launcher, len(shares))
        check_preload()
        bind(shares, offered="--bind" in options)
    except PlanError as error:
        give_up(launcher, error)
    # The training begins in a new program, so that OpenMP finds its CPUs and variables.
    left = [word for option in options.items() for word in option]
    os.execv(sys.executable, [sys.executable, __file__, *left, "--", *words])


def number(launcher, local_size):
    """Set the variables that torch reads from those that the launcher has set."""
    for names in NUMBERS[launcher]:
        rank, _, local_rank, _ = names
        if rank in os.environ and local_rank in os.environ:
            break
    else:
        raise PlanError(f"{launcher} did not number this process")
    for name, theirs in zip(TORCH, names):
        os.environ[name] = os.environ.get(theirs, str(local_size))
    local = int(os.environ["LOCAL_RANK"])
    if local >= local_size:
        problem = f"local rank {local} has no CPUs"
        raise PlanError(f"{problem}: the plan has {local_size} ranks on a machine")


def check_preload():
    """Stop if a library is not here: the dynamic linker only warns."""
    for path in os.environ.get("LD_PRELOAD", "").split(":"):
        if "/" in path and not os.path.exists(path):
            raise PlanError(f"the plan preloads {path}, which is not here")


def bind(shares, offered):
    """Bind this process to the CPUs of its local rank."""
    local = int(os.environ["LOCAL_RANK"])
    if os.environ.get("CCL_PROCESS_LAUNCHER") == "none":  # oneCCL without MPI
        os.environ["CCL_LOCAL_RANK"] = str(local)
        os.environ["CCL_LOCAL_SIZE"] = str(len(shares))
    wanted = set()
    for part in shares[local].split(","):
        ends = [int(cpu) for cpu in part.split("-")]
        wanted.update(range(ends[0], ends[-1] + 1))
    before = os.sched_getaffinity(0)
    # The kernel passes over CPUs that are not here; one that is here makes the call succeed.
    os.sched_setaffinity(0, wanted | before)
    if wanted <= os.sched_getaffinity(0):
        os.sched_setaffinity(0, wanted)
        return
    os.sched_setaffinity(0, before)
    allowed = ", ".join(str(cpu) for cpu in sorted(before))
    problem = f"rank {local} cannot have CPUs {shares[local]}, it may use {allowed}"
    if not offered:
        raise PlanError(problem)
    sys.stderr.write(f"note: {problem}; it keeps those\n")


def give_up(launcher, error):
    """Report the error and end so that the launcher ends the other ranks."""
    print(f"error: {os.uname().nodename}: {error}\nhint: tune on this machine", file=sys.stderr)
    if launcher == "mpi":
        # After an exit status the other ranks wait. With Intel MPI they wait after a signal too,
        # so hydra is asked for an abort; what it has not read of stderr by then is lost.
        if "PMI_FD" in os.environ:
            time.sleep(1)
            os.write(int(os.environ["PMI_FD"]), b"cmd=abort exitcode=3\n")
        os.kill(os.getpid(), 15)  # SIGTERM
    sys.exit(3)


def train(words, options):
    """Run the training script, or the module after -m, as Python would."""
    is_module = words[0] == "-m"
    sys.argv = words[1:] if is_module else words
    sys.path[0] = os.path.dirname(os.path.realpath(words[0]))
    watch_passes(options)
    ended = False

    def end_at_once():
        if ended:  # Python would free what the threads of gloo still use
            os._exit(0)

    atexit.register(end_at_once)
    try:
        if is_module:
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as exit_:
        if exit_.code:
            raise
    torch = sys.modules["torch"]
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()
    sys.stdout.flush()
    ended = True


def watch_passes(options):
    """Compare the ranks, and let them draw apart, in the forward passes of a DDP model."""
    import torch

    parallel = torch.nn.parallel.DistributedDataParallel
    plain = parallel.forward
    groups = set()  # until the end: Python would free a group that gloo's threads still use

    def forward(model, *args, **kwargs):
        if model.training and torch.is_grad_enabled():
            if options.pop("--draw", "") == "apart":
                draw_apart(torch)
            model.passes = getattr(model, "passes", -1) + 1
            groups.add(model.process_group)
            # Without a synchronisation, or with Join, ranks may rightly differ in what they do.
            together = model.require_backward_grad_sync and not model._join_config.enable
            if is_due(model.passes) and together and options.get("--compare") != "no":
                compare(torch, model)
        return plain(model, *args, **kwargs)

    parallel.forward = forward


def is_due(passes):
    if passes > 64:
        return passes % 64 == 0
    return passes & (passes - 1) == 0  # 0 and the powers of two


def draw_apart(torch):
    """Give each rank but the first a seed of its own, made from the seed that all have."""
    rank = int(os.environ["RANK"])
    if rank != 0:
        seed = torch.initial_seed() ^ (rank * 0x9E3779B97F4A7C15)
        own = torch.Generator().manual_seed(seed & ((1 << 63) - 1)).get_state()
        # The first eight bytes are the seed: torch.initial_seed() stays that of the script.
        torch.set_rng_state(torch.cat((torch.get_rng_state()[:8], own[8:])))


def compare(torch, model):
    """End all ranks if the norms of a weight differ by more than a thousandth."""
    norms = torch.stack([weight.detach().float().norm() for weight in model.module.parameters()])
    bounds = torch.stack((norms, -norms)).nan_to_num()
    torch.distributed.all_reduce(bounds, torch.distributed.ReduceOp.MAX)
    largest, smallest = bounds[0], -bounds[1]
    differs = (largest - smallest > 1e-3 * largest).tolist()
    if True not in differs:
        return
    names = [name for name, _ in model.module.named_parameters()]
    if os.environ["RANK"] != "0":
        time.sleep(1)  # the first rank reports before its launcher ends it
    name = names[differs.index(True)]
    problem = f"{name} is not equal on all ranks, before training pass {model.passes}"
    sys.stderr.write(f"error: {problem}\nhint: tune with --fix ranks=1\n")
    os._exit(5)


if __name__ == "__main__":
    main()
