"""Judging a launch in any file: its words, and what one of its ranks would see.

First the words are compared with what the versions accept. Then the launch becomes the facts of a
rank: the variables of its launcher, and its CPUs. The checks of machines judge those, so that a
fault has one code in a shell, a file and a pod.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from cputune.doctor.checks import CHECKS as MACHINE_CHECKS
from cputune.doctor.checks.launch import master_addr, master_loopback, ranks_alone
from cputune.doctor.checks.libraries import setting_without_library
from cputune.doctor.checks.settings import variable_mistyped
from cputune.doctor.checks.versions import stack_variable_ignored
from cputune.doctor.files import fixing
from cputune.doctor.files.arguments import judge_arguments
from cputune.doctor.files.around import judge_around, judge_wrappers
from cputune.doctor.files.configuration import configured
from cputune.doctor.files.context import Context, FilesOf, facts_in_container, with_gpus
from cputune.doctor.files.ended import by_another, judge_ended, variable_unread
from cputune.doctor.files.judged_launch import JudgedLaunch
from cputune.doctor.files.named_cpus import judge_named_cpus
from cputune.doctor.files.needs import judge_needs
from cputune.doctor.finding import Finding, Severity, checks_of, fault, findings_of
from cputune.doctor.variables import TRUE
from cputune.host import Host
from cputune.host.facts import Network
from cputune.host.probing.installed import dead_preloads
from cputune.launch.edit import Edit
from cputune.launch.launch import CONFINERS, Launch
from cputune.launch.launchers.mpirun import REFUSED, dialect_of, is_openmpi
from cputune.launch.located_words import pairs, plain
from cputune.launch.places import Places
from cputune.launch.script import TRAINER, are_trainers, is_example
from cputune.launch.target import Target
from cputune.plans.cores import usable_cores
from cputune.stack import LEAST_CCL_WORKERS, has_argument, why_too_few_ccl_workers
from cputune.stack.tables import load
from cputune.stack.uses import Fate, Word, vocabulary
from cputune.text import cpulist


def judge_launches(launches: Iterable[Launch], context: Context) -> Iterator[Finding]:
    """Every fault of these launches, wherever they run and on the machine of the context."""
    found = set(findings_of(MACHINE_CHECKS, context.facts))
    for one in launches:
        launch = _for_gpus(configured(_in_batch(_in_container(JudgedLaunch.of(one, context)))))
        machine_findings = found
        if launch.context is not context:
            machine_findings = set(findings_of(MACHINE_CHECKS, launch.facts))
        said = list(judge_everywhere(launch))
        yield from said
        if launch.context.here and not _is_behind_unknown(launch):
            task = launch.of_a_task
            yield from judge_needs(task)
            for finding in _of_a_rank(task, machine_findings):
                if not _is_said(finding, said):
                    yield finding


def _is_said(finding: Finding, said: Iterable[Finding]) -> bool:
    """Whether a variable that nothing reads was named already, with what to write instead."""
    named = re.search(r"(\w+)=", finding.evidence)
    if finding.code != stack_variable_ignored.code or named is None:
        return False
    return any(one.code == variable_unread.code and named[1] in one.evidence for one in said)


def _for_gpus(launch: JudgedLaunch) -> JudgedLaunch:
    """The launch on a machine with GPUs, if it asks for them on another machine than this one."""
    if launch.context.target.elsewhere and launch.asks_for_gpus and not _runs_on_cpu(launch):
        return replace(launch, context=replace(launch.context, facts=with_gpus(launch.facts)))
    return launch


def judge_everywhere(launch: JudgedLaunch) -> Iterator[Finding]:
    """The faults that a launch has on every machine with these packages.

    If a launch begins with an unknown variable, which may hold any launcher, only its arguments and
    the programs in front of it are judged.
    """
    for judge in JUDGES_OF_UNKNOWN if _is_behind_unknown(launch) else JUDGES:
        yield from judge(launch)


def _is_behind_unknown(launch: Launch) -> bool:
    words = launch.before
    if launch.container is not None:
        words = words[: launch.container.at]
    return any(word.startswith("$") for word in words)


def _in_container(launch: JudgedLaunch) -> JudgedLaunch:
    """The launch in the container that its command starts; its image is not known.

    apptainer and singularity leave it the variables and the CPUs of the shell.
    """
    container, context = launch.sealed, launch.context
    if container is None or context.target.elsewhere:
        return launch
    facts = facts_in_container(context.facts, container.cpus)
    cpus = math.ceil(container.cpus) or None
    target = Target(kind="pod", source=container.called, cpus_per_node=cpus)
    inside = replace(context, facts=facts, host=FilesOf(context.host), target=target)
    return replace(launch, context=inside)


def _in_batch(launch: JudgedLaunch) -> JudgedLaunch:
    """The launch on as many machines as the header of its batch script asks for."""
    nodes = launch.job_nodes
    if nodes is None or not (launch.part or launch.launcher == "mpirun"):
        return launch
    return replace(launch, environment={"SLURM_NNODES": str(nodes), **launch.environment})


@fault("file-flag-refused", Severity.ERROR)
def flag_refused() -> None:
    """A flag that the installed versions refuse

    Symptom: "unrecognized arguments", "invalid choice", or an error about a flag.

    Cause: guides show --use_ipex (transformers 4.20 to 4.56), --no_cuda (to 4.57), --xpu_backend
    (to 4.31) and --ddp_backend ccl (transformers to 5.0 with accelerate to 1.12). ``cputune doctor
    --stack installed`` lists what your versions accept.

    Remedy: Change the flags as the evidence says.

    Source: huggingface/transformers#40784, huggingface/transformers#42852,
    huggingface/accelerate#3883
    """


@fault("file-flag-ignored", Severity.WARNING)
def flag_ignored() -> None:
    """A flag has no effect here

    Symptom: the flag changes neither speed nor memory.

    Cause: --fp16 trains in fp32 on a CPU, without a message. transformers 4.53 to 4.56 accept
    --use_ipex and leave it to accelerate, which may ignore it.

    Remedy: Remove it, or write what the evidence says.

    Source: huggingface/transformers#40784
    """


def _flags(launch: JudgedLaunch) -> Iterator[Finding]:
    """Flags of TrainingArguments that these versions refuse or ignore."""
    for word, parser in faulty_words(launch):
        notes = filter(None, (word.reason, word.advice))
        evidence = f"{word.spelling} is {word.state.value} by {word.reader}"
        evidence = ": ".join(filter(None, (evidence, "; ".join(notes))))
        dropped = tuple[str, ...]()
        if not (word.instead or "").startswith("--"):
            dropped = (launch.at(f"{word.spelling} is removed: {evidence}"),)
        check, edits, severity = flag_refused, tuple[Edit, ...](), None
        if word.state is Fate.IGNORED:
            check = flag_ignored
        if parser == "trainer":
            edits = _without_word(word, launch)
        else:  # another parser may have a flag of this name that does what it says
            evidence += _IF_TRAINERS
            severity = Severity.WARNING
        yield check.finding(launch.at(evidence), severity=severity, edits=edits, dropped=dropped)


_IF_TRAINERS = ", if the script parses TrainingArguments"


def _without_word(word: Word, launch: JudgedLaunch) -> tuple[Edit, ...]:
    """The edit that writes a flag as these versions spell it, or removes it."""
    if word.instead and word.instead.startswith("--"):
        return launch.edits_by(Places.change_flag, word.spelling, word.instead)
    if " " in word.spelling:
        return launch.edits_by(Places.change_flag, word.spelling, "")
    return launch.edits_by(Places.without_value, word.spelling)


def faulty_words(launch: JudgedLaunch) -> Iterator[tuple[Word, str]]:
    """The flags that are refused or ignored, each with its reader: trainer, or unknown."""
    versions = launch.context.versions
    for word in vocabulary(versions):
        flag, _, choice = word.spelling.partition(" ")
        given = None
        if flag.startswith("--"):
            given = launch.argument(flag)
        if word.state is Fate.ACCEPTED or given is None or (choice and given != choice):
            continue
        parser = launch.reader_of(flag)
        if parser == "unknown" and not _may_parse_trainers(launch, flag):
            continue
        off = not choice and not launch.switched_on(flag)
        harmless = off and (word.state is Fate.IGNORED or has_argument(versions, flag[2:]))
        if parser != "its own" and not harmless:
            yield word, parser


def _may_parse_trainers(launch: JudgedLaunch, flag: str) -> bool:
    """Whether a script that cannot be read may parse TrainingArguments, by its other arguments.

    ``--no-cuda --epochs 3 --gamma 0.7`` is of an example of PyTorch.
    """
    others = {name for name, _ in pairs(launch.arguments)} - {plain(flag)}
    known = {word.spelling.partition(" ")[0] for word in vocabulary(launch.context.versions)}
    versions = launch.context.versions
    return not others or any(
        name in known or name in TRAINER or has_argument(versions, name[2:]) for name in others
    )


@fault("file-use-cpu", Severity.ERROR)
def use_cpu_missing() -> None:
    """use_cpu is missing

    Symptom: "Your setup doesn't support bf16/gpu".

    Cause: bf16 without use_cpu means bf16 on a GPU.

    Remedy: Set use_cpu: true in accelerate's file, or pass --cpu to accelerate launch or --use_cpu
    to Trainer.

    Source: huggingface/transformers#20445
    """


def _runs_on_cpu(launch: JudgedLaunch) -> bool:
    """Whether the launch asks for the CPU in any way."""
    inside = launch.inside
    options = inside.option("--cpu", "--use_cpu", "--config_file") is not None
    flags = launch.switched_on("--use_cpu") or launch.switched_on("--no_cuda")
    set_so = launch.variables.get("ACCELERATE_USE_CPU", "").lower() in TRUE
    if set_so or flags or (inside.launcher == "accelerate" and options):
        return True
    return launch.asks_for_cpu


def _bf16(launch: JudgedLaunch) -> Iterator[Finding]:
    precision = launch.precision
    if precision == "--bf16" and not launch.may_be_trainers(precision):
        return
    cpu = _runs_on_cpu(launch) or bool(launch.facts.accelerators)
    # Without use_cpu, several ranks of accelerate have a graver fault: ranks-alone.
    if (
        precision.endswith("bf16")
        and not cpu
        and not (launch.launcher == "accelerate" and launch.several)
    ):
        text = f"{precision} without --use_cpu means bf16 on a GPU, and is refused"
        edits: tuple[Edit, ...] = ()
        severity = None
        if _reads_trainer_flags(launch):
            edits = launch.edits_by(fixing.force_cpu)
        elif launch.may_be_trainers("--use_cpu"):
            severity = Severity.WARNING
            text += _IF_TRAINERS
            edits = launch.edits_by(fixing.by_command, "export ACCELERATE_USE_CPU=true")
        yield use_cpu_missing.finding(launch.at(text), severity=severity, edits=edits)


@fault("file-backend", Severity.ERROR)
def wrong_backend() -> None:
    """This backend cannot work in this launch

    Symptom: "Default process group has not been initialized", or "backend ccl is not available".

    Cause: a backend with one process raises ValueError. accelerate accepts ccl only if
    CCL_WORKER_COUNT is 1 or more.

    Remedy: Name a backend only for several ranks.

    Source: intel/torch-ccl#48, intel/llm-on-ray#242
    """


def _backend(launch: JudgedLaunch) -> Iterator[Finding]:
    backend = launch.backend
    if backend and not launch.may_be_trainers("--ddp_backend"):
        return
    numbered = any(n in launch.environment for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    if backend and launch.launcher == "python" and not (launch.part or numbered):
        text = f"--ddp_backend {backend} with one process raises ValueError"
        edits = launch.edits_by(Places.without_value, "--ddp_backend")
        remedy = "Remove --ddp_backend."
        evidence = launch.at(text)
        yield wrong_backend.finding(evidence, remedy=remedy, edits=edits, dropped=(evidence,))
    few = why_too_few_ccl_workers(launch.variables.get("CCL_WORKER_COUNT"))
    if backend == "ccl" and launch.context.versions.oneccl is not None and few:
        yield wrong_backend.finding(
            launch.at(f"--ddp_backend ccl: {few}, and refuses"),
            command=f"export CCL_WORKER_COUNT={LEAST_CCL_WORKERS}",
        )


@fault("file-one-process", Severity.ERROR)
def one_process() -> None:
    """This launch starts one process, whatever num_processes says

    Symptom: num_processes is 2, and one process trains.

    Cause: on CPUs accelerate launch starts ranks only through mpirun, and only with a host file.
    Tried with 0.34.2 to 1.15.0.

    Remedy: Name a host file (mpirun_config.mpirun_hostfile, --mpirun_hostfile: one line 'localhost'
    is enough) with distributed_type MULTI_CPU, or launch with mpirun or torchrun.

    Source: huggingface/accelerate#2741
    """


def _accelerate(launch: JudgedLaunch) -> Iterator[Finding]:
    if launch.launcher != "accelerate" or launch.option("--config_file") is not None:
        return
    single = (launch.option("--distributed_type") or "").upper() in ("NO", "FALSE")
    unnamed = launch.option("--mpirun_hostfile") is None
    if launch.several and (single or unnamed) and not launch.facts.accelerators:
        missing = ""
        if unnamed:
            missing = " without --mpirun_hostfile"
        kind = ""
        if single:
            kind = ", --distributed_type NO"
        text = f"--num_processes {launch.total}{missing}{kind}"
        replacement = fixing.ranks_by_torchrun(launch)
        yield by_another(one_process, text, replacement, launch)
    version = launch.context.versions.accelerate
    for option in load().accelerate.options if version is not None and launch.script else ():
        if launch.option(option.name) is not None and not option.covers(version):
            text = f"accelerate launch {option.name} is refused by accelerate {version}"
            edits = launch.edits_by(Places.without_value, option.name)
            evidence = launch.at(text)
            yield flag_refused.finding(evidence, edits=edits, dropped=(evidence,))


@fault("file-mpi-dialect", Severity.ERROR)
def mpi_dialect() -> None:
    """The installed mpirun does not know these options

    Symptom: "unrecognized argument …", or "mpirun was unable to find the specified executable file"
    with a name that is an option.

    Cause: Intel MPI and MPICH take -genv K V, -ppn P and -f FILE; Open MPI takes -x K=V, --map-by
    ppr:P:node and --hostfile FILE. All call their launcher mpirun.

    Remedy: Write them in its dialect, as `cputune emit --format mpirun` does.

    Source: https://www.mpich.org/static/docs/latest/www1/mpiexec.html,
    https://docs.open-mpi.org/en/main/man-openmpi/man1/mpirun.1.html
    """


@fault("file-openmpi-one-core", Severity.WARNING)
def one_core_each() -> None:
    """Open MPI binds each of these ranks to one core

    Symptom: two ranks, both as slow as one thread.

    Cause: with at most two ranks Open MPI binds each to a core by default, which all its threads
    share.

    Remedy: Add --bind-to none, or --map-by ppr:P:node:pe=T for T cores each.

    Source: open-mpi/ompi#13009, open-mpi/ompi#12900
    """


@fault("file-bound-twice", Severity.WARNING)
def bound_behind() -> None:
    """Ranks are bound twice

    Symptom: all ranks share a few cores, or the second binding is refused.

    Cause: numactl behind mpirun binds every rank to the same CPUs, within those that mpirun gave
    it.

    Remedy: Keep one: mpirun's pinning, or numactl for each rank.

    Source: deepspeedai/DeepSpeed#4531
    """


def _typed_dialect(launch: JudgedLaunch) -> str:
    """The MPI of the program that the launch names; empty if it is not known."""
    launchers = [(item.name, item.path, item.dialect) for item in launch.facts.launchers]
    return dialect_of(launch.program, launchers) or ""


def _mpirun(launch: JudgedLaunch) -> Iterator[Finding]:
    if launch.launcher != "mpirun":
        return
    dialect = ""
    if launch.context.here:
        dialect = _typed_dialect(launch)
    refused = dict[str, None]()
    for word in launch.options:
        option = word.partition("=")[0]
        if option in REFUSED.get(dialect, ()):
            refused[option] = None
    if refused:
        program = launch.program.rpartition("/")[2]
        text = f"{', '.join(refused)}: refused by {dialect}, the installed {program}"
        edits = launch.edits_by(fixing.in_dialect, dialect)
        dropped = tuple(
            launch.at(f"{one} is removed: {dialect} has no such option")
            for one in fixing.without_counterpart(launch, dialect)
        )
        yield mpi_dialect.finding(launch.at(text), edits=edits, dropped=dropped)
    binds = launch.option("--bind-to", "-bind-to", "--rankfile", "-rf", "--cpu-set") is not None
    binds |= ":pe=" in (launch.option("--map-by", "-map-by") or "").lower()
    if is_openmpi(dialect) and launch.total in ("1", "2") and not binds:
        text = f"mpirun -n {launch.total} without --bind-to"
        edits = launch.edits_by(fixing.behind_program, "--bind-to", "none")
        yield one_core_each.finding(launch.at(text), edits=edits)
    behind = [word.rpartition("/")[2] for word in launch.words[len(launch.before) :]]
    if binder := next((name for name in behind if name in CONFINERS), None):
        text = f"{binder} behind mpirun binds every rank to the same CPUs"
        yield bound_behind.finding(launch.at(text))


def _of_a_rank(launch: JudgedLaunch, machine_findings: set[Finding]) -> Iterator[Finding]:
    """What the machine's checks find in a rank of this launch and not without it."""
    variables, options = _set_in_a_rank(launch)
    kept = {name: text for name, text in variables.items() if "$" not in text}
    unknown = [name for name in variables if name not in kept and name != "LD_PRELOAD"]
    preload = _preload(variables, launch.context.host)
    kept |= {"LD_PRELOAD": preload} if preload else {}
    topology = launch.facts.topology
    each_is_known = launch.context.target.kind == "hosts"
    facts = replace(
        launch.facts,
        # The interfaces of one machine say nothing of the others.
        network=Network() if launch.nodes > 1 and not each_is_known else launch.facts.network,
        topology=replace(topology, allowed=_bound_to(launch, topology.allowed)),
        environment=kept,
        preload_missing=dead_preloads(
            _with_paths(preload, launch), launch.context.host, launch.facts
        ),
    )
    for finding in findings_of(MACHINE_CHECKS, facts):
        if (
            finding in machine_findings
            or (finding.severity is Severity.ADVICE and finding.code not in _ADVICE)
            or finding.code in _MEANT
        ):
            continue
        evidence, command, remedy = finding.evidence, finding.command, finding.remedy
        if any(name in evidence for name in unknown):
            continue
        for name, option in options.items():
            evidence = evidence.replace(f"{name}={kept.get(name, '(unset)')}", option)
            if option.startswith("-") and command is not None and name in command:
                if command.startswith("unset "):
                    remedy = f"Change or remove {option}."
                command = None
        if _is_meant(finding, launch):
            continue
        judged = _as_known(replace(finding, evidence=evidence), launch)
        evidence = judged.evidence
        for name, place in launch.set_in.items():
            if f"{name}={kept.get(name)}" in evidence:
                evidence = f"{evidence}; {place} sets {name}"
        evidence = launch.at(evidence)
        takes_out = (command or "").startswith("unset ")
        yield replace(
            judged,
            evidence=evidence,
            remedy=remedy,
            dropped=(f"{evidence}: it is removed",) if takes_out else (),
            command=command,
            edits=_edits_of_a_rank(finding, options, launch),
        )


