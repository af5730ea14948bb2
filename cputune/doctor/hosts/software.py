"""What is installed: versions that differ fail late, or train apart without a word."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from cputune.doctor.finding import Finding, Severity
from cputune.doctor.hosts.seen import SeenHost, between, difference, told
from cputune.facts import HostFacts, Launcher
from cputune.probing.launchers import MPI_PROGRAMS

STACK = ("torch", "intel-extension-for-pytorch", "oneccl-bind-pt", "oneccl", "numpy")
"""What talks to the other ranks, and what computes: the same everywhere."""

LIBRARIES = ("transformers", "accelerate", "datasets", "tokenizers", "peft", "evaluate", "optimum")
"""What decides the order of batches and the names of arguments."""

NONE = "none"


@between(
    "hosts-python",
    Severity.ERROR,
    title="Not the same Python on every host",
    remedy="Give all hosts the same environment at the same path (a shared file system, an image, "
    "conda-pack); --python PATH names it.",
    source="https://conda.github.io/conda-pack/, https://www.open-mpi.org/faq/?category=running#run-prereqs",
)
def python(hosts: Sequence[SeenHost]) -> Iterator[Finding]:
    """Symptom: "No such file or directory" of the interpreter on one host, or packages not found.

    Cause: a launch names the interpreter by its path, and an environment belongs to one Python.
    What is pickled by one version may not be read by another.
    """
    groups: dict[str, list[str]] = {}
    for host in hosts:
        if host.facts is not None and host.python is not None:
            key = f"{host.python} ({host.facts.python})"
            groups.setdefault(key, []).append(host.name)
    if len(groups) > 1:
        yield python.finding(told(groups))


@between(
    "hosts-training-stack",
    Severity.ERROR,
    title="Not the same torch, IPEX, oneCCL or numpy on every host",
    remedy="Install the same versions on every host, best from one lock file or image.",
    source="pytorch/pytorch#24273",
)
def training_stack(hosts: Sequence[SeenHost]) -> Iterator[Finding]:
    """Symptom: init_process_group hangs or ends with "connectFullMesh failed", or losses differ.

    Cause: nothing is promised between versions, and torch does not compare them when ranks meet: a
    rank waits for a message that the other never sends. Builds of one version (``+cpu``, CUDA)
    differ in their kernels too.
    """
    if words := _differing(hosts, STACK):
        yield training_stack.finding(words)


@between(
    "hosts-libraries",
    Severity.WARNING,
    title="Not the same transformers, accelerate or datasets on every host",
    remedy="Install the same versions on every host, best from one lock file or image.",
    source="huggingface/accelerate#2157",
)
def libraries(hosts: Sequence[SeenHost]) -> Iterator[Finding]:
    """Symptom: one rank ends with an unknown argument, or the ranks see different batches.

    Cause: flags and defaults change between versions, and so does how a data set is shuffled and
    cut into shards: then some samples are seen twice and others never.
    """
    if words := _differing(hosts, LIBRARIES):
        yield libraries.finding(words)


@between(
    "hosts-mpi",
    Severity.ERROR,
    title="Not the same MPI on every host",
    remedy="Put one MPI first on PATH of every host, also for logins without a terminal: "
    "ssh HOST mpirun --version shows which it is.",
    source="open-mpi/ompi#11936, open-mpi/ompi#599",
)
def mpi(hosts: Sequence[SeenHost]) -> Iterator[Finding]:
    """Symptom: "ORTE was unable to reliably start one or more daemons", or a hang at the start.

    Cause: mpirun starts a helper of its own kind on each host (orted, prted, hydra_pmi_proxy). What
    ssh finds on PATH there is another MPI, or none: ~/.bashrc often sets PATH for terminals alone.
    """
    if words := difference(hosts, _mpi):
        yield mpi.finding(words)


def _mpi(facts: HostFacts) -> str | None:
    launcher = next((one for one in facts.launchers if one.name in MPI_PROGRAMS), None)
    if launcher is None:
        return NONE
    return None if launcher.dialect is None else f"{_family(launcher)} {launcher.version}"


def _family(launcher: Launcher) -> str:
    names = {"intelmpi": "Intel MPI", "mpich": "MPICH"}
    return names.get(launcher.dialect or "", "Open MPI")


def _differing(hosts: Sequence[SeenHost], names: Iterable[str]) -> str:
    """Which of these packages have another version on some host, in words; empty for none."""
    return ". ".join(filter(None, (difference(hosts, _version_of(name), name) for name in names)))


def _version_of(name: str) -> Callable[[HostFacts], str | None]:
    def version(facts: HostFacts) -> str | None:
        package = facts.package(name)
        if package is None:
            return NONE
        build = "" if package.build in (None, "cpu") else f" ({package.build})"
        return None if package.version is None else f"{package.version}{build}"

    return version


CHECKS = (python, training_stack, libraries, mpi)
