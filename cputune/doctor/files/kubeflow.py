"""PyTorchJob and TrainJob of Kubeflow: what stops or slows training on CPUs.

What the operator and ``kubectl apply`` refuse themselves (names, types, counts) is left to them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from cputune.doctor.checks.limits import ranks_auto
from cputune.doctor.files.accelerate import value_wrong
from cputune.doctor.files.context import Context, facts_elsewhere, with_gpus
from cputune.doctor.files.ended import judge_sourced
from cputune.doctor.files.judge import judge_launches
from cputune.doctor.files.quota import LimitedContainer, judge_quota, names_of
from cputune.doctor.files.yaml_spans import (
    Document,
    Path,
    with_key,
    with_value,
    without_key,
)
from cputune.doctor.finding import Check, Finding, Severity, checks_of, fault
from cputune.host import Host
from cputune.host.facts import HostFacts
from cputune.launch.edit import Edit
from cputune.launch.launch import Launch, is_python
from cputune.launch.located_words import number_of, shell_at
from cputune.launch.script import are_trainers, is_example
from cputune.launch.shell import read_words
from cputune.launch.target import Target
from cputune.text.quantities import bytes_of, cpus_of, quantity_of


@fault("file-k8s-field", Severity.ERROR)
def job_field() -> None:
    """The operator starts this job wrongly

    Symptom: the pods wait for a master that never comes.

    Cause: a PyTorchJob with only workers has no MASTER_ADDR, unless it is elastic.

    Remedy: Make one replica the Master.

    Source: https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/pytorch/
    """


@fault("file-k8s-ranks", Severity.WARNING)
def job_ranks() -> None:
    """The job counts ranks that its command does not start

    Symptom: the pods wait for each other for ever, or each of them trains on all the data.

    Cause: only torchrun reads nprocPerNode and numProcPerNode. A pod that runs python has one
    process. A PyTorchJob still sets WORLD_SIZE to all ranks that it counts; a TrainJob sets
    neither RANK nor WORLD_SIZE, which python needs.

    Remedy: Start the script with torchrun, or count one rank for each pod.

    Source: kubeflow/training-operator:pkg/controller.v1/pytorch/envvar.go,
    kubeflow/trainer:pkg/runtime/framework/plugins/torch/torch.go
    """


@fault("file-k8s-no-workers", Severity.ERROR)
def job_no_workers() -> None:
    """A job of zero workers has one

    Symptom: a worker pod exists although replicas is 0, and the Master waits for it.

    Cause: the training operator sets replicas that are 0 to their default, 1.

    Remedy: Remove Worker if there are no workers.

    Source: kubeflow/training-operator#1709
    """


@fault("file-k8s-elastic", Severity.WARNING)
def job_elastic() -> None:
    """The job trains with fewer workers than it has

    Symptom: no error; one or two of four workers train, with a smaller batch.

    Cause: an elastic policy starts the job with minReplicas workers. torchrun waits 30 s for the
    others, and starts without pods that are pending or pull their image.

    Remedy: Set minReplicas to the number of workers, or remove the elastic policy and make one
    replica the Master.

    Source: https://docs.pytorch.org/docs/stable/elastic/rendezvous.html (last_call_timeout),
    https://huggingface.co/docs/transformers/perf_train_cpu_many
    """


@fault("job-ranks-number", Severity.ERROR)
def ranks_number() -> None:
    """nprocPerNode of a PyTorchJob must be a string

    Symptom: kubectl apply ends with "Invalid value: \"integer\": spec.nprocPerNode in body must be
    of type string".

    Cause: PyTorchJob also allows auto, cpu and gpu there, so its schema takes only strings.

    Remedy: Write the number in quotes.

    Source: https://github.com/kubeflow/trainer/blob/v1.9.0/manifests/base/crds/kubeflow.org_pytorchjobs.yaml
    """


@fault("file-k8s-args", Severity.WARNING)
def args_lost() -> None:
    """The arguments of the container do not reach the training

    Symptom: the script runs with its defaults.

    Cause: `sh -c TEXT` takes the words behind its text as $0, $1 and so on; only a text with "$@"
    passes them on.

    Remedy: Write the arguments into the text, or the command as a list without sh.

    Source: https://kubernetes.io/docs/tasks/inject-data-application/define-command-argument-container/
    """


@fault("file-k8s-resources", Severity.WARNING)
def pod_resources() -> None:
    """The pod does not get whole CPUs for itself

    Symptom: the speed of a pod changes from run to run, or it is evicted.

    Cause: a pod is Guaranteed only if requests equal limits, and the kubelet's static policy gives
    exclusive CPUs only for whole numbers.

    Remedy: Set requests of cpu and memory equal to limits, and cpu to a whole number.

    Source: https://kubernetes.io/docs/tasks/configure-pod-container/quality-service-pod/,
    kubeflow/trainer#2407
    """


@fault("file-k8s-shm", Severity.WARNING)
def pod_shm() -> None:
    """The pod has the 64 MiB /dev/shm of the container runtime

    Symptom: "Bus error" in a DataLoader worker.

    Cause: DataLoader workers and ranks of one machine pass data through /dev/shm.

    Remedy: Mount a volume emptyDir with medium: Memory at /dev/shm.

    Source: pytorch/pytorch#16979
    """


_REPLICAS: Path = ("spec", "pytorchReplicaSpecs")
_WORKERS: Path = (*_REPLICAS, "Worker", "replicas")
_LEAST: Path = ("spec", "elasticPolicy", "minReplicas")
_MOST: Path = ("spec", "elasticPolicy", "maxReplicas")
RANKS: dict[str, Path] = {
    "PyTorchJob": ("spec", "nprocPerNode"),
    "TrainJob": ("spec", "trainer", "numProcPerNode"),
}


_IF_TORCHRUN = ", if the image starts torchrun"


def is_job(document: Document) -> bool:
    """Whether a document is a job of Kubeflow."""
    return document.get("kind") in RANKS


def job_faults(document: Document) -> Iterator[tuple[Check, Path, str]]:
    """What the operator does wrongly with a job: fault, path and evidence."""
    place = RANKS[str(document.get("kind"))]
    if _ranks(document) is None and any(map(_takes_ranks, _commands(document))):
        ranks = document.get(*place)
        shown = "is missing, which means auto"
        if ranks is not None:
            shown = f"is {ranks!r}"
        text = f"{place[-1]} {shown}: one rank for each CPU of {_counted_cpus(document)}"
        if not any(map(read_words, _commands(document))):
            text += _IF_TORCHRUN
        yield ranks_auto, place, text
    if document.get("kind") == "PyTorchJob" and isinstance(document.get(*place), int):
        yield ranks_number, place, f"{place[-1]}: {document.get(*place)}, without quotes"
    for at, _ in _containers(document):
        yield from lost_args(document, at)
    yield from _uncounted(document)
    of_workers = document.get("kind") == "PyTorchJob" and not document.get(*_REPLICAS, "Master")
    alone = _pods(document) == 1 or any(map(_has_address, _commands(document)))
    if of_workers and not document.mapping("spec", "elasticPolicy") and not alone:
        text = "pytorchReplicaSpecs without Master: MASTER_ADDR is not set"
        yield job_field, _REPLICAS, text
    least, workers = document.get(*_LEAST), document.get(*_WORKERS)
    if document.get("kind") == "PyTorchJob" and workers == 0:
        text = "Worker has replicas: 0, which the operator reads as unset: it creates one worker"
        yield job_no_workers, _WORKERS, text
    if isinstance(least, int) and isinstance(workers, int) and least < workers:
        text = f"minReplicas {least} of {workers} workers: {least} may train alone"
        yield job_elastic, _LEAST, text
    for _, resources in _containers(document):
        yield from resource_faults(document, resources)


def resource_faults(document: Document, resources: Path) -> Iterator[tuple[Check, Path, str]]:
    """What is wrong with CPUs and memory of a container."""
    limits = document.mapping(*resources, "limits")
    requests = document.mapping(*resources, "requests")
    for what in ("cpu", "memory"):
        limit = limits.get(what)
        request = requests.get(what, limit)  # a request that is left out equals the limit
        if limit is None:
            yield pod_resources, resources, f"resources.limits.{what} is missing"
        elif quantity_of(limit) != quantity_of(request):
            text = f"{what}: requests {request}, limits {limit}"
            yield pod_resources, (*resources, "limits", what), text
    for kind in ("limits", "requests"):
        memory = document.mapping(*resources, kind).get("memory", "0")
        if bytes_of(memory) is None:
            text = f"memory: {memory} is not a quantity of Kubernetes (32Gi, 32G)"
            yield value_wrong, (*resources, kind, "memory"), text
    if cpus_of(limits.get("cpu")) % 1:
        text = f"cpu: {limits.get('cpu')} is not a whole number of CPUs"
        yield pod_resources, (*resources, "limits", "cpu"), text


_GPU = re.compile(r"gpu|gaudi|neuron|tpu|npu", re.IGNORECASE)


def facts_of_pod(
    document: Document, resources: Path | None, context: Context, cpus: float
) -> HostFacts:
    """The facts of a container with these CPUs, and with the GPUs that it asks for."""
    facts = facts_elsewhere(context.facts, cpus)
    for kind in ("limits", "requests"):
        names = document.mapping(*resources, kind) if resources is not None else ()
        if any(_GPU.search(str(name)) for name in names):
            return with_gpus(facts)
    return facts


def _uncounted(document: Document) -> Iterator[tuple[Check, Path, str]]:
    """Ranks that the job counts, although its command is python, which starts one process."""
    place = RANKS[str(document.get("kind"))]
    each, pods = _ranks(document) or 1, _pods(document)
    for at, _ in _containers(document):
        for launch in read_words(_words(document, at)):
            if launch.launcher != "python" or _numbers_ranks(document, at, launch):
                continue
            if each > 1:
                text = f"{place[-1]} is {each}, and python starts one process in each pod"
                yield job_ranks, place, text
            elif pods > 1 and document.get("kind") == "TrainJob":
                text = f"numNodes is {pods}, and python finds no RANK in a pod of a TrainJob"
                yield job_ranks, (*at, "command"), text


def lost_args(document: Document, at: Path) -> Iterator[tuple[Check, Path, str]]:
    """Arguments behind the text of ``sh -c`` that the text does not use."""
    command, args = document.command(*at, "command"), document.command(*at, "args")
    text = shell_at(command)
    if not args or text is None or not read_words(command):
        return
    if re.search(r"\$\{?[@*0-9]", command[text]) is None:
        yield args_lost, (*at, "args"), f"{args[0]} …: the shell takes them, not the script"


_NUMBERS = ("RANK", "WORLD_SIZE")


def _numbers_ranks(document: Document, at: Path, launch: Launch) -> bool:
    """Whether the container sets the numbers of its rank itself."""
    names = set(launch.environment)
    for number in range(len(document.items(*at, "env"))):
        names.add(str(document.get(*at, "env", number, "name")))
    return all(name in names for name in _NUMBERS)


def _commands(document: Document) -> Iterator[list[str]]:
    for at, _ in _containers(document):
        yield _words(document, at)


def _words(document: Document, at: Path) -> list[str]:
    """The words that a container runs; none if those of its image."""
    return document.command(*at, "command") + document.command(*at, "args")


def _takes_ranks(words: list[str]) -> bool:
    """Whether what a container runs may take the number of ranks from the job: a torchrun without
    its own number, or a program that is not read.
    """
    launches = read_words(words)
    for launch in launches:
        inside = launch.inside
        if inside.launcher == "torchrun" and inside.meant("ranks per node") is None:
            return True
    return not launches and not _is_other_program(words)


def _is_other_program(words: list[str]) -> bool:
    """Whether a container runs python without a script: ``python -c``, a tool."""
    return bool(words) and is_python(words[0].rpartition("/")[2]) and not read_words(words)


def _has_address(words: list[str]) -> bool:
    """Whether a launch names the machine at which its ranks meet."""
    for launch in read_words(words):
        if launch.inside.meant("rendezvous endpoint", "address") is not None:
            return True
    return False


def _containers(document: Document) -> Iterator[tuple[Path, Path]]:
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


def _counted_cpus(document: Document) -> str:
    """Whose CPUs "auto" counts: those of a TrainJob's resourcesPerNode, if it has some.

    kubeflow/trainer:pkg/runtime/framework/plugins/torch/torch.go, calculateNumProcPerNode
    """
    if document.get("kind") == "TrainJob":
        for key in ("limits", "requests"):
            named = document.get("spec", "trainer", "resourcesPerNode", key, "cpu")
            if named is not None:
                return f"resourcesPerNode.{key}, {named}"
    return "the host"


def _judge_threads(
    launches: Sequence[Launch], limited: LimitedContainer, document: Document, context: Context
) -> Iterator[Finding]:
    """Threads that nobody has set, except of a TrainJob with a rank for each CPU of its limit.

    torchrun gives each of several ranks one thread.
    """
    counts = document.get("kind") == "TrainJob" and _ranks(document) is None
    if not (counts and limited.cpus > 1):
        yield from judge_quota(launches, limited, document, context)


def judge_job(document: Document, context: Context) -> Iterator[Finding]:
    """Every fault of one PyTorchJob or TrainJob."""
    for check, path, text in job_faults(document):
        edits: tuple[Edit, ...] = ()
        severity, title = None, None
        if check is ranks_auto and text.endswith(_IF_TORCHRUN):
            severity, title = Severity.ADVICE, "torchrun would choose the number of ranks"
        elif check is ranks_auto:
            edits = _one_rank(document, context)
        if check is job_no_workers:
            edits = without_key(document, context, *_REPLICAS, "Worker")
        if check is job_elastic and document.get(*_MOST) in (None, document.get(*_WORKERS)):
            edits = with_value(document, context, _LEAST, str(document.get(*_WORKERS)))
        evidence = context.at(document.line(*path), text)
        yield check.finding(evidence, severity=severity, title=title, edits=edits)
    yield from judge_sourced(context)
    for at, resources in _containers(document):
        variables, lines = dict[str, str](), dict[str, int | None]()
        for number in range(len(document.items(*at, "env"))):
            name, value = (document.get(*at, "env", number, key) for key in ("name", "value"))
            if value is not None and name not in OF_CPUS:
                variables[str(name)] = str(value)
                lines[str(name)] = document.line(*at, "env", number)
        cpus = cpus_of(document.get(*resources, "limits", "cpu"))
        target = Target(kind="pod", source="resources", cpus_per_node=math.ceil(cpus) or None)
        facts = facts_of_pod(document, resources, context, cpus)
        pod = replace(context, facts=facts, host=Host(), target=target, lines=lines)
        launches = list(_launches(document, at, variables))
        yield from judge_launches(launches, pod)
        limited = LimitedContainer(
            at=at,
            cpus=cpus,
            limit="limits.cpu",
            key="env",
            named=names_of(document.mapping(*at), "env", "envFrom"),
        )
        yield from _judge_threads(launches, limited, document, context)
        trains = not _is_other_program(_words(document, at))
        if document.get("kind") == "PyTorchJob" and trains and not _shares_memory(document, at):
            text = "nothing is mounted at /dev/shm"
            yield pod_shm.finding(context.at(document.line(*at), text))


def _one_rank(document: Document, context: Context) -> tuple[Edit, ...]:
    """One rank in each pod; only `cputune tune` shows the best number."""
    place = RANKS[str(document.get("kind"))]
    edits = without_key(document, context, *place)
    number = "1"
    if document.get("kind") == "PyTorchJob":
        number = '"1"'
    beside = next(iter(document.mapping(*place[:-1])), "")
    line = f"{place[-1]}: {number}"
    return edits + with_key(document, context, line, *place[:-1], beside, behind=False)


# Variables that name CPUs; the CPUs of a pod are known only at run time.
OF_CPUS = ("CCL_WORKER_AFFINITY", "I_MPI_PIN_DOMAIN")


def _ranks(document: Document) -> int | None:
    """Ranks of a pod; None if the operator decides."""
    return number_of(str(document.get(*RANKS[str(document.get("kind"))])))


def _launches(document: Document, at: Path, of_container: dict[str, str]) -> Iterator[Launch]:
    """What the container starts, with the ranks and variables that the operator sets.

    If its command shows no training: torchrun with an unknown script.
    """
    argv = _words(document, at)
    launches = read_words(argv)
    unseen = Launch(launcher="torchrun")
    if _is_other_program(argv):
        unseen = Launch(launcher="python")
    nodes = _pods(document)
    of_job = document.get("kind") == "PyTorchJob"
    given = {"MASTER_ADDR": "the job's", "PET_MASTER_ADDR": "the job's"}
    if nodes > 1 and of_job:
        given |= {"RANK": "0", "WORLD_SIZE": str(nodes)}
    sizes = (f"--nproc_per_node={_ranks(document) or 1}", f"--nnodes={nodes}")
    line = document.line(*at, "command") or document.line(*at, "args")
    for launch in launches or (unseen,):
        options = launch.options
        if launch.launcher == "torchrun":
            options = sizes + options
        variables = {**of_container}
        if not _is_trainers(launch):
            # The script is in the image, and may ask for the CPU itself.
            variables.setdefault("ACCELERATE_USE_CPU", "true")
        yield replace(
            launch,
            options=options,
            environment={**given, **variables, **launch.environment},
            line=line or 0,
        )


def _is_trainers(launch: Launch) -> bool:
    """Whether a script that cannot be read is one of Trainer or accelerate, by what is typed."""
    if launch.inside.launcher == "accelerate" or is_example(launch.script):
        return True
    return are_trainers(launch.arguments)


def _pods(document: Document) -> int:
    """The pods of the job that train. The operators read replicas that are left out as 1."""
    if document.get("kind") == "TrainJob":
        return number_of(str(document.get("spec", "trainer", "numNodes"))) or 1
    pods = 0
    for role in document.mapping(*_REPLICAS):
        replicas = number_of(str(document.get(*_REPLICAS, role, "replicas")))
        pods += 1 if replicas is None else replicas
    return max(pods, 1)


def job_launches(document: Document) -> Iterator[Launch]:
    """What the training containers of a job start, with the variables of their ``env``."""
    for at, _ in _containers(document):
        items = [document.mapping(*at, "env", n) for n in range(len(document.items(*at, "env")))]
        variables = {}
        for item in items:
            if "value" in item:
                variables[str(item.get("name"))] = str(item["value"])
        for launch in _launches(document, at, variables):
            if launch.script:
                yield launch


def _shares_memory(document: Document, container: Path) -> bool:
    """Whether the container has another /dev/shm than that of the container runtime."""
    if document.get(*container[:-2], "hostIPC") is True:
        return True
    for mount in document.items(*container, "volumeMounts"):
        path = str(Document(value=mount).get("mountPath") or "")
        if path.rstrip("/") == "/dev/shm":
            return True
    return False


CHECKS = checks_of(__name__)
