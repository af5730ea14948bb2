"""What a launch needs of the machine: a compiler, memory for each rank, time, CPUs for its threads.

Words and script are read; the compiler is started in a child to see whether it finds its headers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from cputune.doctor.files.judged_launch import JudgedLaunch
from cputune.doctor.finding import Finding, Severity, checks_of, fault
from cputune.doctor.variables import TRUE, advised
from cputune.host import Command, Host
from cputune.host.facts import HostFacts
from cputune.launch.located_words import number_of
from cputune.plans.cores import usable_cores
from cputune.plans.memory import (
    PROCESS_BYTES,
    VALUES_PER_PARAMETER,
    least_value_bytes,
    needed_bytes,
    room_bytes,
)
from cputune.plans.placing import groups
from cputune.plans.script_settings import named, settings_of
from cputune.plans.workload import Workload
from cputune.text.plain import GIB, count

# Time limit of a compiler that reads headers, and the time in which one process tokenizes a data
# set of some GB. Assumed.
COMPILE_SECONDS = 20.0
SHORT_SECONDS = 600


@fault("compiler-missing", Severity.ERROR)
def compiler_missing() -> None:
    """torch.compile is asked for, and C++ cannot be compiled here

    Symptom: "No working C++ compiler found", "CppCompileError", "fatal error: omp.h", after the
    model was loaded and the data prepared.

    Cause: inductor compiles C++ with $CXX, else g++, and needs OpenMP and the headers of Python.
    Slim images lack them.

    Remedy: Install what is missing, or train without --torch_compile.

    Source: pytorch/pytorch#92745, pytorch/pytorch#179135
    """


def _compiler(launch: JudgedLaunch, text: str) -> Iterator[Finding]:
    named = launch.switched_on("--torch_compile")
    written = re.search(r"torch\.compile\(|torch_compile\s*=\s*True", text)
    dynamo = launch.variables.get("ACCELERATE_DYNAMO_BACKEND", "").lower() == "inductor"
    host = launch.context.host
    if not host.live or not (named or written or dynamo):
        return
    compiler = launch.variables.get("CXX") or "g++"
    option = "torch.compile"
    if named:
        option = "--torch_compile"
    if host.which(compiler) is None:
        evidence = f"{option}: {compiler} is not installed"
    elif (missing := _lacks(compiler, host)) is not None:
        evidence = f"{option}: {compiler}: {missing}"
    else:
        return
    distribution = launch.facts.settings.distribution
    debian = distribution is not None and "debian" in (distribution.id, *distribution.like)
    command = None
    if debian:
        command = "apt-get update && apt-get install -y g++ python3-dev"
    if compiler != "g++" and host.which("g++") is not None:
        command = "unset CXX"
    yield compiler_missing.finding(launch.at(evidence), command=command)


def _lacks(compiler: str, host: Host) -> str | None:
    """What the compiler prints if it misses headers that inductor includes."""
    where = "import sysconfig; print(sysconfig.get_path('include'))"
    try:
        result = host.run(Command(argv=(host.executable, "-c", where)))
        argv = (compiler, "-fopenmp", "-I", result.stdout.strip(), "-include", "omp.h", "-include")
        done = host.run(
            Command(
                argv=(*argv, "Python.h", "-E", "-x", "c++", "/dev/null"),
                timeout_seconds=COMPILE_SECONDS,
            )
        )
    except OSError:
        return None
    message = re.search(r"(?:fatal )?error: .*", done.stderr)
    if done.returncode and message:
        return message[0].strip()
    return None


@fault("launch-memory", Severity.ERROR)
def memory_short() -> None:
    """The ranks of this launch do not fit into the memory

    Symptom: the process is killed (exit code 137, SIGKILL) in its first steps.

    Cause: each rank holds weights, gradients and two moments of AdamW: four times the weights, plus
    activations. The check reads the weights' files or the recipe; if the command was tuned before,
    it uses the memory that its ranks took.

    Remedy: Start fewer ranks, train a smaller model, or raise the limit.

    Source: kubeflow/trainer#2407, pytorch/pytorch#8976
    """


def _memory(launch: JudgedLaunch) -> Iterator[Finding]:
    around, ranks = launch.facts.surroundings, launch.ranks or 1
    weights, each = around.model_bytes, around.held_bytes
    basis = "as measured when this command was tuned"
    if each is None and weights is not None:
        frozen = any(launch.argument(name) is not None for name in ("--use_peft", "--use_lora"))
        few = (launch.argument("--optim") or "").startswith(("sgd", "adafactor"))
        values = VALUES_PER_PARAMETER
        if frozen or few:
            values = 2
            if frozen:
                values = 1
        each = PROCESS_BYTES + values * weights
        basis = f"for weights of {weights / GIB:.1f} GiB, before activations"
    if each is not None:
        evidence = launch.at(f"{ranks} × {each / GIB:.1f} GiB {basis}")
        yield from _exceeded(evidence, ranks, each, launch.facts)


def _exceeded(evidence: str, ranks: int, each: int, facts: HostFacts) -> Iterator[Finding]:
    """The finding that the memory of these ranks is not free, or exceeds the limit."""
    room, need = room_bytes(facts), ranks * each
    if room is None:
        return
    free = min(room, facts.memory.available_bytes or room)
    remedy = f"Start {free // each} of these ranks, train a smaller model, or raise the limit."
    if each > free:
        more = f"{(each - free) / GIB:.1f} GiB more"
        remedy = f"Free {more}, or train a smaller model, or fewer of its weights (LoRA)."
    if need > free:
        yield memory_short.finding(
            f"{evidence}; {room / GIB:.1f} GiB may be used, {free / GIB:.1f} GiB are free",
            severity=None if need > room else Severity.WARNING,
            remedy=remedy,
        )


def judge_recipe(job: Workload, facts: HostFacts) -> tuple[str, tuple[Finding, ...]]:
    """The least memory of a recipe with the advised ranks, in words; and whether that fits here."""
    ranks = advised(facts).ranks
    need = needed_bytes(job, ranks, value_bytes=least_value_bytes(facts))
    needs = f"{job.name} needs {need / GIB:.1f} GiB at least with {count(ranks, 'rank')}"
    return needs, tuple(_exceeded(needs, ranks, need // ranks, facts))


@fault("timeout-short", Severity.WARNING)
def timeout_short() -> None:
    """Ranks wait less long than rank 0 may need for the data

    Symptom: "Timed out waiting … for recv operation", "Socket Timeout", after minutes without a
    step.

    Cause: rank 0 prepares the data first; the others wait in gloo for --ddp_timeout (default 1800
    seconds) or the timeout of init_process_group.

    Remedy: Raise it, or prepare the data once before: its cache is used again.

    Source: huggingface/trl#1519, axolotl-ai-cloud/axolotl#2684
    """


def _timeout(launch: JudgedLaunch, text: str) -> Iterator[Finding]:
    if not launch.several and not launch.part:
        return
    seconds = number_of(launch.argument("--ddp_timeout"))
    option = f"--ddp_timeout {seconds}"
    if seconds is None:
        call = re.search(r"timedelta\((seconds|minutes)\s*=\s*(\d{1,6})\)", text)
        if call is None or "init_process_group" not in text:
            return
        seconds = int(call[2]) * (60 if call[1] == "minutes" else 1)
        option = call[0]
    if seconds < SHORT_SECONDS:
        yield timeout_short.finding(launch.at(f"{option}: less than {SHORT_SECONDS} s"))


@fault("tokenizer-threads", Severity.WARNING)
def tokenizer_threads() -> None:
    """Each process of this launch has tokenizer threads

    Symptom: Dataset.map(num_proc=…) or loader workers hang, or more ranks prepare data no faster.

    Cause: TOKENIZERS_PARALLELISM=true starts a thread per CPU in every rank, loader worker and
    process of Dataset.map, in addition to OpenMP's. In a process that is forked after the tokenizer
    was used that pool has no threads and waits for ever (executed with tokenizers 0.23.3).

    Remedy: Unset it, or set it to false.

    Source: huggingface/tokenizers#187, NVIDIA-NeMo/Megatron-Bridge#5328
    """


# Arguments of scripts that become num_proc of Dataset.map.
_PREPARING = ("--preprocessing_num_workers", "--dataset_num_proc", "--num_proc")


def _tokenizer(launch: JudgedLaunch) -> Iterator[Finding]:
    variables = launch.variables
    workers = launch.number("--dataloader_num_workers")
    preparing = max(launch.number(name) for name in _PREPARING)
    ranks = launch.ranks or 1
    several = ranks + workers > 1 or preparing > 1
    if variables.get("TOKENIZERS_PARALLELISM", "").lower() not in TRUE or not several:
        return
    threads = number_of(variables.get("RAYON_NUM_THREADS")) or len(launch.facts.topology.allowed)
    evidence = (
        f"TOKENIZERS_PARALLELISM=true: ranks {ranks}, loader workers {workers}, "
        f"processes that prepare data {max(1, preparing)}, {threads} threads each"
    )
    yield tokenizer_threads.finding(
        launch.at(evidence), command="export TOKENIZERS_PARALLELISM=false"
    )


@fault("loader-threads", Severity.WARNING)
def loader_threads() -> None:
    """Loader workers take the CPUs that compute

    Symptom: more loader workers make a step slower.

    Cause: each rank starts its own workers; a worker computes with one thread unless the script
    sets more (torch.set_num_threads in worker_init_fn).

    Remedy: Start fewer workers: one or two per rank are enough for a text model.

    Source: pytorch/pytorch#101850
    """


# An argument of the script that becomes num_workers of its DataLoader.
_PASSES_WORKERS = re.compile(r"\bnum_workers\s*=\s*(?:\w+\.)+(?P<option>\w+)")


def _workers(launch: JudgedLaunch, text: str) -> int:
    """Loader workers of each rank: of Trainer, or of the script's own option."""
    workers = launch.number("--dataloader_num_workers")
    for match in _PASSES_WORKERS.finditer(text):
        name = match["option"]
        for option in (f"--{name}", f"--{name.replace('_', '-')}"):
            workers = max(workers, launch.number(option))
    return workers


