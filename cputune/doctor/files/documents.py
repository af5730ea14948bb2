"""YAML that starts a training, read with the line of every value, and judged.

accelerate's configuration is judged by the accelerate that will read it: its keys, and the launch
that its values are the options of. Of a PyTorchJob or TrainJob of Kubeflow what stops or slows a
training on CPUs is said; what the operator and ``kubectl apply`` refuse in plain words (names,
types, counts) is left to them. The command of a pod is judged as any launch is, on a machine of
which nothing is known but the CPUs that it may use.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from cputune.doctor.checks.launch import ranks_alone
from cputune.doctor.checks.limits import ranks_auto
from cputune.doctor.checks.precision import fp16_ignored
from cputune.doctor.files.context import Context, facts_elsewhere
from cputune.doctor.files.ended import judge_sourced
from cputune.doctor.files.judge import judge_launches, one_process, use_cpu_missing
from cputune.doctor.finding import Check, Finding, Severity, checks_of, fault
from cputune.errors import UsageError
from cputune.host import Host
from cputune.launch.edit import Edit
from cputune.launch.launch import Launch
from cputune.launch.shell import read_words
from cputune.launch.target import Target
from cputune.launch.words import Span, Word, number_of
from cputune.stack import load
from cputune.text.quantities import bytes_of

VALUES_AT_MOST = 20_000
"""A job has some hundred; by aliases a small file can stand for any number."""

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A YAML document as plain values, with the line (from 1) of each path into it.

    ``spans`` say from which character to which a key with its value stands (of an item of a list
    the value); there are none in a document in flow style (JSON), which has no lines to change.
    ``words`` are the scalars as they are written, each with its own span.
    """

    value: Any
    lines: dict[Path, int] = field(default_factory=dict)
    spans: dict[Path, tuple[int, int]] = field(default_factory=dict)
    words: dict[Path, Word] = field(default_factory=dict)

    def get(self, *path: str | int) -> Any:
        """The value at a path; None where there is nothing, or another kind of thing."""
        value = self.value
        for step in path:
            if isinstance(value, dict) and isinstance(step, str):
                value = value.get(step)
            elif isinstance(value, list) and isinstance(step, int) and step < len(value):
                value = value[step]
            else:
                return None
        return value

    def mapping(self, *path: str | int) -> dict[str, Any]:
        """The mapping at a path; an empty one where there is none."""
        value = self.get(*path)
        return value if isinstance(value, dict) else {}

    def items(self, *path: str | int) -> list[Any]:
        """The list at a path; an empty one where there is none."""
        value = self.get(*path)
        return value if isinstance(value, list) else []

    def command(self, *path: str | int) -> list[str]:
        """The list of words at a path, each with its span."""
        items = self.items(*path)
        return [self.words.get((*path, n), str(item)) for n, item in enumerate(items)]

    def line(self, *path: str | int) -> int | None:
        """The line of a path, or of the nearest thing around it; None for the whole document."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path) if path else None


def read_documents(text: str, name: str) -> tuple[Document, ...]:
    """Every document of a YAML (or JSON) file. Raises UsageError where it is none."""
    try:
        return tuple(_document(root, text) for root in yaml.compose_all(text, yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        said = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise UsageError(
            f"{name}:{mark.line + 1}: not YAML: {said}" if mark else f"{name}: not YAML: {said}",
            hint="mind the indentation, and quote values that hold : or #; is it a text file?",
        ) from error


def _document(root: yaml.Node, text: str) -> Document:
    lines: dict[Path, int] = {}
    words: dict[Path, Word] = {}
    spans: dict[Path, tuple[int, int]] = {}
    scalars = yaml.constructor.SafeConstructor()

    def plain(node: yaml.Node, path: Path) -> Any:
        # An alias is the same node again: a few lines may stand for billions of values.
        if len(lines) > VALUES_AT_MOST:
            raise ValueError("it holds too many values, or refers to itself")
        lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.SequenceNode):
            return [plain(value, (*path, number)) for number, value in enumerate(node.value)]
        if not isinstance(node, yaml.MappingNode):
            if isinstance(node, yaml.ScalarNode):
                words.setdefault(path, _word(node, text))
            return scalars.construct_object(node)
        found: dict[str, Any] = {}
        for key, value in node.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else "?"
            place = (*path, name)
            lines[place] = key.start_mark.line + 1
            found[name] = plain(value, place)
            if not node.flow_style:
                spans[place] = key.start_mark.index, _end(value)
        return found

    return Document(value=plain(root, ()), lines=lines, spans=spans, words=words)


def _word(node: yaml.ScalarNode, text: str) -> Word:
    """A scalar as a word with its span; of a literal block with the place of each letter."""
    value, span = str(node.value), Span(node.start_mark.index, node.end_mark.index)
    source = text[span.start : span.end]
    exact = source in (value, f'"{value}"', f"'{value}'")
    if exact or node.style != "|":
        return Word(value, span if exact else None, exact=exact)
    places, at = list[int](), text.find("\n", span.start) + 1
    for line in value.splitlines(keepends=True):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        first = text.find(line.rstrip("\n"), at, end)
        if first < 0:
            return Word(value)
        places += range(first, first + len(line))
        at = end + 1
    return Word(value, places=tuple(places))


def _end(node: yaml.Node) -> int:
    """Where the last scalar of a node ends: its own mark may stand behind comments."""
    if isinstance(node, yaml.CollectionNode) and node.value and not node.flow_style:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)


MARKS = ("compute_environment", "distributed_type", "mixed_precision", "num_processes", "use_cpu")
"""Keys by which an accelerate configuration is known."""

_GPU = (
    *("MULTI_GPU", "MULTI_NPU", "MULTI_XPU", "MULTI_MLU", "MULTI_MUSA", "XLA", "TPU"),
    *("FSDP", "DEEPSPEED", "MEGATRON_LM"),
)


@fault("file-key-unknown", Severity.ERROR)
def key_unknown() -> None:
    """accelerate refuses a key of this file

    Symptom: "ValueError: The config file at … had unknown keys".

    Cause: accelerate 0.23 and later refuse any top-level key that they do not know.
    ipex_config came with 0.19 and went with 1.13, mpirun_config came with 0.28.

    Remedy: Take the key out, or write the file with the accelerate that will read it.

    Source: huggingface/accelerate#3883, huggingface/peft#3564
    """


@fault("file-key-ignored", Severity.WARNING)
def key_ignored() -> None:
    """accelerate ignores a key of this file

    Symptom: mpirun_ccl is set, and nothing changes.

    Cause: accelerate 1.13 dropped oneCCL; mpirun_config.mpirun_ccl is read no more, without a
    message.

    Remedy: Take it out: it has no effect.

    Source: huggingface/accelerate#3883
    """


@fault("file-value", Severity.ERROR)
def value_wrong() -> None:
    """A value of this file is wrong

    Symptom: accelerate launch ends with an assertion, or its ranks wait for each other. Kubernetes
    refuses the job ("quantities must match the regular expression").

    Cause: num_processes counts the ranks of all machines. Several machines need main_process_ip
    and main_process_port. Kubernetes writes memory as 32Gi or 32G, not as 32GB.

    Remedy: Correct the value as the evidence says.

    Source: https://huggingface.co/docs/accelerate/package_reference/cli
    """


@fault("file-no-gpu", Severity.ERROR)
def no_gpu() -> None:
    """This file asks for GPUs on a machine without one

    Symptom: accelerate launch ends with an error about devices.

    Cause: the file was written on another machine.

    Remedy: Write distributed_type: MULTI_CPU for several ranks, 'NO' for one, and use_cpu: true.

    Source: https://huggingface.co/docs/accelerate/package_reference/cli
    """


@fault("file-unreadable", Severity.ERROR)
def unreadable() -> None:
    """accelerate cannot read its configuration

    Symptom: every ``accelerate launch`` ends with a traceback of yaml or of a missing key.

    Cause: accelerate launch reads default_config.yaml wherever no --config_file is given, and the
    file is no YAML, or of another kind. Script and Trainer alone do not read it.

    Remedy: Move it away, or write it again: accelerate config.

    Source: https://huggingface.co/docs/accelerate/basic_tutorials/launch
    """


def judge_document(document: Document, context: Context) -> Iterator[Finding] | None:
    """Every fault of one document; None of a kind that is not judged."""
    kind = document.get("kind")
    if kind in _RANKS:
        return _judge_job(document, context)
    if kind is None and any(key in document.mapping() for key in MARKS):
        return _judge_accelerate(document, context)
    return None


def _judge_accelerate(document: Document, context: Context) -> Iterator[Finding]:
    """Every fault of one configuration file."""
    values = {key: document.get(key) for key in document.mapping()}
    values["mpirun_hostfile"] = document.get("mpirun_config", "mpirun_hostfile")
    lines = {key: document.line(key) for key in document.mapping()}
    for key in ("use_cpu", "mpirun_hostfile"):
        lines.setdefault(key, document.line("num_processes"))
    context = replace(context, lines=lines)
    yield from _keys(document, context)
    yield from _values(document, context)
    machines = number_of(str(values.get("num_machines"))) or 1
    if machines > 1 and not values.get("main_process_ip"):
        values["main_process_ip"] = "$unknown"  # it may stand on each launch line
    kind = str(values.get("distributed_type") or "NO").upper()
    if kind in _GPU:
        if context.facts.accelerators == ():
            text = f"distributed_type: {kind}, no GPU is here"
            ranks = number_of(str(values.get("num_processes"))) or 1
            fitting = "MULTI_CPU" if ranks > 1 else "'NO'"
            edits = _with_value(document, context, ("distributed_type",), fitting)
            edits += _asks_cpu(document, context)
            yield no_gpu.finding(context.at(None, text), edits=edits)
        return
    options = (f"--{key}={value}" for key, value in values.items() if value not in (None, False))
    line = document.line("num_processes") or 0
    launch = Launch(launcher="accelerate", options=tuple(options), line=line)
    for found in judge_launches([launch], replace(context, places=None)):
        yield replace(found, edits=_configured(found, document, context, machines))


def _configured(
    found: Finding, document: Document, context: Context, machines: int
) -> tuple[Edit, ...]:
    """The keys that cure what is wrong with the launch of a configuration file."""
    if found.code in (use_cpu_missing.code, ranks_alone.code):
        return _asks_cpu(document, context)
    if found.code == fp16_ignored.code:
        return _with_value(document, context, ("mixed_precision",), "'no'")
    if found.code == one_process.code and machines == 1:  # what it starts today is said
        edits = _with_value(document, context, ("num_processes",), "1")
        return edits + _with_value(document, context, ("distributed_type",), "'NO'")
    return ()


def _keys(document: Document, context: Context) -> Iterator[Finding]:
    library, version = load().accelerate, context.accelerate
    known = library.keys_of(version)
    local = str(document.get("compute_environment") or "LOCAL_MACHINE") == "LOCAL_MACHINE"
    for key in [key for key in document.mapping() if local and key not in known]:
        span = next((span for span in library.keys if span.name == key), None)
        said = f"{key} is no key"
        if span:
            last = f" to {_text(span.last)}" if span.last else " on"
            said = f"{key} is known from {_text(span.first)}{last}"
        said += f"; {context.read_by} refuses the file"
        edits = _without_key(document, context, key) if span else ()
        yield key_unknown.finding(context.at(document.line(key), said), edits=edits)
    by_mpirun = document.mapping("mpirun_config")
    if local and "mpirun_ccl" in by_mpirun and not library.does("reads-mpirun-ccl", version):
        text = f"mpirun_ccl is not read by {context.read_by}"
        said = context.at(document.line("mpirun_config", "mpirun_ccl"), text)
        path = ("mpirun_config", "mpirun_ccl")[: len(by_mpirun)]  # with the last key goes the whole
        yield key_ignored.finding(said, edits=_without_key(document, context, *path))


def _without_key(document: Document, context: Context, *path: str | int) -> tuple[Edit, ...]:
    """A key taken out with the lines of its value."""
    span = document.spans.get(path)
    if span is None or context.places is None:
        return ()
    text = context.places.text
    end = text.find("\n", max(span[0], span[1] - 1))
    start = text.rfind("\n", 0, span[0]) + 1
    return (Edit(start=start, end=len(text) if end < 0 else end + 1),)


def _with_key(
    document: Document, context: Context, line: str, *before: str | int, behind: bool = True
) -> tuple[Edit, ...]:
    """A key and its value in a line of its own, beside a key that is there."""
    span = document.spans.get(before)
    if span is None or context.places is None:
        return ()
    text = context.places.text
    start = text.rfind("\n", 0, span[0]) + 1
    indent = text[start : span[0]]
    if not behind:
        return (Edit(start=start, end=start, text=f"{indent}{line}\n"),)
    end = text.find("\n", max(span[0], span[1] - 1))
    if end < 0:
        return (Edit(start=len(text), end=len(text), text=f"\n{indent}{line}"),)
    return (Edit(start=end + 1, end=end + 1, text=f"{indent}{line}\n"),)


def _with_value(document: Document, context: Context, path: Path, value: str) -> tuple[Edit, ...]:
    """Another value of a key."""
    span = document.spans.get(path)
    if span is None or context.places is None:
        return ()
    said = context.places.text[span[0] : span[1]]
    start = span[0] + len(said) - len(said.partition(":")[2].lstrip())
    return (Edit(start=start, end=span[1], text=value),)


def _asks_cpu(document: Document, context: Context) -> tuple[Edit, ...]:
    """The file says ``use_cpu: true``."""
    if document.spans.get(("use_cpu",)):
        return _with_value(document, context, ("use_cpu",), "true")
    keys = list(document.mapping())
    return _with_key(document, context, "use_cpu: true", keys[-1]) if keys else ()


def _values(document: Document, context: Context) -> Iterator[Finding]:
    ranks = number_of(str(document.get("num_processes"))) or 0
    machines = number_of(str(document.get("num_machines"))) or 1
    if machines == 1:
        return
    if ranks % machines:
        text = f"num_processes: {ranks} ranks cannot be divided over {machines} machines"
        yield value_wrong.finding(context.at(None, text))
    for key in ("main_process_ip", "main_process_port"):
        if document.get(key) is None:
            yield value_wrong.finding(
                context.at(None, f"num_machines: {machines}, and {key} is missing"),
                severity=Severity.WARNING,
                remedy=f"Give it here, or --{key} on every launch line.",
            )


def _text(version: tuple[int, int] | None) -> str:
    return f"{version[0]}.{version[1]}" if version else "the beginning"


@fault("file-k8s-field", Severity.ERROR)
def job_field() -> None:
    """The operator takes this job, and starts it wrongly

    Symptom: the pods wait for a master that never comes.

    Cause: a PyTorchJob of workers alone has no MASTER_ADDR, unless it is elastic.

    Remedy: Make one replica the Master.

    Source: https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/pytorch/
    """


@fault("file-k8s-no-workers", Severity.ERROR)
def job_no_workers() -> None:
    """A job of zero workers has one

    Symptom: a worker pod exists although replicas is 0, and the Master waits for it.

    Cause: the training operator sets replicas that are 0 to their default, 1.

    Remedy: Leave Worker out if there are no workers.

    Source: kubeflow/training-operator#1709
    """


@fault("file-k8s-elastic", Severity.WARNING)
def job_elastic() -> None:
    """The job trains with fewer workers than it has

    Symptom: no error; of four workers one or two train, with a smaller batch for all of them.

    Cause: an elastic policy lets the job begin with minReplicas workers. torchrun waits 30 s for
    the others, and starts without those whose pods are still pending or pull their image.

    Remedy: Give minReplicas as many workers as the job has, or leave the elastic policy out and
    make one replica the Master.

    Source: https://docs.pytorch.org/docs/stable/elastic/rendezvous.html (last_call_timeout),
    https://huggingface.co/docs/transformers/perf_train_cpu_many
    """


@fault("file-k8s-resources", Severity.WARNING)
def pod_resources() -> None:
    """The pod is not given whole CPUs of its own

    Symptom: the speed of a pod changes from run to run, or it is evicted.

    Cause: only where requests equal limits is a pod of the Guaranteed class, and only with
    whole CPUs does the kubelet's static policy give it CPUs that nobody else uses.

    Remedy: Give cpu and memory as requests equal to limits, cpu as a whole number.

    Source: https://kubernetes.io/docs/tasks/configure-pod-container/quality-service-pod/,
    kubeflow/trainer#2407
    """


@fault("file-k8s-shm", Severity.WARNING)
def pod_shm() -> None:
    """The pod has the 64 MiB /dev/shm of the container runtime

    Symptom: "Bus error" in a DataLoader worker.

    Cause: DataLoader workers and ranks on one machine hand data over through /dev/shm.

    Remedy: Add a volume emptyDir with medium: Memory, mounted at /dev/shm.

    Source: pytorch/pytorch#16979
    """


_REPLICAS: Path = ("spec", "pytorchReplicaSpecs")
_WORKERS: Path = (*_REPLICAS, "Worker", "replicas")
_LEAST: Path = ("spec", "elasticPolicy", "minReplicas")
_RANKS: dict[str, Path] = {
    "PyTorchJob": ("spec", "nprocPerNode"),
    "TrainJob": ("spec", "trainer", "numProcPerNode"),
}


def job_faults(document: Document) -> Iterator[tuple[Check, Path, str]]:
    """What the operator does wrongly with a job: fault, place and words."""
    place = _RANKS[str(document.get("kind"))]
    if _ranks(document) is None:
        ranks = document.get(*place)
        shown = "is missing, which means auto" if ranks is None else f"is {ranks!r}"
        yield ranks_auto, place, f"{place[-1]} {shown}: one rank for each CPU of the host"
    of_workers = document.get("kind") == "PyTorchJob" and not document.get(*_REPLICAS, "Master")
    if of_workers and not document.mapping("spec", "elasticPolicy"):
        text = "pytorchReplicaSpecs without Master: nobody sets MASTER_ADDR"
        yield job_field, _REPLICAS, text
    least, workers = document.get(*_LEAST), document.get(*_WORKERS)
    if document.get("kind") == "PyTorchJob" and workers == 0:
        text = "Worker has replicas: 0, which the operator takes for unset: it makes one worker"
        yield job_no_workers, _WORKERS, text
    if isinstance(least, int) and isinstance(workers, int) and least < workers:
        text = f"minReplicas {least} of {workers} workers: {least} may train alone"
        yield job_elastic, _LEAST, text
    for _, resources in _containers(document):
        yield from _resource_faults(document, resources)


def _resource_faults(document: Document, resources: Path) -> Iterator[tuple[Check, Path, str]]:
    """What is wrong with the CPUs and the memory of a container."""
    limits = document.mapping(*resources, "limits")
    requests = document.mapping(*resources, "requests") or limits
    for what in ("cpu", "memory"):
        limit, request = limits.get(what), requests.get(what)
        if limit is None:
            yield pod_resources, resources, f"resources.limits.{what} is missing"
        elif str(limit) != str(request):
            text = f"{what}: requests {request}, limits {limit}"
            yield pod_resources, (*resources, "limits", what), text
    for kind in ("limits", "requests"):
        memory = document.mapping(*resources, kind).get("memory", "0")
        if bytes_of(memory) is None:
            text = f"memory: {memory} is not a quantity of Kubernetes (32Gi, 32G)"
            yield value_wrong, (*resources, kind, "memory"), text
    if _cpus_of(limits.get("cpu")) % 1:
        text = f"cpu: {limits.get('cpu')} is no whole number of CPUs"
        yield pod_resources, (*resources, "limits", "cpu"), text


def _containers(document: Document) -> Iterator[tuple[Path, Path]]:
    """Where the containers that train stand, and where their resources."""
    if document.get("kind") == "TrainJob":
        yield ("spec", "trainer"), ("spec", "trainer", "resourcesPerNode")
        return
    for role in document.mapping(*_REPLICAS):
        if document.get(*_REPLICAS, role, "replicas") == 0:
            continue
        listed: Path = (*_REPLICAS, role, "template", "spec", "containers")
        containers = document.items(*listed)
        for number in range(len(containers)):
            if len(containers) == 1 or document.get(*listed, number, "name") == "pytorch":
                yield (*listed, number), (*listed, number, "resources")


def _judge_job(document: Document, context: Context) -> Iterator[Finding]:
    """Every fault of one PyTorchJob or TrainJob."""
    for found, path, text in job_faults(document):
        edits: tuple[Edit, ...] = ()
        if found is ranks_auto:
            edits = _one_rank(document, context)
        if found is job_no_workers:
            edits = _without_key(document, context, *_REPLICAS, "Worker")
        if found is job_elastic:
            edits = _with_value(document, context, _LEAST, str(document.get(*_WORKERS)))
        yield found.finding(context.at(document.line(*path), text), edits=edits)
    yield from judge_sourced(context)
    for at, resources in _containers(document):
        variables, lines = dict[str, str](), dict[str, int | None]()
        for number in range(len(document.items(*at, "env"))):
            name, value = (document.get(*at, "env", number, key) for key in ("name", "value"))
            if value is not None and name not in _OF_CPUS:
                variables[str(name)] = str(value)
                lines[str(name)] = document.line(*at, "env", number)
        cpus = _cpus_of(document.get(*resources, "limits", "cpu"))
        target = Target(kind="pod", source="resources", cpus_per_node=math.ceil(cpus) or None)
        facts = facts_elsewhere(context.facts, cpus)
        pod = replace(context, facts=facts, host=Host(), target=target, lines=lines)
        yield from judge_launches(_launches(document, at, variables), pod)
        if document.get("kind") == "PyTorchJob" and not _shares_memory(document, at):
            text = "no emptyDir of medium Memory is mounted at /dev/shm"
            yield pod_shm.finding(context.at(document.line(*at), text))


def _one_rank(document: Document, context: Context) -> tuple[Edit, ...]:
    """One rank in each pod: which number is best only `cputune tune` shows."""
    place = _RANKS[str(document.get("kind"))]
    edits = _without_key(document, context, *place)
    number = '"1"' if document.get("kind") == "PyTorchJob" else "1"
    beside = next(iter(document.mapping(*place[:-1])), "")
    line = f"{place[-1]}: {number}"
    return edits + _with_key(document, context, line, *place[:-1], beside, behind=False)


_OF_CPUS = ("CCL_WORKER_AFFINITY", "I_MPI_PIN_DOMAIN")
"""Variables that name CPUs: which ones a pod has only running shows."""


def _ranks(document: Document) -> int | None:
    """Ranks of a pod; None where that is left to the operator."""
    return number_of(str(document.get(*_RANKS[str(document.get("kind"))])))


def _launches(document: Document, at: Path, variables: dict[str, str]) -> Iterator[Launch]:
    """What the container starts, with the ranks and the variables that the operator gives it.

    Where its command shows no training, torchrun with a script that is not known.
    """
    words = [word for key in ("command", "args") for word in document.command(*at, key)]
    found = read_words(words)
    # Its script may ask for the CPU itself.
    unseen = Launch(launcher="torchrun", environment={"ACCELERATE_USE_CPU": "true"})
    workers = number_of(str(document.get(*_WORKERS))) or 0
    nodes = number_of(str(document.get("spec", "trainer", "numNodes"))) or 1 + workers
    given = {"MASTER_ADDR": "the job's", "PET_MASTER_ADDR": "the job's"}
    given |= {"RANK": "0", "WORLD_SIZE": str(nodes)} if nodes > 1 else {}
    sizes = (f"--nproc_per_node={_ranks(document) or 1}", f"--nnodes={nodes}")
    for launch in found or (unseen,):
        yield replace(
            launch,
            options=(*sizes, *launch.options) if launch.launcher == "torchrun" else launch.options,
            environment={**given, **variables, **launch.environment},
            line=document.line(*at, "command") or document.line(*at, "args") or 0,
        )


def job_launches(document: Document) -> Iterator[Launch]:
    """What the containers of a job that train start, with the variables of their ``env``."""
    for at, _ in _containers(document):
        items = [document.mapping(*at, "env", n) for n in range(len(document.items(*at, "env")))]
        variables = {str(item.get("name")): str(item["value"]) for item in items if "value" in item}
        yield from (launch for launch in _launches(document, at, variables) if launch.script)


def _shares_memory(document: Document, container: Path) -> bool:
    """Whether memory is mounted at /dev/shm."""
    volumes = [Document(value=volume) for volume in document.items(*container[:-2], "volumes")]
    memory = [
        volume.get("name") for volume in volumes if volume.get("emptyDir", "medium") == "Memory"
    ]
    mounts = [Document(value=mount) for mount in document.items(*container, "volumeMounts")]
    return any(m.get("mountPath") == "/dev/shm" and m.get("name") in memory for m in mounts)


def _cpus_of(quantity: object) -> float:
    """CPUs of a Kubernetes quantity: ``4``, ``"500m"``; 0 where it is none."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(m?)", str(quantity).strip())
    if match is None:
        return 0.0
    return float(match[1]) / 1000 if match[2] else float(match[1])


CHECKS = checks_of(__name__)
