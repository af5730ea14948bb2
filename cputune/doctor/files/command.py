"""Judging training commands: a shell script, a line of one, or the command of a container."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cputune.cores import usable_cores
from cputune.doctor.files import flags, mpi
from cputune.doctor.files.accelerate import ONE_PROCESS, OVERSUBSCRIBED, PRECISION, USE_CPU
from cputune.doctor.files.around import bound_cpus, judge_around
from cputune.doctor.files.context import Context
from cputune.doctor.finding import Check, Finding, Severity
from cputune.doctor.reading.launches import Launch
from cputune.stack import LEAST_CCL_WORKERS, why_too_few_ccl_workers
from cputune.stack.fit import ipex_torch
from cputune.stack.tables import load

THREADS_UNSET = Check(
    code="file-threads-unset",
    severity=Severity.WARNING,
    title="OMP_NUM_THREADS is not set for several ranks",
    remedy="Export it: the cores of the machine divided by its ranks.",
    source="pytorch/pytorch#22260, dmlc/dgl#2812",
    story="""Symptom: training under torchrun is many times slower than in one process.

Cause: torchrun sets OMP_NUM_THREADS to 1 where it is unset and there are several
ranks. mpirun sets nothing, and every rank starts threads for the whole machine.""",
)
RANKS_AUTO = Check(
    code="file-ranks-auto",
    severity=Severity.WARNING,
    title="The number of ranks is left to the machine",
    remedy="Write a number: one rank for each socket or NUMA node to begin with.",
    source="kubeflow/trainer#2407",
    story="""Symptom: out of memory, or dozens of ranks in a pod with a limit of eight CPUs.

Cause: auto and cpu count the CPUs of the host, hyperthreads too, and see no limit.""",
)
BACKEND = Check(
    code="file-backend",
    severity=Severity.ERROR,
    title="This backend cannot work in this launch",
    remedy="Name a backend only where there are several ranks, and ccl only under mpirun.",
    source="intel/torch-ccl#48, intel/llm-on-ray#242",
    story="""Symptom: "Default process group has not been initialized", a hang at "did not
find MPI-launcher specific variables", or "backend ccl is not available".

Cause: a backend in a run of one process is a ValueError. oneCCL looks for an MPI
launcher around it. accelerate takes ccl only where CCL_WORKER_COUNT is 1 or more.""",
)
IPEX_LAUNCH = Check(
    code="file-ipex-launch",
    severity=Severity.ERROR,
    title="The launcher of IPEX cannot run",
    remedy="Launch with mpirun or torchrun; `cputune emit` writes the same binding.",
    source="intel/intel-extension-for-pytorch#867",
    story="""Symptom: "No module named intel_extension_for_pytorch", or an end at import.

