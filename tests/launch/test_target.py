"""Where a launch will run: what the header of a batch script asks for."""

from __future__ import annotations

from rows import every_row

from cputune.launch.target import HERE, target_of


@every_row(
    ("header", "nodes", "each", "cpus"),
    [
        ("#SBATCH --nodes=2 --cpus-per-task 32 # all\n#SBATCH -n4", 2, 2, 64),
        ("#SBATCH -N2 -c8 --ntasks-per-node=4", 2, 4, 32),
        ("#SBATCH --cpus-per-task=8 --exclusive", None, None, None),
        ("#SBATCH --nodes=1-3\n#SBATCH -c $N", 3, None, None),
        ("#SBATCH --time=1:00", None, None, None),
        ("#SBATCH -n2 --cpus-per-task CPUS", None, 2, None),
        ("#PBS -l select=2:ncpus=32:mpiprocs=4", 2, 4, 32),
        ("#PBS -l nodes=3:ppn=16,walltime=1:00", 3, None, 16),
        ("#PBS -q cpu\n#PBS -l ncpus=8", 1, None, 8),
        ('#BSUB -n 16\n#BSUB -R "span[ptile=8]"', 2, None, 8),
        ('#BSUB -n 16 -R "span[hosts=1]"', 1, None, 16),
    ],
)
def test_headers(header: str, nodes: int | None, each: int | None, cpus: int | None) -> None:
    target = target_of(f"#!/bin/bash\n{header}\npython t.py\n")
    assert target.elsewhere
    assert (target.nodes, target.tasks_per_node, target.cpus_per_node) == (nodes, each, cpus)


@every_row("line", ["# SBATCH and srun are not used", "N=${SLURM_NNODES:-1}", "echo srun"])
def test_a_script_without_a_header_runs_here(line: str) -> None:
    assert target_of(f"#!/bin/bash\n{line}\npython t.py\n") == HERE
    assert not HERE.elsewhere


@every_row(
    ("line", "gpus"),
    [
        ("srun torchrun t.py", None),
        ("N=$(scontrol show hostnames $LIST)", None),
        ("torchrun --nnodes $SLURM_NNODES t.py", None),
        ("#SBATCH --nodes=2", False),
        ("#SBATCH --gpus=0", False),
        ("#SBATCH --gres=gpu:4", True),
        ("#SBATCH -C gpu -c 10", True),
    ],
)
def test_a_job_of_slurm_and_its_gpus(line: str, gpus: bool | None) -> None:
    target = target_of(f"#!/bin/bash\n{line}\n")
    assert (target.kind, target.gpus) == ("job", gpus)


def test_slurm_sets_what_follows_from_its_header() -> None:
    target = target_of("#SBATCH --nodes=2 --ntasks-per-node=4 --cpus-per-task=8\n")
    assert target.variables["SLURM_CPUS_PER_TASK"] == "8"
    assert target.variables["SLURM_NTASKS"] == "8"
    assert "SLURM_CPUS_PER_TASK" not in target_of("#SBATCH -N 2\n").variables