# What is said of a file although it is advice: it names what is written there in vain.
_ADVICE = (setting_without_library.code,)


def _as_known(finding: Finding, launch: JudgedLaunch) -> Finding:
    """A machine's finding as sure as what is known of the script and of the other machines."""
    evidence = finding.evidence
    if finding.code in _OF_LIBRARIES and launch.script and not is_example(launch.script):
        by_arguments = are_trainers(launch.arguments)
        if finding.code == ranks_alone.code and not by_arguments:
            finding = replace(finding, severity=Severity.WARNING)
        by_hand = finding.code == master_addr.code and not _by_mpi(launch)
        by_hand &= "by LOCAL_RANK" not in evidence  # a script may ignore that
        if launch.script_text is None and not by_hand:
            title, severity = _OF_LIBRARIES[finding.code]
            if by_arguments:
                severity = Severity.WARNING
            evidence = f"{evidence}; the script could not be read"
            return replace(finding, title=title, severity=severity, evidence=evidence)
    elastic = launch.inside.elastic_nodes
    if finding.code == master_loopback.code and elastic is not None and elastic[0] == 1:
        evidence = f"{evidence}; one machine would train alone"
        return replace(finding, severity=Severity.WARNING, evidence=evidence)
    return finding


# Findings that depend on what the script uses: title and severity if it cannot be read.
_OF_LIBRARIES = {
    ranks_alone.code: (
        "Each rank trains alone if this script uses Trainer or accelerate",
        Severity.ADVICE,
    ),
    master_addr.code: (
        "Ranks do not know the address of rank 0 if this script uses torch.distributed",
        Severity.WARNING,
    ),
}


