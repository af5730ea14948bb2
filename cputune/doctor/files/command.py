"""Judging training commands: a shell script, a line of one, or the command of a container."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from cputune.doctor.checks import launch as launch_checks
from cputune.doctor.checks import libraries, precision, threads, versions
from cputune.doctor.files.accelerate import (
    one_process,
    oversubscribed,
    precision_useless,
    use_cpu_missing,
)
from cputune.doctor.files.context import Context
from cputune.doctor.finding import Check, Finding, Severity, checks_of, fault
from cputune.host import Host
from cputune.probing.installed import dead_preloads
from cputune.stack import LEAST_CCL_WORKERS, takes, why_too_few_ccl_workers
from cputune.stack.fit import ipex_torch
from cputune.stack.tables import load
from cputune.stack.uses import Fate, Word, vocabulary
from cputune.training_command import TrainingCommand, number_of


def judge_launch(launch: TrainingCommand, context: Context) -> Iterator[Finding]:
    """Every fault of one training command.

    Of one behind a variable that is not known its arguments alone are judged: the variable may
    hold any launcher.
    """
    yield from _flags(launch, context)
    if any(word.startswith("$") for word in launch.before):
        return
    for judge in (_use_cpu, _precision, _threads, _backend, _accelerate, _ipexrun, _mpirun):
        yield from judge(launch, context)
    for judge in (_launcher, _address, _variables) if context.here else ():
        yield from judge(launch, context)


@fault("file-flag-refused", Severity.ERROR)
def flag_refused() -> None:
    """A flag that the installed versions refuse

    Symptom: "unrecognized arguments", "invalid choice", or an error about a flag.

    Cause: guides show --use_ipex (transformers 4.20 to 4.56), --no_cuda (to 4.57),
    --xpu_backend (to 4.31) and --ddp_backend ccl (transformers to 5.0 with accelerate to
    1.12). ``cputune doctor --stack installed`` lists what these versions take.

    Remedy: Write what the evidence says instead.

    Source: huggingface/transformers#40784, huggingface/transformers#42852,
    huggingface/accelerate#3883
    """


@fault("file-flag-ignored", Severity.WARNING)
def flag_ignored() -> None:
    """A flag that does nothing here

    Symptom: the flag is given, and neither speed nor memory changes.

    Cause: --fp16 trains in fp32 on a CPU, without a message. --use_ipex is taken by
    transformers 4.53 to 4.56 and left to an accelerate that may not act on it.

    Remedy: Take it out, or write what the evidence says instead.

    Source: huggingface/transformers#40784
    """


TRAINER = ("--output_dir", "--do_train", "--per_device_train_batch_size", "--bf16", "--fp16")
"""Flags by which a script is known that parses TrainingArguments."""


def _flags(launch: TrainingCommand, context: Context) -> Iterator[Finding]:
    """Flags of TrainingArguments that these versions refuse or ignore."""
    for word, parser in faulty_words(launch, context):
        notes = filter(None, (word.why, word.instead and f"write {word.instead}"))
        said = f"{word.spelling} is {word.state.value} by {word.reader}"
        said = ": ".join(filter(None, (said, "; ".join(notes))))
        if word.state is Fate.IGNORED:
            yield flag_ignored.finding(context.at(launch.line, said))
            continue
        unsure = "" if parser == "trainer" else ", where the script parses TrainingArguments"
        yield flag_refused.finding(
            context.at(launch.line, said + unsure),
            severity=Severity.WARNING if unsure else None,
            source=word.source,
        )


def faulty_words(launch: TrainingCommand, context: Context) -> Iterator[tuple[Word, str]]:
    """The flags that are refused or ignored, each with who reads it: trainer, or unknown."""
    for word in vocabulary(context.versions):
        flag, _, choice = word.spelling.partition(" ")
        given = launch.argument(flag) if flag.startswith("--") else None
        if word.state is Fate.ACCEPTED or given is None or (choice and given != choice):
            continue
        parser = reader_of(flag, launch, context)
        off = not choice and not launch.switched_on(flag)
        harmless = off and (word.state is Fate.IGNORED or takes(context.versions, flag[2:]))
        if parser != "its own" and not harmless:
            yield word, parser


def reader_of(flag: str, launch: TrainingCommand, context: Context) -> str:
    """Who reads a flag: ``trainer`` (TrainingArguments), ``its own`` or ``unknown``."""
    if context.parser is not None:
        return context.parser
    text = context.text_of(launch.script)
    if text is not None:
        own = re.search(rf"add_argument\(\s*['\"]{flag}['\"]", text)
        parses = re.search("TrainingArguments|HfArgumentParser", text)
        return "trainer" if parses and not own else "its own"
    example = re.fullmatch(r"run_\w+\.py", launch.script.rpartition("/")[2])
    named = any(launch.argument(name) is not None for name in TRAINER)
    return "trainer" if example or named else "unknown"


def _use_cpu(launch: TrainingCommand, context: Context) -> Iterator[Finding]:
    inside = launch.inner or launch
    set_so = context.variables(launch).get("ACCELERATE_USE_CPU", "").lower()
    options = inside.option("--cpu", "--use_cpu", "--config_file") is not None
    flags = launch.switched_on("--use_cpu") or launch.switched_on("--no_cuda")
    told = set_so in _YES or flags or (inside.launcher == "accelerate" and options)
    if context.has_gpu or told:
        return
    alone = load().accelerate.does("ranks-train-alone", context.accelerate)
    trainer = any(launch.argument(name) is not None for name in TRAINER)
    if launch.several and launch.launcher != "accelerate" and alone:
        reader = context.read_by("accelerate", context.accelerate)
        text = f"several ranks without --use_cpu or ACCELERATE_USE_CPU: with {reader} each "
        yield use_cpu_missing.finding(
            context.at(launch.line, text + "trains alone (where the script uses accelerate)"),
            severity=Severity.ERROR if trainer else Severity.WARNING,
            remedy="Add --use_cpu, or export ACCELERATE_USE_CPU=true before the launch.",
            command="export ACCELERATE_USE_CPU=true",
        )
    elif launch.switched_on("--bf16"):
        text = "--bf16 without --use_cpu means bf16 on a GPU, and is refused"
        yield use_cpu_missing.finding(context.at(launch.line, text), remedy="Add --use_cpu.")


_YES = ("1", "true", "yes", "y", "on", "t")


def _precision(launch: TrainingCommand, context: Context) -> Iterator[Finding]:
    option = launch.option("--mixed_precision") if launch.launcher == "accelerate" else None
    text = None
    if option == "fp16":
        text = "--mixed_precision fp16 trains in fp32 on a CPU"
    elif context.bf16 is False and (launch.switched_on("--bf16") or option == "bf16"):
        text = "bf16, and this CPU has no instructions for it"
    if text and not context.has_gpu:
        yield precision_useless.finding(context.at(launch.line, text))


@fault("file-threads-unset", Severity.WARNING)
def threads_unset() -> None:
    """OMP_NUM_THREADS is not set for several ranks

    Symptom: training under torchrun is many times slower than in one process.

    Cause: torchrun sets OMP_NUM_THREADS to 1 where it is unset and there are several
    ranks. mpirun sets nothing, and every rank starts threads for the whole machine.

    Remedy: Export it: the cores of the machine divided by its ranks.

    Source: pytorch/pytorch#22260, dmlc/dgl#2812
    """


@fault("file-ranks-auto", Severity.WARNING)
def ranks_left_open() -> None:
    """The number of ranks is left to the machine

    Symptom: out of memory, or dozens of ranks in a pod with a limit of eight CPUs.

    Cause: auto and cpu count the CPUs of the host, hyperthreads too, and see no limit.

    Remedy: Write a number: one rank for each socket or NUMA node to begin with.

    Source: kubeflow/trainer#2407
    """


def _threads(launch: TrainingCommand, context: Context) -> Iterator[Finding]:
    if launch.launcher == "torchrun" and launch.total in ("auto", "cpu", "gpu"):
        cores = f"; {context.cores} cores may be used" * context.here
        text = f"--nproc_per_node {launch.total}{cores}"
        yield ranks_left_open.finding(context.at(launch.line, text))
    variables = context.variables(launch)
    asked = variables.get("OMP_NUM_THREADS")
    if launch.launcher == "accelerate":
        asked = launch.option("--num_cpu_threads_per_process") or asked
    bound = any(word in ("taskset", "numactl") for word in launch.before)
    workers = number_of(variables.get("CCL_WORKER_COUNT")) if context.versions.oneccl else None
    ranks, extra = launch.ranks, workers or 0
    known = ranks if context.here and not bound else None
    if launch.several and not asked and launch.launcher in ("torchrun", "mpirun"):
        does = "torchrun sets it to 1" if launch.launcher == "torchrun" else "each rank takes all"
        fitting = max(1, context.cores // known - extra) if known and known <= context.cores else 0
        # Where one thread is all that fits, torchrun does what would be advised.
        if not (fitting == 1 and launch.launcher == "torchrun"):
            yield threads_unset.finding(
                context.at(launch.line, f"{launch.launcher} without OMP_NUM_THREADS: {does}"),
                severity=Severity.ADVICE if fitting == 1 else None,
                command=f"export OMP_NUM_THREADS={fitting}" if fitting else None,
            )
    each = number_of(asked)
    if known and each is not None and known * (each + extra) > context.cores:
        with_workers = f" + {extra} oneCCL workers" if extra else ""
        wanted = f"{known} ranks × ({each} threads{with_workers}) = {known * (each + extra)}"
        within = known * (each + extra) <= len(context.facts.topology.allowed)
        yield oversubscribed.finding(
            context.at(launch.line, f"{wanted}, on {context.cores} cores"),
            severity=Severity.ADVICE if within else Severity.WARNING,
        )


@fault("file-backend", Severity.ERROR)
def wrong_backend() -> None:
    """This backend cannot work in this launch

    Symptom: "Default process group has not been initialized", a hang at "did not
    find MPI-launcher specific variables", or "backend ccl is not available".

    Cause: a backend in a run of one process is a ValueError. oneCCL looks for an MPI
    launcher around it. accelerate takes ccl only where CCL_WORKER_COUNT is 1 or more.

    Remedy: Name a backend only where there are several ranks, and ccl only under mpirun.

    Source: intel/torch-ccl#48, intel/llm-on-ray#242
    """


def _backend(launch: TrainingCommand, context: Context) -> Iterator[Finding]:
    backend = launch.argument("--ddp_backend")
    numbered = any(n in launch.environment for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    if backend and launch.launcher == "python" and not (launch.part or numbered):
        text = f"--ddp_backend {backend} in a run of one process is a ValueError"
        yield wrong_backend.finding(context.at(launch.line, text), remedy="Take --ddp_backend out.")
    if backend != "ccl" or context.versions.oneccl is None:
        return
    if launch.launcher == "torchrun":
        text = "--ddp_backend ccl under torchrun: oneCCL looks for an MPI launcher, and may hang"
        yield wrong_backend.finding(context.at(launch.line, text), severity=Severity.WARNING)
    if why := why_too_few_ccl_workers(context.variables(launch).get("CCL_WORKER_COUNT")):
        yield wrong_backend.finding(
            context.at(launch.line, f"--ddp_backend ccl: {why}, and refuses"),
            command=f"export CCL_WORKER_COUNT={LEAST_CCL_WORKERS}",
        )


def _accelerate(launch: TrainingCommand, context: Context) -> Iterator[Finding]:
    if launch.launcher != "accelerate" or launch.option("--config_file") is not None:
        return
    if launch.several and launch.option("--mpirun_hostfile") is None and not context.has_gpu:
        text = f"accelerate launch --num_processes {launch.total} without --mpirun_hostfile"
        yield one_process.finding(
            context.at(launch.line, text),
            remedy="Add --mpirun_hostfile FILE (one line 'localhost' will do) and --cpu, or "
            "launch with mpirun or torchrun.",
        )
    version = context.versions.accelerate
    for option in load().accelerate.options if version is not None else ():
        if launch.option(option.name) is not None and not option.covers(version):
            text = f"accelerate launch {option.name} is refused by accelerate {version}"
            yield flag_refused.finding(context.at(launch.line, text))


@fault("file-ipex-launch", Severity.ERROR)
def ipex_launch() -> None:
    """The launcher of IPEX cannot run

    Symptom: "No module named intel_extension_for_pytorch", or an end at import.

    Cause: ipexrun is part of IPEX, which must fit torch, and has no release for 2.9 on.

    Remedy: Launch with mpirun or torchrun; `cputune emit` writes the same binding.

    Source: intel/intel-extension-for-pytorch#867
    """


def _ipexrun(launch: TrainingCommand, context: Context) -> Iterator[Finding]:
    absent = "intel_extension_for_pytorch is not installed"
    why = absent if context.versions.ipex is None else ipex_torch(context.versions)
    if launch.launcher == "ipexrun" and why is not None:
        yield ipex_launch.finding(context.at(launch.line, f"ipexrun: {why}"))


_NOT_HYDRA = (
    *("-x", "--allow-run-as-root", "--mca", "-mca", "--npernode", "-npernode"),
    *("--oversubscribe", "--rankfile"),
)
_NOT_OPENMPI = ("-f", "-ppn", "-perhost", "-genv", "-genvall", "-genvlist", "-env")
REFUSED = {
    "intelmpi": (*_NOT_HYDRA, "--report-bindings"),
    "mpich": (*_NOT_HYDRA, "-perhost"),
    "openmpi4": _NOT_OPENMPI,
    "openmpi5": (*_NOT_OPENMPI, "-bind-to", "-map-by"),
}
"""Options that each dialect refuses; every one was tried with Intel MPI 2021.18, MPICH 5.0,
Open MPI 4.1 and 5.0."""
_NAMES = {
    "intelmpi": "Intel MPI",
    "mpich": "MPICH",
    "openmpi4": "Open MPI 4",
    "openmpi5": "Open MPI 5",
}


@fault("file-mpi-dialect", Severity.ERROR)
def mpi_dialect() -> None:
    """The mpirun that is here does not know these options

    Symptom: "unrecognized argument x", or "mpirun was unable to find the specified
    executable file" with a name that is an option.

    Cause: Intel MPI and MPICH take -genv K V, -ppn P and -f FILE; Open MPI takes -x K=V,
    --map-by ppr:P:node and --hostfile FILE. Each refuses the words of the other, and all of
    them call their launcher mpirun.

    Remedy: Write them in its dialect; `cputune emit --format mpirun` does.

    Source: https://www.mpich.org/static/docs/latest/www1/mpiexec.html,
    https://docs.open-mpi.org/en/main/man-openmpi/man1/mpirun.1.html
    """


@fault("file-openmpi-one-core", Severity.WARNING)
def one_core_each() -> None:
    """Open MPI binds each of these ranks to one core

    Symptom: two ranks, both as slow as one thread.

    Cause: with at most two ranks Open MPI binds to a core unless told otherwise, and all
    the threads of a rank share it.

    Remedy: Add --bind-to none, or --map-by ppr:P:node:pe=T for T cores each.

    Source: open-mpi/ompi#13009, open-mpi/ompi#12900
    """


@fault("file-bound-twice", Severity.WARNING)
def bound_behind() -> None:
    """Ranks are bound twice

    Symptom: all ranks share a few cores, or the second binding is refused.

    Cause: numactl behind mpirun binds every rank to the same CPUs, inside what mpirun has
    given it already.

    Remedy: Keep one binder: mpirun's pinning, or numactl for each rank.

    Source: deepspeedai/DeepSpeed#4531
    """


def _mpirun(launch: TrainingCommand, context: Context) -> Iterator[Finding]:
    if launch.launcher != "mpirun":
        return
    dialect = _dialect(context)
    options = [word.partition("=")[0] for word in launch.options if word.startswith("-")]
    refused = [option for option in options if option in REFUSED.get(dialect, ())]
    hydra = [option for option in options if option in _NOT_OPENMPI]
    open_mpi = [option for option in options if option in _NOT_HYDRA]
    if refused:
        said = ", ".join(dict.fromkeys(refused))
        text = f"{said}: refused by {_NAMES[dialect]}, which is the mpirun here"
        yield mpi_dialect.finding(context.at(launch.line, text))
    elif dialect not in REFUSED and hydra and open_mpi:
        text = f"{hydra[0]} is Intel MPI's and MPICH's, {open_mpi[0]} Open MPI's; none takes both"
        yield mpi_dialect.finding(context.at(launch.line, text))
    binds = launch.option("--bind-to", "-bind-to", "--rankfile", "-rf", "--cpu-set") is not None
    binds |= ":pe=" in (launch.option("--map-by", "-map-by") or "").lower()
    openmpi = dialect.startswith("openmpi") or "-x" in options or "--mca" in options
    if openmpi and launch.total in ("1", "2") and not binds:
        text = f"mpirun -n {launch.total} without --bind-to"
        yield one_core_each.finding(context.at(launch.line, text))
    behind = [word.rpartition("/")[2] for word in launch.words[len(launch.before) :]]
    binder = next((name for name in behind if name in ("numactl", "taskset")), None)
    if binder:
        also = ", and mpirun binds them too" if binds else ""
        text = f"{binder} behind mpirun binds every rank to the same CPUs{also}"
        yield bound_behind.finding(context.at(launch.line, text))


def _dialect(context: Context) -> str:
    """That of the mpirun that is here; "" where none is, or it does not tell."""
    found = (item.dialect for item in context.facts.launchers if item.name in ("mpirun", "mpiexec"))
    return next(filter(None, found), "") if context.here else ""


@fault("file-launcher-missing", Severity.ERROR)
def launcher_missing() -> None:
    """A program of this launch is not installed

    Symptom: "command not found".

    Cause: mpirun, torchrun, numactl and the like belong to packages of their own. They are looked
    for on PATH, and beside the Python that is examined.

    Remedy: Install it, or launch with what is here (cputune emit writes such launches).

    Source: https://huggingface.co/docs/transformers/perf_train_cpu_many
    """


def _launcher(launch: TrainingCommand, context: Context) -> Iterator[Finding]:
    """Programs are looked for on the live machine only: a recording knows a few of them."""
    programs = [word for word in launch.before if word in ("numactl", "taskset", "srun")]
    for program in (*programs, launch.program) if context.host.live else ():
        if "$" not in program and context.host.which(program) is None:
            text = f"{program} is not there" if "/" in program else f"{program} is not on PATH"
            yield launcher_missing.finding(context.at(launch.line, text))


@fault("file-sourced-missing", Severity.WARNING)
def sourced_missing() -> None:
    """A file that this script sources is not there

    Symptom: "setvars.sh: No such file or directory", and then libccl.so.1 or mpirun are not found.

    Cause: oneAPI or the oneCCL bindings are not installed here, lie elsewhere, or brought no
    setvars.sh. The shell goes on without it, unless it was told to stop (set -e).

    Remedy: Take the line out, or name the file where it lies.

    Source: intel/torch-ccl#43
    """


@fault("file-master-addr", Severity.WARNING)
def address_missing() -> None:
    """Ranks do not know the address of rank 0

    Symptom: "MASTER_ADDR expected, but not set", or a start that waits for ever.

    Cause: mpirun numbers the ranks, and torch.distributed asks where the first one listens, on one
    machine too. torchrun and accelerate launch take 127.0.0.1 unless told otherwise. On several
    machines that is each machine itself.

    Remedy: Export MASTER_ADDR and MASTER_PORT: the first host, or 127.0.0.1 on one.

    Source: https://huggingface.co/docs/transformers/perf_train_cpu_many
    """


def _address(launch: TrainingCommand, context: Context) -> Iterator[Finding]:
    variables = context.variables(launch)
    # RANK and WORLD_SIZE say that a process is one of several.
    by_hand = "RANK" in variables and number_of(variables.get("WORLD_SIZE")) not in (None, 1)
    address, machines = variables.get("MASTER_ADDR"), launch.machines
    if launch.launcher == "mpirun" or launch.part:
        machines = max(machines, context.batch_nodes)
    if launch.launcher == "torchrun":  # it sets MASTER_ADDR itself, from these
        asked = launch.option("--rdzv_endpoint", "--master_addr")
        asked = asked or variables.get("PET_RDZV_ENDPOINT") or variables.get("PET_MASTER_ADDR")
        address = asked or "127.0.0.1"
    elif launch.launcher == "accelerate":
        if launch.option("--config_file") is not None:
            return
        address = launch.option("--main_process_ip") or "127.0.0.1"
    elif launch.launcher == "python" and not (by_hand or launch.part):
        return
    if not address and (by_hand or (launch.launcher == "mpirun" and launch.several)):
        first = "127.0.0.1" if machines == 1 and launch.host_file is None else None
        first = launch.hosts[0] if launch.hosts and machines > 1 else first
        yield address_missing.finding(
            context.at(launch.line, "several ranks and no MASTER_ADDR"),
            command=f"export MASTER_ADDR={first} MASTER_PORT=29500" if first else None,
        )
    elif address and machines > 1 and address.startswith(launch_checks.LOOPBACK):
        text = f"{machines} machines are to meet at {address}, which is each machine itself"
        yield address_missing.finding(
            context.at(launch.line, text),
            severity=Severity.ERROR,
            title="Ranks on several machines are told to meet on loopback",
            remedy="Name the first machine as the others reach it.",
            command=f"export MASTER_ADDR={launch.hosts[0]}" if launch.hosts else None,
        )


_POD_CHECKS = (
    threads.threads_malformed,
    threads.threads_mkl,
    threads.threads_limit,
    threads.affinity_shrinks,
    threads.affinity_gomp,
    libraries.preload_dead,
    libraries.openmp_two,
    versions.stack_variable_ignored,
)
"""Checks of a machine that variables alone decide, on any machine."""
_VARIABLE_CHECKS = (
    *_POD_CHECKS,
    threads.bound_twice,
    launch_checks.ccl_affinity,
    libraries.setting_without_library,
    precision.isa_capped,
    precision.fp16_ignored,
    launch_checks.interface_missing,
)
"""And those that variables decide on this one."""


def _variables(launch: TrainingCommand, context: Context) -> Iterator[Finding]:
    """What the machine's checks find with the file's variables, and do not find without."""
    variables = context.variables(launch)
    outside = context.host.environment()
    preload = re.sub(
        r"\$\{?([A-Za-z_]\w*)\}?",
        lambda found: variables.get(found[1]) or outside.get(found[1]) or found[0],
        variables.get("LD_PRELOAD", ""),
    )
    set_here = {**variables, "LD_PRELOAD": "" if "$?" in preload else preload}
    for finding in _judged(set_here, context, _VARIABLE_CHECKS, context.host):
        yield replace(finding, evidence=context.at(launch.line, finding.evidence))


def judge_pod_variables(
    variables: dict[str, str], line: int | None, context: Context
) -> Iterator[Finding]:
    """What is wrong with the variables of a container, wherever it runs."""
    elsewhere = replace(context, facts=replace(context.facts, environment={}))
    for finding in _judged(variables, elsewhere, _POD_CHECKS, Host()):
        yield replace(finding, evidence=context.at(line, finding.evidence), command=None)


def _judged(
    variables: dict[str, str], context: Context, checks: tuple[Check, ...], host: Host
) -> Iterator[Finding]:
    kept = {n: text for n, text in variables.items() if "$" not in text or n == "LD_PRELOAD"}
    missing = dead_preloads(variables.get("LD_PRELOAD", ""), host, context.facts)
    inside = replace(context.facts, environment=kept, preload_missing=missing)
    for check in checks:
        known = check(context.facts)
        yield from (finding for finding in check(inside) if finding not in known)


CHECKS = checks_of(__name__)
