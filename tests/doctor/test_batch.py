"""Batch scripts as a whole: their header, their machines, the files that they source and name."""

from __future__ import annotations

import pytest
from stacks import TODAY, machine

from cputune.doctor.checkfile import check_file, fix_file
from cputune.doctor.finding import Finding
from cputune.host import Host

FACTS = machine(TODAY, cores=16)
TRAINS = "run_glue.py --use_cpu --do_train --output_dir out"


class FakeHost(Host):
    """A live machine with these files alone."""

    live = True

    def __init__(self, **files: str) -> None:
        self.files = files

    def read_text(self, path: str) -> str:
        name = path.rpartition("/")[2].replace(".", "_")
        if name not in self.files:
            raise FileNotFoundError(path)
        return self.files[name]


def found(text: str, **files: str) -> dict[str, Finding]:
    return {one.code: one for one in check_file(text, "job.sh", FACTS, FakeHost(**files))}


def header(*options: str) -> str:
    return "#!/bin/bash\n" + "".join(f"#SBATCH {option}\n" for option in options)


@pytest.mark.parametrize(
    ("options", "twice"),
    [
        (("--mem=64G", "--mem-per-cpu=4G"), True),
        (("--mem 64G", "--mem-per-gpu 4G"), True),
        (("--mem=64G",), False),
        (("--mem=64G", "--mem=32G"), False),
        (("--mem-per-cpu=4G", "--cpus-per-task=8"), False),
    ],
)
def test_memory_that_is_asked_for_in_two_ways(options: tuple[str, ...], twice: bool) -> None:
    findings = found(f"{header(*options)}python {TRAINS}\n")
    assert ("sbatch-memory-twice" in findings) is twice
    if twice:
        assert findings["sbatch-memory-twice"].evidence.startswith("job.sh:3: --mem")


TWO = header("--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=16")
RANKS = "torchrun --nnodes 2 --nproc_per_node 2"
LOOP = "for node in $NODES; do\n  # srun -w $node\n  {} --node_rank=$RANK {} &\ndone\nwait\n"


@pytest.mark.parametrize(
    ("text", "alone"),
    [
        (f"{TWO}{RANKS} {TRAINS}\n", True),
        (TWO + LOOP.format(RANKS, TRAINS), True),
        (f"{TWO}srun {RANKS} {TRAINS}\n", False),
        (f"{TWO}ssh $NODE hostname\n{RANKS} {TRAINS}\n", False),
        (f"{TWO}torchrun --standalone --nproc_per_node 2 {TRAINS}\n", False),
        (f"{header('--nodes=1')}{RANKS} {TRAINS}\n", False),
        (f"{RANKS} {TRAINS}\n", False),
    ],
)
def test_a_launch_that_nothing_starts_on_the_other_machines(text: str, alone: bool) -> None:
    assert ("first-machine-only" in found(text)) is alone


@pytest.mark.parametrize(
    ("options", "severity"),
    [
        ("--rdzv_backend c10d --rdzv_endpoint node1:29501 --master_addr node1", "advice"),
        ("--rdzv_backend c10d --rdzv_endpoint node1:29501 --master_addr node2", "warning"),
        ("--rdzv_backend c10d --master_port 29501", "warning"),
        ("--rdzv_endpoint node1:29501 --master_addr node2", "warning"),
        ("--rdzv_backend static --master_addr node1 --master_port 1", None),
        ("--master_addr node1 --node_rank $SLURM_NODEID", None),
        ("--rdzv_backend c10d --rdzv_endpoint node1:29501", None),
    ],
)
def test_an_address_that_torchrun_does_not_read(options: str, severity: str | None) -> None:
    text = f"{TWO}srun {RANKS} {options} {TRAINS}\n"
    finding = found(text).get("address-unread")
    assert (finding and finding.severity.value) == severity
    if finding is not None:
        after = fix_file(text, "job.sh", FACTS).text
        assert "--master_" not in after
        assert "--rdzv" in after


SHARED = "num_machines: 4\nnum_processes: 8\nmachine_rank: 0\nmain_process_ip: 10.6.1.10\n"
BY_FILE = f"{TWO}srun accelerate launch --config_file multi.yaml {{}}main.py --use_cpu --do_train\n"


def test_a_machine_rank_that_all_machines_read_from_one_file() -> None:
    findings = found(BY_FILE.format(""), multi_yaml=SHARED)
    assert "machine_rank 0" in findings["node-rank-fixed"].evidence
    assert "one process" in findings["node-rank-fixed"].evidence
    assert "master-loopback" not in findings, "the file names the address"
    one_each = SHARED + "mpirun_config: {mpirun_hostfile: hosts}\n"
    findings = found(BY_FILE.format(""), multi_yaml=one_each)
    assert "one process" not in findings["node-rank-fixed"].evidence
    for text, configuration in (
        (BY_FILE.format("--machine_rank $SLURM_NODEID "), SHARED),
        (BY_FILE.format(""), SHARED.replace("machine_rank: 0\n", "")),
        (BY_FILE.format(""), "not: [yaml"),
    ):
        assert "node-rank-fixed" not in found(text, multi_yaml=configuration)


@pytest.mark.parametrize("line", [". ./path.sh", "source path.sh || exit 1", ". path.sh; set -e"])
def test_what_a_sourced_file_sets_counts_and_is_placed(line: str) -> None:
    text = f"#!/bin/bash\n{line}\npython {TRAINS}\n"
    sourced = "export LANG=C\nexport OMP_NUM_THREADS=1\ntorchrun --nproc_per_node 4 other.py\n"
    finding = found(text, path_sh=sourced)["threads-one"]
    assert finding.evidence.startswith("job.sh:3: OMP_NUM_THREADS=1")
    assert "path.sh:2)" in finding.evidence
    assert "threads-one" not in found(text, path_sh="export OMP_NUM_THREADS=16\n")
    assert "threads-one" not in found(text)


OWN = "import argparse, torch\nloader = DataLoader(data, num_workers=args.{name}, shuffle=True)\n"


@pytest.mark.parametrize(
    ("name", "option"),
    [("num_workers", "--num_workers"), ("n_jobs", "--n-jobs"), ("workers", "--workers")],
)
def test_loader_workers_of_an_option_of_the_script(name: str, option: str) -> None:
    text = f"{header('--cpus-per-task=8')}torchrun --nproc_per_node 4 main.py {option} 3\n"
    assert "4 ranks × 3 loader workers" in (
        found(text, main_py=OWN.format(name=name))["loader-threads"].evidence
    )
    assert "loader-threads" not in found(text, main_py=OWN.format(name="other"))
    few = text.replace(f"{option} 3", f"{option} 2")
    assert "loader-threads" not in found(few, main_py=OWN.format(name=name))