def _is_meant(finding: Finding, launch: JudgedLaunch) -> bool:
    """Whether the file shows that what a machine's check finds is as it should be."""
    if finding.code == master_addr.code:
        return launch.is_by_mpi
    if "PET_NPROC_PER_NODE" in finding.evidence and launch.inside.launcher == "python":
        return True  # only torchrun reads it
    if finding.code in _OF_CPUS and _is_on_other_hosts(launch):
        return True
    if finding.code == ranks_alone.code:
        return launch.is_own
    name = finding.evidence.partition("=")[0]
    return finding.code == variable_mistyped.code and launch.context.reads_variable(name)


_OF_CPUS = ("ranks-oversubscribed", "threads-affinity")


def _is_on_other_hosts(launch: JudgedLaunch) -> bool:
    """Whether the line lists several machines: their CPUs are not known here."""
    return len(launch.hosts) > 1 and launch.context.target.kind == "this machine"


def _reads_trainer_flags(launch: JudgedLaunch) -> bool:
    """Whether --use_cpu can be passed to the script, or --cpu to accelerate launch.

    A script that cannot be read may have its own parser, which would refuse the flag.
    """
    if launch.inside.launcher == "accelerate":
        return True
    is_readable = launch.script_text is not None or is_example(launch.script)
    return is_readable and launch.is_trainers("--use_cpu")


