"""What surrounds a launch: wrappers, srun, launchers inside launchers, lines that end early."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import replace

from cputune.doctor.files.context import Context
from cputune.doctor.files.ended import by_another, may_bring_programs
from cputune.doctor.files.judged_launch import JudgedLaunch
from cputune.doctor.finding import Finding, Severity, checks_of, fault
from cputune.doctor.variables import without_gpu
from cputune.host.facts import HostFacts
from cputune.launch.edit import Edit
from cputune.launch.launch import Launch, is_python
from cputune.launch.launchers import BY_NAME, BY_PROGRAM
from cputune.launch.launchers.torchrun import DEPRECATED
from cputune.launch.line_continuations import Break
from cputune.launch.located_words import Word, number_of, plain, span_of
from cputune.launch.option import Given
from cputune.launch.places import Places
from cputune.launch.shell import ShellFile
from cputune.launch.translate import by_torchrun
from cputune.plans.delivery.environment import is_cleared
from cputune.stack.tables import load, minor
from cputune.text.plain import count

# Programs before a launcher that a machine may lack, with their package in Debian and Fedora.
_WRAPPERS = {
    "numactl": "numactl",
    "taskset": "util-linux",
    "srun": "",
    "stdbuf": "coreutils",
    "unbuffer": "expect",
    "apptainer": "",
    "singularity": "",
    "horovodrun": "",
    "jemalloc.sh": "",
}


@fault("file-wrapper-missing", Severity.ERROR)
def wrapper_missing() -> None:
    """A program before this launch is not installed

    Symptom: "numactl: command not found", "FileNotFoundError: … 'numactl'".

    Cause: a program that starts the launch is not on PATH. Slim images have no numactl; only
    machines of a Slurm cluster have srun.

    Remedy: Install the program, or start the launch without it.

    Source: deepspeedai/DeepSpeed#6565
    """


def judge_wrappers(launch: JudgedLaunch) -> Iterator[Finding]:
    """Programs in front of a launch that this machine does not have."""
    host = launch.context.host
    if launch.context.target.elsewhere or not host.live or may_bring_programs(launch.context):
        return
    end = len(launch.words) - len(launch.argv)
    names = dict.fromkeys(word.rpartition("/")[2] for word in launch.words[: max(end, 0)])
    needed = [name for name in names if name in _WRAPPERS]
    by_deepspeed = launch.launcher == "deepspeed" and launch.facts.package("deepspeed")
    if by_deepspeed and launch.option("--bind_cores_to_rank") is not None:
        needed.append("numactl")
    for name in dict.fromkeys(needed):
        if host.which(name) is None:
            text = f"{name} is not on the PATH of this machine"
            remedy = f"Install {name}, or start the launch without {name} and its options."
            command = _install(name, launch.facts)
            yield wrapper_missing.finding(launch.at(text), remedy=remedy, command=command)


def _install(name: str, facts: HostFacts) -> str | None:
    package, distribution = _WRAPPERS[name], facts.settings.distribution
    if not package or distribution is None:
        return None
    family = {distribution.id, *distribution.like}
    if "debian" in family:
        return f"apt-get update && apt-get install -y {package}"
    if {"fedora", "rhel"} & family:
        return f"dnf install -y {package}"
    return None


@fault("srun-one-cpu", Severity.ADVICE)
def srun_one_cpu() -> None:
    """srun gives each task one CPU, not those of the job, in Slurm 22.05 and 23.02

    Symptom: a job of many CPUs trains on one of them.

    Cause: in these releases srun ignores --cpus-per-task of the job. Each task gets one CPU unless
    srun has --cpus-per-task, or SRUN_CPUS_PER_TASK is set. From 23.11 on srun takes it from the job
    again.

    Remedy: Pass --cpus-per-task to srun, which every release reads, or set SRUN_CPUS_PER_TASK.

    Source: SchedMD/slurm:CHANGELOG/slurm-22.05.md, SchedMD/slurm:CHANGELOG/slurm-23.11.md,
    Lightning-AI/pytorch-lightning#18650
    """


def _srun_cpus(launch: JudgedLaunch) -> Iterator[Finding]:
    step, cpus = launch.step, launch.context.target.cpus_per_task
    if step is None or step.asks_cpus or cpus is None or cpus < 2:
        return
    if "SRUN_CPUS_PER_TASK" in launch.variables:
        return
    text = f"srun without --cpus-per-task, in a job of {cpus} CPUs for each task"
    line = "SRUN_CPUS_PER_TASK", "$SLURM_CPUS_PER_TASK"
    edits = launch.edits_by(lambda places, at: places.line_before(at, places.setting(*line)))
    command = "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK"
    yield srun_one_cpu.finding(launch.at(text), command=command, edits=edits)


@fault("srun-ranks-alone", Severity.WARNING)
def srun_alone() -> None:
    """srun starts several processes that do not know of each other

    Symptom: no error; each task trains on all the data and writes the same files.

    Cause: srun numbers its tasks by SLURM_PROCID. torch, Trainer and accelerate read RANK,
    LOCAL_RANK and WORLD_SIZE, which srun does not set.

    Remedy: Let srun start one torchrun per machine, or set RANK, LOCAL_RANK and WORLD_SIZE from
    SLURM_PROCID, SLURM_LOCALID and SLURM_NTASKS in each task, as `cputune emit --format slurm`
    does.

    Source: https://docs.pytorch.org/docs/stable/elastic/run.html
    """


_MAPS = re.compile(
    r"SLURM_PROCID|SLURM_NTASKS|\blightning\b|PMI_RANK|OMPI_COMM_WORLD|\bidr_torch\b"
)


def _tasks(launch: JudgedLaunch) -> int:
    """Tasks that the srun of this launch starts, as far as its options and the job say."""
    step = launch.step
    if step is None or step.unknown:
        return 0
    if step.tasks is not None:
        return step.tasks
    of_each_node = step.tasks_per_node or launch.context.target.tasks_per_node
    return (launch.job_nodes or 1) * (of_each_node or 1)


def _srun_tasks(launch: JudgedLaunch) -> Iterator[Finding]:
    tasks, nodes = _tasks(launch), launch.job_nodes or 1
    if tasks < 2:
        return
    if launch.launcher == "python":
        text = launch.script_text
        command = " ".join(launch.words)
        mapped = {"RANK", "WORLD_SIZE", "LOCAL_RANK"} & launch.variables.keys()
        if mapped or "SLURM_PROCID" in command or (text is not None and _MAPS.search(text)):
            return
        evidence = f"srun starts {tasks} tasks of {launch.script}, and nothing sets RANK in them"
        is_python = text is not None and "import" in text
        severity, title = None, None
        if text is None:
            severity = Severity.ADVICE
            title = "Each task trains alone if this script does not read SLURM_PROCID"
            evidence += "; the script could not be read"
        elif is_python and not launch.is_own:
            severity = Severity.ERROR
        evidence = launch.at(evidence)
        yield srun_alone.finding(evidence, severity=severity, title=title)
    elif launch.launcher in ("torchrun", "accelerate") and tasks > nodes:
        if "SLURM_PROCID" in (launch.meant("node rank") or ""):
            return  # each task is a node
        on = f" on {count(nodes, 'machine')}" if launch.job_nodes else ""
        evidence = f"srun starts {tasks} tasks{on}, each with a {launch.launcher}"
        remedy = "Start one task on each machine: srun --ntasks-per-node=1."
        yield nested.finding(launch.at(evidence), remedy=remedy)


@fault("launch-nested", Severity.ERROR)
def nested() -> None:
    """A launcher starts another launcher several times

    Symptom: "address already in use", more ranks than CPUs, or several trainings at the same time.

    Cause: torchrun, accelerate and deepspeed start all ranks of a machine. Started several times on
    it, each does so.

    Remedy: Remove one of the launchers.

    Source: https://docs.pytorch.org/docs/stable/elastic/run.html
    """


def _nested(launch: JudgedLaunch) -> Iterator[Finding]:
    inner = launch.inner
    if inner is not None and inner.launcher in ("torchrun", "deepspeed") and launch.several:
        each = launch.ranks or launch.total_ranks
        if (each or 1) > 1 and (inner.ranks or 1) > 1:
            text = f"{launch.program} starts {inner.launcher} with {inner.ranks} ranks {each} times"
            yield nested.finding(launch.at(text))
    script = launch.script.rpartition("/")[2]
    if launch.launcher != "python" and (script in (*BY_PROGRAM, "accelerate") or is_python(script)):
        text = f"{launch.program} runs {script}, which is a program, not a script"
        title = "A launcher gets a program in place of a script"
        yield nested.finding(launch.at(text), title=title, remedy=f"Remove {script}.")


@fault("file-launcher-deprecated", Severity.WARNING)
def deprecated() -> None:
    """torch.distributed.launch has been replaced by torchrun

    Symptom: "unrecognized arguments: --local-rank=0", or a FutureWarning.

    Cause: torch.distributed.launch passes --local-rank to the script (with a dash from torch 2.0
    on). A script that declares only --local_rank refuses it.

    Remedy: Use torchrun, and read LOCAL_RANK from the environment in the script.

    Source: https://docs.pytorch.org/docs/stable/elastic/run.html, babylm/baseline-pretraining#2
    """


def _deprecated(launch: JudgedLaunch) -> Iterator[Finding]:
    inside = launch.inside
    if inside.launcher != "torchrun" or DEPRECATED not in launch.words:
        return
    text = "python -m torch.distributed.launch passes --local-rank to the script"
    script = launch.script_text
    severity = None
    if inside.option("--use_env") is not None:
        text = "python -m torch.distributed.launch is deprecated"
    elif script is not None and "local-rank" not in script and "argparse" in script:
        text += f", which {launch.script} does not declare"
        severity = Severity.ERROR
    if inside is not launch:
        yield deprecated.finding(launch.at(text), severity=severity)
        return
    finding = by_another(deprecated, text, by_torchrun(launch), launch)
    yield finding if severity is None else replace(finding, severity=severity)


@fault("node-rank-fixed", Severity.WARNING)
def node_rank_fixed() -> None:
    """Every machine would have the same number

    Symptom: the machines wait for each other for ever, or end with a timeout of the store.

    Cause: --node_rank (--machine_rank) must differ on each machine. A number in the file is the
    same on all; the shell expands SLURM_NODEID in an srun line on the first machine, before srun
    starts.

    Remedy: Give each machine its number. Behind srun: bash -c 'torchrun --node_rank $SLURM_NODEID
    …', in single quotes. --rdzv_backend c10d needs no number.

    Source: https://docs.pytorch.org/docs/stable/elastic/run.html
    """


def _node_rank(launch: JudgedLaunch) -> Iterator[Finding]:
    inside = launch.inside
    rank = inside.meant("node rank")
    if rank is None or inside.machines < 2 or inside.meant("rendezvous endpoint"):
        return
    if inside.meant("rendezvous backend") not in (None, "static"):
        return  # it gives the machines their numbers
    # In single quotes behind bash -c each task reads the variable itself: the word has a place.
    inside_task = any(word.rpartition("/")[2] in ("bash", "sh") for word in launch.before)
    outside = launch.step is not None and not (inside_task and _has_place(rank, inside))
    by_slurm = re.fullmatch(r"\$\{?SLURM_(NODEID|PROCID)\}?", rank)
    written = []
    for one in inside.given:
        if one.option and one.option.means == "node rank":
            written.append(one)
    name = written[-1].name
    if number_of(rank) is not None and _is_written(written[-1], launch):
        text = f"{name} {rank}, with {inside.machines} machines"
        yield node_rank_fixed.finding(launch.at(text))
    elif by_slurm and outside and launch.span is not None:
        text = f"{name} {rank} is read before srun starts: it is 0 on every machine"
        severity = Severity.ERROR
        yield node_rank_fixed.finding(launch.at(text), severity=severity)


def _has_place(value: str, launch: Launch) -> bool:
    """Whether the word with this value is written literally in the file."""
    matches = []
    for word in launch.options:
        if word.endswith(value):
            matches.append(word)
    return bool(matches) and span_of(matches[-1]) is not None


def _is_written(given: Given, launch: Launch) -> bool:
    """Whether the value of an option is written as it is, and not through a variable."""
    if launch.span is None:
        return True
    name, word = given.words[0], given.words[0]
    if "=" not in name:
        word = given.words[-1]
    if not isinstance(word, Word):
        return True
    first, at = span_of(name), word.span
    # The value of a variable in an array has the place at which the variable was set.
    return word.exact and first is not None and at is not None and at.start >= first.start


@fault("rendezvous-endpoint", Severity.ERROR)
def endpoint_wrong() -> None:
    """The machines cannot meet at this address

    Symptom: "RendezvousConnectionError", a machine that waits for ever.

    Cause: --rdzv_endpoint is HOST:PORT of one machine, the same on all. An interface name is not a
    host.

    Remedy: Write the name or address of one machine, and a port: node1:29400.

    Source: https://docs.pytorch.org/docs/stable/elastic/run.html
    """


_INTERFACE = re.compile(r"(?:eth|ib|bond|br|wlan|team|docker|veth)\d+|en[opsx]\w*\d\w*|lo|mlx\w*")


def _endpoint(launch: JudgedLaunch) -> Iterator[Finding]:
    inside = launch.inside
    if inside.launcher != "torchrun":
        return
    endpoint, nodes = inside.meant("rendezvous endpoint"), inside.meant("nodes") or "1"
    host, _, port = (endpoint or "").rpartition(":")
    several = nodes not in ("1", "1:1")
    yield from _address_unread(launch, several)
    if endpoint and not endpoint.startswith("$") and several:
        name = host or port
        faults = list[str]()
        if _INTERFACE.fullmatch(name):
            faults.append(f"{name} is the name of a network interface, not of a host")
        if not host:
            faults.append("the port is missing (HOST:PORT)")
        if faults:
            text = f"--rdzv_endpoint {endpoint}: {'; '.join(faults)}"
            sure = _INTERFACE.fullmatch(name) is not None
            severity = None
            if not sure:
                severity = Severity.WARNING
            yield endpoint_wrong.finding(launch.at(text), severity=severity)
    least, most = inside.elastic_nodes or (None, None)
    if least is not None and least != most:
        text = f"--nnodes {nodes}: {least} may train without the others"
        yield fewer_nodes.finding(launch.at(text))


@fault("rendezvous-address", Severity.WARNING)
def address_unread() -> None:
    """torchrun does not read --master_addr beside this rendezvous

    Symptom: the machines wait for each other, or meet at another one than you think.

    Cause: only the static rendezvous reads --master_addr and --master_port. Any other one meets at
    --rdzv_endpoint, which is this machine if it is missing.

    Remedy: Write --rdzv_endpoint HOST:PORT, and remove --master_addr; or remove --rdzv_backend.

    Source: pytorch/pytorch:torch/distributed/run.py (get_rdzv_endpoint)
    """


def _address_unread(launch: JudgedLaunch, several: bool) -> Iterator[Finding]:
    inside = launch.inside
    backend, address = inside.meant("rendezvous backend"), inside.meant("address")
    if backend in (None, "static") or address is None or not several:
        return
    endpoint = inside.meant("rendezvous endpoint")
    if endpoint is None:
        text = f"--rdzv_backend {backend} with --master_addr {address}, without --rdzv_endpoint"
        yield address_unread.finding(launch.at(text), severity=Severity.ERROR)
    else:
        text = f"--master_addr {address} has no effect: --rdzv_endpoint {endpoint} is read"
        severity = None
        if re.sub(r":[^:]*$", "", endpoint) == address:
            severity = Severity.ADVICE
        yield address_unread.finding(launch.at(text), severity=severity)


@fault("nodes-elastic", Severity.WARNING)
def fewer_nodes() -> None:
    """This launch may train on fewer machines than you think

    Symptom: training is slower and its global batch smaller; no error.

    Cause: --nnodes MIN:MAX starts when MIN machines have waited 30 seconds for the others
    (last-call timeout), and restarts when more join.

    Remedy: Write --nnodes N if all N machines must take part.

    Source: https://docs.pytorch.org/docs/stable/elastic/run.html
    """


@fault("file-line-ends", Severity.ERROR)
def line_ends() -> None:
    r"""A command ends before its last line

    Symptom: "--use_cpu: command not found", or arguments that have no effect; with carriage returns
    "\r: command not found", "invalid option".

    Cause: a backslash continues a line only as its last character. If it is missing, or followed by
    a blank, a comment line or a Windows carriage return, the shell runs the rest as another
    command.

    Remedy: End every line but the last with a backslash and nothing after it.

    Source: https://www.gnu.org/software/bash/manual/html_node/Escape-Character.html
    """


def judge_breaks(file: ShellFile, context: Context) -> Iterator[Finding]:
    """Lines of a script at which a launch ends too early."""
    for one in file.breaks:
        if one.kind == "carriage return":
            edits = context.edits_by(_without_carriage_returns)
            text = (
                "lines end with a carriage return, as on Windows: the shell reads it as a character"
            )
            yield line_ends.finding(context.at(one.line, text), edits=edits)
            continue
        launch = next((launch for launch in file.launches if _is_in(one, launch)), None)
        if launch is None:
            continue
        text = _BREAKS[one.kind]
        edits = context.edits_by(_joined, one, launch)
        line = one.line
        if one.kind == "lost backslash":
            line += 1
        yield line_ends.finding(context.at(line, text), edits=edits)


_BREAKS = {
    "blank behind a backslash": "a blank follows the backslash: the command ends in this line",
    "comment behind a backslash": "a comment follows the backslash: the command ends in this line",
    "comment inside": "a comment between two lines of a command ends it",
    "lost backslash": "the line before has no backslash: this line is another command, and "
    "the script does not get its arguments",
}


def _is_in(one: Break, launch: Launch) -> bool:
    return launch.span is not None and launch.span.start <= one.span.start < launch.span.end


def _without_carriage_returns(places: Places) -> tuple[Edit, ...]:
    matches = re.finditer(r"\r(?=\n)", places.text)
    return tuple(Edit(start=one.start(), end=one.end()) for one in matches)


def _joined(places: Places, one: Break, launch: Launch) -> tuple[Edit, ...]:
    """The edits that join lines: add a backslash, remove blanks, or move the comment up."""
    start, end = one.span
    if one.kind.endswith("behind a backslash"):
        return (Edit(start=start, end=end),)
    if one.kind == "lost backslash":
        at = len(places.text[:start].rstrip(" \t"))
        return (Edit(start=at, end=at, text=" \\"),)
    first = places.line_start(launch.line)
    comment = places.text[start:end]
    return (Edit(start=first, end=first, text=comment), Edit(start=start, end=end))


@fault("container-variable", Severity.WARNING)
def variable_outside() -> None:
    """A variable that does not reach the container

    Symptom: threads, allocator or offline mode are not as the script sets them.

    Cause: docker, podman and nerdctl start a container with the variables of its image. Those of
    the shell reach it only if they are named.

    Remedy: Name the variable: docker run -e OMP_NUM_THREADS …

    Source: https://docs.docker.com/reference/cli/docker/container/run/#env
    """


_READ_BY_LIBRARIES = re.compile(r"(?:HF|TRANSFORMERS|TOKENIZERS|TORCH|PYTORCH|ONEDNN|DNNL|FI)_")


def _outside(launch: JudgedLaunch) -> Iterator[Finding]:
    container, context = launch.sealed, launch.context
    if container is None:
        return
    lost = []
    for name in launch.outside:
        of_training = is_cleared(name) or _READ_BY_LIBRARIES.match(name)
        if of_training and not context.reads_variable(name):
            lost.append(name)
    if lost:
        passed = " ".join(f"-e {name}" for name in lost)
        text = f"{', '.join(lost)}: set in front of {container.called}, which does not pass it on"
        remedy = f"Name what the container needs: {container.called} {passed} …"
        edits = launch.edits_by(lambda places, _: places.pass_on(container, *lost))
        yield variable_outside.finding(launch.at(text), remedy=remedy, edits=edits)


@fault("port-refused", Severity.ERROR)
def port_refused() -> None:
    """This port does not exist

    Symptom: "OverflowError: bind(): port must be 0-65535", or "could not be resolved".

    Cause: ports are numbers up to 65535.

    Remedy: Write another one, below 32768: the system gives those above to connections.

    Source: https://docs.python.org/3/library/socket.html
    """


def _port(launch: JudgedLaunch) -> Iterator[Finding]:
    for one in launch.inside.given:
        if one.option and one.option.means == "port" and (number_of(one.value) or 0) > 65535:
            yield port_refused.finding(launch.at(f"{one.name} {one.value}"))


@fault("launcher-option", Severity.ERROR)
def no_such_option() -> None:
    """The launcher has no such option

    Symptom: "unrecognized arguments", before a rank starts.

    Cause: the word is misspelled, an option of another launcher, or an argument of the script that
    is written in front of it.

    Remedy: Write the option that is meant, or write it behind the script.

    Source: torch/distributed/run.py (2.13), torch/backends/xeon/run_cpu.py (2.13),
    accelerate/commands/launch.py (1.15)
    """


# Launchers with all of their options in the tables, and the beginnings of those that are not.
_COMPLETE = {
    "torchrun": ("--help",),
    "run_cpu": ("--help",),
    "accelerate": (
        *("--help", "--aws_", "--deepspeed_", "--fp8_", "--fsdp_", "--megatron_lm_", "--offload_"),
        *("--parallelism_config_", "--zero", "--gradient_clipping", "--env", "--vm"),
        *(option.name for option in load().accelerate.options),
    ),
}


# Keys of accelerate's file that its command does not take, and the option for each.
_KEYS_ALONE = {"--use_cpu": "--cpu", "--distributed_type": None}


def _options(launch: JudgedLaunch) -> Iterator[Finding]:
    inside = launch.inside
    package = "accelerate" if inside.launcher == "accelerate" else "torch"
    installed, newest = launch.context.versions, load().era("today").versions[package]
    others = _COMPLETE.get(inside.launcher)
    if others is None or minor(installed.get(package) or newest) > minor(newest):
        return
    names = [name for option in BY_NAME[inside.launcher].options for name in option.names]
    for one in inside.given:
        if "=" in one.words[0] and span_of(one.words[0]) is None:
            continue  # a key of a file
        name, is_known = plain(one.name), one.option is not None
        if inside.launcher == "accelerate" and name in _KEYS_ALONE:
            is_known = False
        if not is_known and re.fullmatch(r"--\w{3,}", name) and not name.startswith(others):
            text = f"{inside.launcher} has no option {one.name}"
            real = [text for text in names if text not in _KEYS_ALONE]
            near = next(iter(difflib.get_close_matches(one.name, real, n=1)), None)
            meant = _KEYS_ALONE.get(name, near)
            if meant is not None:
                text += f"; it has {meant}"
            yield no_such_option.finding(launch.at(text))


@fault("numa-binding-gpu", Severity.ERROR)
def binding_by_gpu() -> None:
    """torchrun --numa-binding needs GPUs

    Symptom: "Torch not compiled with CUDA enabled" or "no NVIDIA driver", before the first rank
    starts.

    Cause: torchrun binds a rank to the NUMA node of the GPU with its number. Without GPUs it fails.

    Remedy: Remove --numa-binding, and bind ranks with numactl, or start them with `cputune run`.

    Source: pytorch/pytorch#148689, pytorch/pytorch#149334
    """


def _numa_binding(launch: JudgedLaunch) -> Iterator[Finding]:
    inside = launch.inside
    bound = inside.meant("bind")
    if inside.launcher != "torchrun" or bound is None or not without_gpu(launch.facts):
        return
    text = f"--numa-binding {bound} asks for the NUMA node of a GPU, and there is no GPU"
    edits = tuple[Edit, ...]()
    for name in ("--numa-binding", "--numa_binding"):
        edits += launch.edits_by(Places.change_flag, f"{name} {bound}", "")
    yield binding_by_gpu.finding(launch.at(text), edits=edits)


def judge_around(launch: JudgedLaunch) -> Iterator[Finding]:
    """Faults in what surrounds a launch."""
    yield from _deprecated(launch)
    yield from _nested(launch)
    yield from _node_rank(launch)
    yield from _endpoint(launch)
    yield from _port(launch)
    yield from _options(launch)
    yield from _srun_tasks(launch)
    yield from _srun_cpus(launch)
    yield from judge_wrappers(launch)
    yield from _outside(launch)
    yield from _numa_binding(launch)


CHECKS = checks_of(__name__)