def _loaders(launch: JudgedLaunch, text: str) -> Iterator[Finding]:
    workers = _workers(launch, text)
    ranks, cores = launch.ranks or 1, len(usable_cores(launch.facts))
    if cores and ranks * workers > cores:
        evidence = f"{ranks} ranks × {workers} loader workers on {cores} usable cores"
        yield loader_threads.finding(launch.at(evidence))
    named = launch.number("--num_workers")
    if launch.script_text is None and cores and ranks * named > cores:
        evidence = f"--num_workers {named} on {cores} usable cores, if they are a DataLoader's"
        yield loader_threads.finding(launch.at(evidence), severity=Severity.ADVICE)
    initializer = re.search(r"worker_init_fn\s*=\s*(\w+)", text)
    for setting in settings_of(text):
        if initializer is None or setting.function != initializer[1]:
            continue
        if setting.kind == "threads" and setting.value != "1":
            evidence = f"{initializer[0]} calls {setting.code} in each loader worker"
            yield loader_threads.finding(f"{launch.script}: {evidence}")


@fault("script-threads", Severity.WARNING)
def script_threads() -> None:
    """The script sets its number of threads itself

    Symptom: OMP_NUM_THREADS changes nothing: fewer threads compute than there are cores, or more.

    Cause: torch.set_num_threads, or os.environ["OMP_NUM_THREADS"] before torch is imported,
    overrides the launch.

    Remedy: Remove it from the script, and set OMP_NUM_THREADS in the launch.

    Source: pytorch/pytorch#125547
    """