def _is_left_to_you(finding: Finding, launch: JudgedLaunch) -> bool:
    """Whether a fix could break what is not known here."""
    if finding.code == master_addr.code:  # rank 0 is on a machine of the file
        return launch.host_file is not None and launch.context.target.nodes != 1
    if finding.code == ranks_alone.code:  # the job may have GPUs
        return launch.context.target.gpus is None
    takes_ccl = (finding.command or "").startswith("unset CCL_")
    return takes_ccl and not launch.by_library


def _edits_of_a_rank(
    finding: Finding, options: Mapping[str, str], launch: JudgedLaunch
) -> tuple[Edit, ...]:
    """The edits for a machine's finding: the deciding option, or the variable."""
    if _is_left_to_you(finding, launch):
        return ()
    if finding.code == ranks_alone.code and _reads_trainer_flags(launch):
        return launch.edits_by(fixing.force_cpu)
    counted = options.get("PET_NPROC_PER_NODE", "")
    if counted.endswith(" gpu"):
        return ()
    if counted and "PET_NPROC_PER_NODE" in (finding.command or ""):
        return launch.edits_by(Places.change_flag, counted, "--nproc_per_node 1")
    precision = options.get("ACCELERATE_MIXED_PRECISION", "")
    if precision and "ACCELERATE_MIXED_PRECISION" in (finding.command or ""):
        if not precision.endswith("fp16"):
            return ()  # beside the option the variable would change nothing
        return launch.edits_by(Places.change_flag, precision, "--mixed_precision no")
    return launch.edits_by(fixing.by_command, finding.command)


