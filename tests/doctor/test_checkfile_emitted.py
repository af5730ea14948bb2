"""What we write ourselves has to pass our own judgement."""

from dataclasses import replace

import pytest
from clean_machine import IPEX_ERA, changed, topology

from cputune import Workload, emit
from cputune.doctor.checkfile import check_file
from cputune.emitters import parse_hosts
from cputune.host.facts import Launcher

LAUNCHED = ("mpirun", "accelerate", "torchrun", "pytorchjob", "trainjob", "slurm")
JUDGED = (".sh", "accelerate.yaml", "job.yaml")
DIALECTS = (None, "mpich", "openmpi4", "openmpi5")
# The MPI matters to mpirun alone.
CASES = [(format, "intelmpi") for format in LAUNCHED] + [("mpirun", one) for one in DIALECTS]
WORKLOADS = {
    "recipe": Workload.from_recipe("bert-base-squad"),
    "script": Workload.script(["run_qa.py", "--output_dir", "out"], global_batch_size=8),
}


@pytest.mark.parametrize(("format", "dialect"), CASES)
@pytest.mark.parametrize(
    ("packages", "workload"), [({}, "recipe"), (IPEX_ERA, "script")], ids=["today", "ipex"]
)
def test_emitted_files_have_no_fault(dialect, format, packages, workload):
    launcher = Launcher(name="mpirun", path="/usr/bin/mpirun", dialect=dialect)
    facts = changed(packages=packages, topology=topology(sockets=2, cores=4))
    facts = replace(facts, environment={}, launchers=(launcher,) if dialect else ())
    hosts = parse_hosts("localhost")
    files = emit(None, format, facts=facts, workload=WORKLOADS[workload], hosts=hosts)
    judged = [file for file in files if file.name.endswith(JUDGED) and "kubectl" not in file.name]
    assert judged
    for file in judged:
        findings = check_file(file.text, file.name, facts)
        # The other files are not on a disk here.
        beside = [one for one in findings if "accelerate.yaml: it cannot be read" in one.evidence]
        assert [one for one in findings if one not in beside] == []