Cause: ipexrun is part of IPEX, which must fit torch, and has no release for 2.9 on.""",
)


def judge_launch(launch: Launch, context: Context) -> Iterator[Finding]:
    """Every fault of one training command."""
    yield from flags.judge_flags(launch, context)
    yield from _use_cpu(launch, context)
    yield from _precision(launch, context)
    yield from _threads(launch, context)
    yield from _backend(launch, context)
    yield from _accelerate_launch(launch, context)
    if launch.launcher == "ipexrun":
        yield from _ipexrun(launch, context)
    if launch.launcher == "mpirun":
        yield from mpi.judge_mpirun(launch, context)
    yield from judge_around(launch, context)


def _says_cpu(launch: Launch, context: Context) -> bool:
    variables = context.variables(launch)
    set_so = variables.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes", "y", "on", "t")
    flags = any(launch.switched_on(name) for name in ("--use_cpu", "--no_cuda"))
    options = launch.launcher == "accelerate" and (
        launch.option("--cpu", "--use_cpu", "--config_file") is not None
    )
    return set_so or flags or options


def _use_cpu(launch: Launch, context: Context) -> Iterator[Finding]:
    if context.has_gpu or _says_cpu(launch, context):
        return
    alone = load().accelerate.does("ranks-train-alone", context.accelerate)
    trainer = any(launch.argument(name) is not None for name in flags.TRAINER)
    if launch.several and launch.launcher != "accelerate" and alone:
        reader = context.read_by("accelerate", context.accelerate)
        text = f"several ranks without --use_cpu or ACCELERATE_USE_CPU: with {reader} each "
        yield USE_CPU.finding(
            context.at(launch.line, text + "trains alone (where the script uses accelerate)"),
            severity=Severity.ERROR if trainer else Severity.WARNING,
            remedy="Add --use_cpu, or export ACCELERATE_USE_CPU=true before the launch.",
            command="export ACCELERATE_USE_CPU=true",
        )
    elif launch.switched_on("--bf16"):
        text = "--bf16 without --use_cpu means bf16 on a GPU, and is refused"
        yield USE_CPU.finding(context.at(launch.line, text), remedy="Add --use_cpu.")


def _precision(launch: Launch, context: Context) -> Iterator[Finding]:
    if context.has_gpu:
        return
    option = launch.option("--mixed_precision") if launch.launcher == "accelerate" else None
    if option == "fp16":
        text = "--mixed_precision fp16 trains in fp32 on a CPU"
        yield PRECISION.finding(context.at(launch.line, text))
    if context.bf16 is False and (launch.switched_on("--bf16") or option == "bf16"):
        text = "bf16, and this CPU has no instructions for it"
        yield PRECISION.finding(context.at(launch.line, text))


def _threads(launch: Launch, context: Context) -> Iterator[Finding]:
    name = {"torchrun": "--nproc_per_node"}.get(launch.launcher)
    if name and launch.option(name) in ("auto", "cpu", "gpu"):
        text = f"{name} {launch.option(name)}; {context.cores} cores may be used"
        yield RANKS_AUTO.finding(context.at(launch.line, text if context.here else f"{name} auto"))
    asked = context.variables(launch).get("OMP_NUM_THREADS")
    if launch.launcher == "accelerate":
        asked = launch.option("--num_cpu_threads_per_process") or asked
    if launch.several and not asked and launch.launcher in ("torchrun", "mpirun"):
        does = "torchrun sets it to 1" if launch.launcher == "torchrun" else "each rank takes all"
        ranks, cores = launch.ranks, _cores(launch, context)
        known = context.here and ranks is not None and ranks <= cores
        threads = max(1, cores // (ranks or 1) - _workers(launch, context))
        yield THREADS_UNSET.finding(
            context.at(launch.line, f"{launch.launcher} without OMP_NUM_THREADS: {does}"),
            command=f"export OMP_NUM_THREADS={threads}" if known else None,
        )
    if context.here and launch.ranks is not None and re.fullmatch(r"[0-9]{1,6}", asked or ""):
        yield from _oversubscribed(launch, context, launch.ranks, int(asked or 1))


def _oversubscribed(
    launch: Launch, context: Context, ranks: int, threads: int
) -> Iterator[Finding]:
    extra, cores = _workers(launch, context), _cores(launch, context)
    wanted = ranks * (threads + extra)
    if wanted <= cores:
        return
    with_workers = f" + {extra} oneCCL workers" if extra else ""
    text = f"{ranks} ranks × ({threads} threads{with_workers}) = {wanted}"
    cpus = bound_cpus(launch, context.facts) or context.facts.topology.allowed
    yield OVERSUBSCRIBED.finding(
        context.at(launch.line, f"{text}, on {cores} cores"),
        severity=Severity.ADVICE if wanted <= len(cpus) else Severity.WARNING,
    )


def _workers(launch: Launch, context: Context) -> int:
    """OneCCL workers of each rank."""
    workers = context.variables(launch).get("CCL_WORKER_COUNT", "")
    live = context.versions.oneccl is not None and re.fullmatch(r"[0-9]{1,6}", workers)
    return int(workers) if live else 0


def _cores(launch: Launch, context: Context) -> int:
    """Cores that the launch may use: those that taskset or numactl names, as far as allowed."""
    cpus = bound_cpus(launch, context.facts)
    cores = usable_cores(context.facts)
    if cpus is None:
        return len(cores)
    return len([core for core in cores if not set(cpus).isdisjoint(core.cpus)]) or len(cores)


_NOT_BUILT = {
    "mpi": "torch's wheels are built without MPI; mpirun starts ranks that speak gloo as well",
    "nccl": "it is for NVIDIA GPUs, and none is here",
}


def _backend(launch: Launch, context: Context) -> Iterator[Finding]:
    backend = launch.argument("--ddp_backend")
    if backend is None:
        return
    if launch.launcher == "python" and not _under_a_launcher(launch):
        text = f"--ddp_backend {backend} in a run of one process is a ValueError"
        yield BACKEND.finding(context.at(launch.line, text), remedy="Take --ddp_backend out.")
    elif backend in _NOT_BUILT and not context.has_gpu:
        torch = context.facts.package("torch")
        built_here = torch is not None and torch.installer not in ("pip", "uv", "conda")
        text = f"--ddp_backend {backend}: {_NOT_BUILT[backend]}"
        yield BACKEND.finding(
            context.at(launch.line, text),
            severity=Severity.WARNING if built_here and backend == "mpi" else None,
            remedy="Take --ddp_backend gloo.",
        )
    if backend != "ccl" or context.versions.oneccl is None:
        return
    if launch.launcher == "torchrun":
        text = "--ddp_backend ccl under torchrun: oneCCL looks for an MPI launcher, and may hang"
        yield BACKEND.finding(context.at(launch.line, text), severity=Severity.WARNING)
    variables = context.variables(launch)
    if why := why_too_few_ccl_workers(variables.get("CCL_WORKER_COUNT")):
        yield BACKEND.finding(
            context.at(launch.line, f"--ddp_backend ccl: {why}, and refuses"),
            command=f"export CCL_WORKER_COUNT={LEAST_CCL_WORKERS}",
        )


def _under_a_launcher(launch: Launch) -> bool:
    return launch.part or any(n in launch.environment for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))


def _accelerate_launch(launch: Launch, context: Context) -> Iterator[Finding]:
    if launch.launcher != "accelerate" or launch.option("--config_file") is not None:
        return
    if launch.several and launch.option("--mpirun_hostfile") is None and not context.has_gpu:
        ranks = launch.option("--num_processes")
        text = f"accelerate launch --num_processes {ranks} without --mpirun_hostfile"
        yield ONE_PROCESS.finding(
            context.at(launch.line, text),
            remedy="Add --mpirun_hostfile FILE (one line 'localhost' will do) and --cpu, or "
            "launch with mpirun or torchrun.",
        )
    version = context.versions.accelerate
    for option in load().accelerate.options if version is not None else ():
        if launch.option(option.name) is not None and not option.covers(version):
            text = f"accelerate launch {option.name} is refused by accelerate {version}"
            yield flags.FLAG_REFUSED.finding(context.at(launch.line, text))


def _ipexrun(launch: Launch, context: Context) -> Iterator[Finding]:
    if context.versions.ipex is None:
        why: str | None = "intel_extension_for_pytorch is not installed"
    else:
        why = ipex_torch(load(), context.versions)
    if why is not None:
        yield IPEX_LAUNCH.finding(context.at(launch.line, f"ipexrun: {why}"))


CHECKS: tuple[Check, ...] = (
    *flags.CHECKS,
    THREADS_UNSET,
    RANKS_AUTO,
    BACKEND,
    IPEX_LAUNCH,
    *mpi.CHECKS,
)