# The options that set the address of rank 0; the default is 127.0.0.1.
_ADDRESS = {"torchrun": "--master_addr", "accelerate": "--main_process_ip"}
# Faults of a machine that are intended if a launch asks for them: ``taskset -c 0``.
_MEANT = ("one-core",)


@dataclass(frozen=True, slots=True)
class _RankVariables:
    """The variables of rank 0, and what decides some of them: an option, or a default."""

    variables: dict[str, str]
    options: dict[str, str]

    def decide(self, name: str, option: str, value: str | None) -> None:
        """Set a variable from an option, if that has a value."""
        if value:
            self.variables[name], self.options[name] = value, option

    def of_launcher(self, launch: Launch, cores: int, ranks: int | None) -> None:
        """Variables for the address, the threads and the local ranks that the launcher sets."""
        if launch.launcher in _ADDRESS:
            option = _ADDRESS[launch.launcher]
            address = launch.option(option) or self.variables.get("PET_MASTER_ADDR")
            source = f"{option} {address or 'missing'}"
            endpoint = launch.option("--rdzv_endpoint")
            if address is None and launch.option("--config_file"):
                address = "$unknown"  # the file may name it
            if address is None and endpoint:  # HOST:PORT, which around.py judges
                source = f"--rdzv_endpoint {endpoint}"
                address = re.sub(r":\d+$", "", endpoint)
            self.decide("MASTER_ADDR", source, address or "127.0.0.1")
        if launch.launcher == "torchrun":
            self.variables["TORCHELASTIC_RUN_ID"] = "none"
            if launch.total in ("auto", "cpu", "gpu"):
                self.decide("PET_NPROC_PER_NODE", f"--nproc_per_node {launch.total}", launch.total)
        elif launch.launcher == "accelerate":
            threads = launch.option("--num_cpu_threads_per_process")
            self.decide("OMP_NUM_THREADS", f"--num_cpu_threads_per_process {threads}", threads)
            if cores:
                self.variables.setdefault("OMP_NUM_THREADS", str(max(1, cores // (ranks or 1))))
        elif (
            launch.launcher == "mpirun"
            and launch.several
            and "OMP_NUM_THREADS" not in self.variables
            and cores
        ):
            source = f"{cores} threads (OMP_NUM_THREADS is unset)"
            self.decide("OMP_NUM_THREADS", source, str(cores))

    def number(self, launch: JudgedLaunch, ranks: int | None) -> None:
        """The rank numbers that mpirun or torchrun gives to the first rank."""
        if ranks:
            world = ranks * launch.nodes
        else:
            world = launch.total_ranks or 0
        if _by_mpi(launch) and world:
            self.variables.update(PMI_RANK="0", PMI_SIZE=str(world))
        elif launch.launcher == "torchrun" and world:
            self.variables.update(RANK="0", WORLD_SIZE=str(world))
        if ranks and (_by_mpi(launch) or launch.launcher == "torchrun"):
            self.variables["LOCAL_WORLD_SIZE"] = str(ranks)


def _by_mpi(launch: Launch) -> bool:
    """Whether mpirun starts the ranks; accelerate uses it if it has a host file."""
    if launch.launcher == "accelerate":
        return launch.option("--mpirun_hostfile") is not None
    return launch.launcher == "mpirun"


def _set_in_a_rank(launch: JudgedLaunch) -> tuple[dict[str, str], dict[str, str]]:
    """The variables of rank 0, and what decides some of them."""
    rank = _RankVariables(dict(launch.variables), {})
    variables, options = rank.variables, rank.options
    ranks = None
    if launch.nodes == launch.machines:
        ranks = launch.ranks
    elif launch.launcher == "mpirun" and launch.total_ranks:  # a job spreads them over its machines
        ranks = max(1, launch.total_ranks // launch.nodes)
    if launch.launcher == "accelerate" and not _by_mpi(launch):
        ranks = None
    precision = launch.precision
    rank.decide("ACCELERATE_MIXED_PRECISION", precision, precision[-4:])
    if _runs_on_cpu(launch):
        variables["ACCELERATE_USE_CPU"] = "true"
    elif "ACCELERATE_USE_CPU" not in variables:
        missing = "without --use_cpu"
        if launch.launcher == "accelerate":
            missing = "--use_cpu is missing"
        options["ACCELERATE_USE_CPU"] = missing
    rank.of_launcher(launch, len(usable_cores(launch.facts)), ranks)
    if launch.host_file and "MASTER_ADDR" not in variables:
        options["MASTER_ADDR"] = "-f"  # the first machine is in the file
    if launch.part or "RANK" in launch.environment:
        variables["SLURM_PROCID"] = "0"  # the variables of a launch are no left-over
    if launch.nodes > 1:
        variables["GROUP_WORLD_SIZE"] = str(launch.nodes)
    rank.number(launch, ranks)
    return variables, options


def _preload(variables: Mapping[str, str], host: Host) -> str:
    """LD_PRELOAD with its variables expanded, without entries that are known only at run time."""
    outside = host.environment()

    def value_of(match: re.Match[str]) -> str:
        name = match[1]
        if name != "LD_PRELOAD" and variables.get(name):
            return variables[name]
        if outside.get(name):
            return outside[name]
        if name in ("LIB", "ORIGIN", "PLATFORM"):  # ld.so expands these
            return match[0]
        return "$?"

    preload = re.sub(
        r"\$\{?([A-Za-z_]\w*)(?::[-+][^}]*)?\}?", value_of, variables.get("LD_PRELOAD", "")
    )
    return ":".join(entry for entry in re.split(r"[:\s]+", preload) if "$?" not in entry)


def _with_paths(preload: str, launch: JudgedLaunch) -> str:
    """The entries that can be judged: ld.so may find a bare name in the image of a pod."""
    if launch.context.target.kind != "pod":
        return preload
    return ":".join(entry for entry in preload.split(":") if re.search(r"[/$]", entry))


def _bound_to(launch: Launch, allowed: tuple[int, ...]) -> tuple[int, ...]:
    """The CPUs that numactl or taskset allow; all allowed ones if they name none."""
    with contextlib.suppress(ValueError):
        named = cpulist.parse(launch.cpus or "")
        allowed = tuple(cpu for cpu in named if cpu in allowed) or allowed
    return allowed


Judge: TypeAlias = Callable[[JudgedLaunch], Iterator[Finding]]
JUDGES_OF_ARGUMENTS: tuple[Judge, ...] = (_flags, judge_arguments)
JUDGES_OF_UNKNOWN = (*JUDGES_OF_ARGUMENTS, judge_wrappers)
# What is judged of a launch wherever it runs, in the order in which it is printed.
JUDGES: tuple[Judge, ...] = (
    *JUDGES_OF_ARGUMENTS,
    judge_ended,
    judge_around,
    judge_named_cpus,
    _bf16,
    _backend,
    _accelerate,
    _mpirun,
)
CHECKS = checks_of(__name__)
