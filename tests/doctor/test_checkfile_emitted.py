"""What we write ourselves has to pass our own judgement."""

from dataclasses import replace

import pytest
from stacks import IPEX_ERA, TODAY, machine

from cputune.doctor.checkfile import check_file
from cputune.emitters import emit, parse_hosts
from cputune.facts import Core, Launcher
from cputune.workload import Workload

LAUNCHED = ("mpirun", "accelerate", "torchrun", "pytorchjob", "trainjob", "slurm")
JUDGED = (".sh", "accelerate.yaml", "job.yaml")
DIALECTS = (None, "intelmpi", "mpich", "openmpi4", "openmpi5")


def two_sockets(packages, dialect):
    """Eight cores on two sockets, so that there is more than one rank."""
    facts = machine(packages, cores=8)
    cores = tuple(Core(cpus=(cpu,), socket=cpu // 4, numa_node=cpu // 4) for cpu in range(8))
    launcher = Launcher(name="mpirun", path="/usr/bin/mpirun", dialect=dialect)
    return replace(
        facts,
        topology=replace(facts.topology, cores=cores),
        launchers=(launcher,) if dialect else (),
    )


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("format", LAUNCHED)
@pytest.mark.parametrize("packages", [TODAY, IPEX_ERA], ids=["today", "ipex"])
@pytest.mark.parametrize(
    "workload",
    [
        Workload.from_recipe("bert-base-squad"),
        Workload.script(["run_qa.py", "--output_dir", "out"], global_batch_size=8),
    ],
    ids=["recipe", "script"],
)
def test_emitted_files_have_no_fault(dialect, format, packages, workload):
    facts = two_sockets(packages, dialect)
    files = emit(None, format, facts=facts, workload=workload, hosts=parse_hosts("localhost"))
    judged = [file for file in files if file.name.endswith(JUDGED) and "kubectl" not in file.name]
    assert judged
    for file in judged:
        assert check_file(file.text, file.name, facts) == ()