def _script(launch: JudgedLaunch, text: str) -> Iterator[Finding]:
    ranks, cores = launch.ranks or 1, len(usable_cores(launch.facts))
    wanted = launch.variables.get("OMP_NUM_THREADS")
    share = max(1, cores // ranks)
    for setting in settings_of(text):
        if setting.kind != "threads" or setting.function:
            continue
        threads = number_of(setting.value)
        if threads is None and "cpu_count" in setting.code:
            threads = len(launch.facts.topology.online)
        beside = f"OMP_NUM_THREADS is {wanted or 'unset'}, ranks {ranks}, usable cores {cores}"
        evidence = f"{named(setting, launch.script)}; {beside}"
        differs = wanted is not None and wanted != str(threads)
        if threads is not None and (differs or (cores and threads != share)):
            yield script_threads.finding(evidence)


@fault("script-processes", Severity.WARNING)
def script_processes() -> None:
    """The script starts a process per CPU, each with a thread per CPU

    Symptom: many CPUs, but slower than one process.

    Cause: a process of multiprocessing inherits OMP_NUM_THREADS; without it each starts a thread
    per CPU.

    Remedy: Set OMP_NUM_THREADS=1 before the script starts, or call torch.set_num_threads(1) in each
    process.

    Source: https://docs.pytorch.org/docs/stable/notes/multiprocessing.html, pgiri/dispy#160
    """


_EACH_CPU = re.compile(
    r"(?:Pool|ProcessPoolExecutor|mp\.spawn|start_processes)\([^)\n]*(?:cpu_count|nproc|"
    r"sched_getaffinity|num_cpus)"
    r"|(?:for|=)[^\n]*(?:cpu_count|sched_getaffinity)\([^\n]*\n(?:[^\n]*\n){0,6}?"
    r"[^\n]*(?:\bProcess|Pool|ProcessPoolExecutor|mp\.spawn|start_processes)\("
)


def _processes(launch: JudgedLaunch, text: str) -> Iterator[Finding]:
    match = _EACH_CPU.search(text)
    computes = re.search(r"(?m)^\s*(?:import|from)\b[^\n#]*\b(?:torch|numpy)\b", text)
    if match is None or computes is None or "set_num_threads" in text:
        return
    cpus = len(launch.facts.topology.allowed)
    threads = number_of(launch.variables.get("OMP_NUM_THREADS"))
    if cpus < 2 or threads == 1 or "OMP_NUM_THREADS" in text:
        return
    line = text.count("\n", 0, match.start()) + 1
    evidence = (
        f"{launch.script}:{line} starts a process for each of {cpus} CPUs; each computes with "
        f"{threads or cpus} threads"
    )
    yield script_processes.finding(launch.at(evidence), command="export OMP_NUM_THREADS=1")


@fault("batch-undivided", Severity.ADVICE)
def batch_undivided() -> None:
    """No rank for each NUMA node can share this batch

    Symptom: `cputune tune` does not try a rank per NUMA node, often the fastest layout.

    Cause: plans are compared at the global batch of your launch, and every rank takes the same
    number of samples.

    Remedy: If another batch is as good for you, use one that can be divided: `cputune tune
    --global-batch-size N`. It is another training.

    Source: https://docs.kernel.org/admin-guide/mm/numaperf.html
    """


def _undivided(launch: JudgedLaunch) -> Iterator[Finding]:
    """A batch that cannot be divided over a rank per NUMA node."""
    each = launch.batch.per_step
    ranks, nodes = launch.ranks, len(groups(usable_cores(launch.facts), by_node=True))
    if nodes < 2 or not (each and ranks):
        return
    world, batch = nodes * launch.machines, each * ranks * launch.machines
    if batch % world == 0:
        return
    more = math.ceil(batch / world) * world
    text = (
        f"a step takes {batch} samples, which cannot be divided over {world} NUMA nodes; {more} can"
    )
    yield batch_undivided.finding(launch.at(text))


def judge_needs(launch: JudgedLaunch) -> Iterator[Finding]:
    """What this launch needs and this machine lacks."""
    text = launch.script_text or ""
    yield from _compiler(launch, text)
    yield from _memory(launch)
    yield from _timeout(launch, text)
    yield from _tokenizer(launch)
    yield from _loaders(launch, text)
    yield from _script(launch, text)
    yield from _processes(launch, text)
    yield from _undivided(launch)


CHECKS = checks_of(__name__)
