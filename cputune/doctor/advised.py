"""The launch that is advised on this machine: its counts, and the command that starts it.

Every cure that sets ranks, threads or workers takes it from here, so that the commands of one
page agree with each other and with the plan of ``cputune emit``.
"""

from __future__ import annotations

from cputune import cpulist
from cputune.doctor.variables import local_ranks, number
from cputune.facts import HostFacts, Launcher
from cputune.layout import Advice, advise


def advised(facts: HostFacts) -> Advice:
    """As many ranks as the launcher around us starts, else as the machine suggests."""
    asked = 0 if oneccl_absent(facts) else number(facts, "CCL_WORKER_COUNT") or 0
    return advise(facts, ranks=local_ranks(facts) or None, ccl_workers=asked)


def advised_launch(facts: HostFacts, script: str = "train.py", *, ccl: bool = False) -> str | None:
    """Its command, by a launcher that is here; None where there is none for several ranks."""
    advice = advised(facts)
    if ccl:
        advice = advise(facts, ranks=advice.ranks, ccl_workers=1)
    variables = f"OMP_NUM_THREADS={advice.threads}"
    if ccl:
        variables += " CCL_WORKER_COUNT=1"
    if advice.ranks == 1:
        narrower = set(advice.cpus) < set(facts.topology.allowed)
        binding = f"taskset -c {cpulist.render(advice.cpus)} " if narrower else ""
        return f"{variables} {binding}python {script}"
    variables += " ACCELERATE_USE_CPU=true"
    names = {item.name for item in facts.launchers}
    mpirun = next((item for item in mpi_launchers(facts) if item.name == "mpirun"), None)
    if mpirun is not None:
        variables += " MASTER_ADDR=127.0.0.1 MASTER_PORT=29500"
        cores = len(advice.cores[0])
        each = f" --map-by ppr:{advice.ranks}:node:pe={cores}"
        mapping = each if (mpirun.dialect or "").startswith("openmpi") else ""
        return f"{variables} mpirun -n {advice.ranks}{mapping} python {script}"
    if "torchrun" in names or facts.package("torch"):
        program = "torchrun" if "torchrun" in names else "python -m torch.distributed.run"
        return f"{variables} {program} --nproc-per-node {advice.ranks} {script}"
    return None


def has_mpirun(facts: HostFacts) -> bool:
    """Whether an MPI launcher is there, be its maker known or not."""
    return any(item.name in ("mpirun", "mpiexec", "mpiexec.hydra") for item in facts.launchers)


def mpi_launchers(facts: HostFacts) -> tuple[Launcher, ...]:
    """The launchers of an MPI that is known."""
    known = ("intelmpi", "mpich", "openmpi")
    return tuple(item for item in facts.launchers if (item.dialect or "").startswith(known))


def oneccl_absent(facts: HostFacts) -> bool:
    """Whether the packages are known, and the oneCCL bindings are not among them."""
    return bool(facts.packages) and not any(
        facts.package(name) for name in ("oneccl_bind_pt", "torch_ccl")
    )
