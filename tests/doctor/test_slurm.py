"""A batch script of Slurm as a whole: each fault and a near miss."""

from __future__ import annotations

from rows import every_row
from stacks import TODAY, machine

from cputune.doctor.checkfile import check_file

HEADER = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --cpus-per-task=8\n"
TORCHRUN = "torchrun --nnodes 2 --nproc_per_node 2 {} train.py --use_cpu"
SET = "export SRUN_CPUS_PER_TASK=8 OMP_NUM_THREADS=4\n"
MEET = "--rdzv_backend c10d --rdzv_endpoint $HEAD:29500"
STEP = f"srun -c8 {TORCHRUN.format(MEET)}\n"
MEMORY = "#SBATCH --mem=8G\n"
NODES = "nodes=($(scontrol show hostnames $SLURM_JOB_NODELIST))\n"


def found(body: str, header: str = HEADER) -> set[str]:
    facts = machine(TODAY, cores=16)
    return {finding.code for finding in check_file(header + SET + body, "job.sh", facts)}


@every_row(
    ("code", "body", "near"),
    [
        ("slurm-memory-twice", f"{MEMORY}#SBATCH --mem-per-cpu 1G\n", f"{MEMORY}{MEMORY}"),
        ("slurm-number", "#SBATCH --ntasks=$RANKS\n", "#SBATCH --mem=$MEMORY\n"),
        ("slurm-number", "#SBATCH -c CPUS\n", "#SBATCH --nodes=1-2\n"),
        ("slurm-option-unknown", "#SBATCH --jobs-per-node 4\n", "#SBATCH --mail-t=END\n"),
        ("slurm-step-whole", "srun vmstat 5 > log &\n", "srun --overlap vmstat 5 > log &\n"),
        ("slurm-step-whole", "srun vmstat 5 | tee log &\n", "srun -N1 -n1 vmstat 5 | tee log &\n"),
        ("slurm-step-whole", "srun prepare &\n", "srun prepare &\nwait\n"),
        ("slurm-step-whole", "srun prepare &\n", "srun prepare\n"),
        (
            "slurm-step-whole",
            "for n in a b; do srun -w $n prepare & done\nwait\n",
            "for n in a b; do srun -N1 -n1 -w $n prepare & done\nwait\n",
        ),
        (
            "slurm-step-whole",
            "for n in a b; do srun -w $n prepare & done\nwait\n",
            "for n in a b; do srun -w $n prepare & wait; done\n",
        ),
        (
            "slurm-loop-local",
            f"{NODES}for n in ${{nodes[@]}}; do {TORCHRUN.format(MEET)} & done\nwait\n",
            f"{NODES}for n in ${{nodes[@]}}; do ssh $n {TORCHRUN.format(MEET)} & done\nwait\n",
        ),
        (
            "slurm-loop-local",
            f"for ((i=0; i<2; i++)); do :; done\nfor n in $(scontrol show hostnames); do\n"
            f"  {TORCHRUN.format(MEET)} &\ndone\n",
            f"for seed in 1 2; do\n  {TORCHRUN.format(MEET)}\ndone\n",
        ),
    ],
)
def test_a_fault_and_its_near_miss(code: str, body: str, near: str) -> None:
    assert code in found(body + STEP)
    assert code not in found(near + STEP)
    text = (SET + body + STEP).replace("#SBATCH", "#")
    of_no_job = check_file(text, "run.sh", machine(TODAY, cores=16))
    assert code not in {finding.code for finding in of_no_job}


@every_row(
    ("options", "severity"),
    [
        ("--rdzv_backend c10d --master_addr node1", "error"),
        ("--rdzv_backend=c10d --rdzv_endpoint=node2:29500 --master_addr=node1", "warning"),
        ("--rdzv_backend c10d --rdzv_endpoint node1:29500 --master_addr node1", "advice"),
        ("--rdzv_backend static --master_addr node1", None),
        ("--rdzv_backend c10d --rdzv_endpoint node1:29500", None),
    ],
)
def test_an_address_that_the_rendezvous_does_not_read(options: str, severity: str | None) -> None:
    text = f"{HEADER}{SET}srun -c8 {TORCHRUN.format(options)}\n"
    findings = check_file(text, "job.sh", machine(TODAY, cores=16))
    severities = [one.severity.value for one in findings if one.code == "rendezvous-address"]
    assert severities == ([severity] if severity else [])
