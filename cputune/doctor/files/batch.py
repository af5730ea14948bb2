"""A batch script as a whole: what its header asks for, and which machines start something."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from cputune.doctor.files.around import node_rank_fixed
from cputune.doctor.files.context import Context
from cputune.doctor.files.yaml_spans import read_documents
from cputune.doctor.finding import Finding, Severity, checks_of, fault
from cputune.errors import UsageError
from cputune.launch.edit import Edit
from cputune.launch.launch import Launch
from cputune.launch.located_words import number_of
from cputune.launch.places import Places
from cputune.launch.target import memory_requests


def judge_batch(launches: Iterable[Launch], context: Context) -> Iterator[Finding]:
    """Faults of a batch script, and of its launches on several machines."""
    text = ""
    if context.places is not None:
        text = context.places.text
    yield from _memory(text, context)
    for launch in launches:
        yield from _first_machine(launch, context)
        yield from _address(launch, context)
        yield from _machine_rank(launch, context)


@fault("sbatch-memory-twice", Severity.ERROR)
def memory_twice() -> None:
    """The header asks for memory in two ways

    Symptom: "sbatch: fatal: --mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive".

    Cause: --mem is for each machine, --mem-per-cpu for each CPU; sbatch takes one of them.

    Remedy: Keep one.

    Source: https://slurm.schedmd.com/sbatch.html, dask/dask-jobqueue#698
    """


def _memory(text: str, context: Context) -> Iterator[Finding]:
    requests = memory_requests(text)
    names = {one.partition("=")[0] for one in requests}
    if len(names) > 1:
        line = text.count("\n", 0, text.find(requests[-1].partition("=")[0])) + 1
        yield memory_twice.finding(context.at(line, " and ".join(requests)))


@fault("first-machine-only", Severity.ERROR)
def first_machine_only() -> None:
    """Nothing starts this launch on the other machines of the job

    Symptom: all ranks run on the first machine, or they wait for machines that never come.

    Cause: a batch system runs the script on the first machine alone. srun, mpirun, pbsdsh or ssh
    starts commands on the others; a loop in the script does not.

    Remedy: Start one launcher on each machine: srun --ntasks-per-node=1 torchrun …

    Source: ai4d-iasc/trixie#58, https://slurm.schedmd.com/sbatch.html
    """


_STARTS_ELSEWHERE = re.compile(
    r"\b(?:srun|mpirun|mpiexec\S*|ssh|pdsh|clush|pbsdsh|blaunch|parallel|horovodrun|ray|dask)\b"
)


def _first_machine(launch: Launch, context: Context) -> Iterator[Finding]:
    inside = launch.inner or launch
    nodes = context.target.nodes or 1
    if context.target.kind != "job" or nodes < 2 or inside.machines < 2:
        return
    code = ""
    if context.places is not None:
        code = re.sub(r"(?m)(?:^|(?<=\s))#[^\n]*", "", context.places.code)
    if _STARTS_ELSEWHERE.search(code) or inside.launcher not in ("torchrun", "accelerate"):
        return
    text = (
        f"{inside.program} for {inside.machines} machines runs on the first machine of the job: "
        "the script has no srun, mpirun or ssh"
    )
    yield first_machine_only.finding(context.at(launch.line, text))


@fault("address-unread", Severity.WARNING)
def address_unread() -> None:
    """torchrun does not read this address

    Symptom: rank 0 is not on the machine of --master_addr, or a port other than --master_port is
    used.

    Cause: --master_addr and --master_port count for --rdzv_backend static without --rdzv_endpoint.
    With c10d the machines meet at --rdzv_endpoint, and torchrun numbers them as they come.

    Remedy: Remove them. If each machine must have a fixed number, write --rdzv_backend static
    (the default) with --node_rank, and no --rdzv_endpoint.

    Source: pytorch/pytorch#137402, https://docs.pytorch.org/docs/stable/elastic/run.html
    """


def _address(launch: Launch, context: Context) -> Iterator[Finding]:
    inside = launch.inner or launch
    endpoint = inside.meant("rendezvous endpoint")
    backend = inside.meant("rendezvous backend") or "static"
    if inside.launcher != "torchrun" or not (endpoint or backend != "static"):
        return
    unread = []
    for one in inside.given:
        if one.option and one.option.means in ("address", "port"):
            unread.append(one)
    if not unread:
        return
    names = " and ".join(dict.fromkeys(one.name for one in unread))
    reason = "--rdzv_endpoint"
    if not endpoint:
        reason = f"--rdzv_backend {backend}"
    host, _, port = (endpoint or "").rpartition(":")
    same = all(one.value in (host, port) for one in unread)
    severity = None
    if same:
        severity = Severity.ADVICE
    edits = tuple[Edit, ...]()
    for one in unread:
        edits += context.edits_by(Places.without_value, inside, one.name)
    yield address_unread.finding(
        context.at(launch.line, f"{names} beside {reason}"), severity=severity, edits=edits
    )


def _machine_rank(launch: Launch, context: Context) -> Iterator[Finding]:
    """accelerate reads the number of its machine from a file that all machines share."""
    inside = launch.inner or launch
    path = inside.option("--config_file")
    if inside.launcher != "accelerate" or not path or inside.meant("node rank") is not None:
        return
    values = configuration(path, context)
    machines = number_of(str(values.get("num_machines"))) or 1
    if launch.step is None or machines < 2 or "machine_rank" not in values:
        return
    rank = values["machine_rank"]
    text = f"{path}: machine_rank {rank} is the number of each of {machines} machines"
    remedy = (
        "Give each machine its number: srun bash -c 'accelerate launch --machine_rank "
        "$SLURM_NODEID …', in single quotes."
    )
    by_mpirun = values.get("mpirun_config")
    if not isinstance(by_mpirun, dict) or not by_mpirun.get("mpirun_hostfile"):
        text += "; without mpirun_hostfile accelerate starts one process on each"
    yield node_rank_fixed.finding(
        context.at(launch.line, text), severity=Severity.ERROR, remedy=remedy
    )


def configuration(path: str, context: Context) -> dict[str, object]:
    """The keys of an accelerate configuration that a launch names; empty if it is not readable."""
    text = context.text_of(path)
    if text is None:
        return {}
    try:
        documents = read_documents(text, path)
    except UsageError:
        return {}
    if not documents:
        return {}
    return dict(documents[0].mapping())


CHECKS = checks_of(__name__)
