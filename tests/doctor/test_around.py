"""What stands around a launch, and arguments that no CPU can follow: each fault and a near miss."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rows import every_row
from stacks import TODAY, machine

from cputune.doctor.checkfile import check_file, fix_file
from cputune.host import Host
from cputune.host.facts import NumaNode

FACTS = machine(TODAY, cores=16)
SBATCH = "#SBATCH --nodes=1\n#SBATCH --ntasks-per-node={tasks}\n#SBATCH --cpus-per-task=8\n"
TRAINS = "run_glue.py --do_train --use_cpu --output_dir out"
SETVARS = "/opt/x/oneccl_bindings_for_pytorch/env/setvars.sh"
LOOP = "import argparse, torch\ntorch.distributed.init_process_group('gloo')\n"


class FakeHost(Host):
    """A live machine with these files and programs alone."""

    live = True

    def __init__(self, *programs: str, **files: str) -> None:
        self.programs = programs
        self.files = {f"{name}.py": text for name, text in files.items()}

    def read_text(self, path: str) -> str:
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    def which(self, program: str) -> str | None:
        return f"/usr/bin/{program}" if program in self.programs else None


def codes(text: str, name: str = "run.sh", host: Host | None = None, **more: object) -> set[str]:
    facts = machine({**TODAY, **more}, cores=16)
    return {finding.code for finding in check_file(text, name, facts, host)}


IN_SHELL = """\
apiVersion: v1
kind: Pod
spec:
  containers:
  - name: train
    command: [sh, -c, {text}]
    args: [--epochs, "3"]
"""


@every_row(
    ("code", "text", "near"),
    [
        (
            "srun-one-cpu",
            SBATCH.format(tasks=1) + f"srun python {TRAINS}",
            SBATCH.format(tasks=1) + f"srun -c8 python {TRAINS}",
        ),
        (
            "srun-one-cpu",
            SBATCH.format(tasks=1) + f"srun python {TRAINS}",
            SBATCH.format(tasks=1) + f"export SRUN_CPUS_PER_TASK=8\nsrun python {TRAINS}",
        ),
        (
            "srun-ranks-alone",
            SBATCH.format(tasks=4) + f"srun -c8 python {TRAINS}",
            SBATCH.format(tasks=1) + f"srun -c8 python {TRAINS}",
        ),
        (
            "srun-ranks-alone",
            f"srun -n4 python {TRAINS}",
            f"srun -n4 bash -c 'RANK=$SLURM_PROCID python {TRAINS}'",
        ),
        (
            "launch-nested",
            SBATCH.format(tasks=4) + f"srun -c8 torchrun --nproc_per_node 2 {TRAINS}",
            SBATCH.format(tasks=1) + f"srun -c8 torchrun --nproc_per_node 2 {TRAINS}",
        ),
        (
            "launch-nested",
            f"srun -n4 torchrun --nnodes 4 {TRAINS}",
            "srun -n4 bash -c 'torchrun --nnodes 4 --node_rank=$SLURM_PROCID t.py'",
        ),
        (
            "file-sourced-missing",
            f"source {SETVARS}\npython {TRAINS}",
            f"if [ -f {SETVARS} ]; then source {SETVARS}; fi\npython {TRAINS}",
        ),
        (
            "launch-nested",
            f"mpirun -n 2 torchrun --nproc_per_node 2 {TRAINS}",
            f"mpirun -n 2 python {TRAINS}",
        ),
        (
            "file-launcher-deprecated",
            f"python -m torch.distributed.launch --nproc_per_node 2 {TRAINS}",
            f"python -m torch.distributed.run --nproc_per_node 2 {TRAINS}",
        ),
        (
            "node-rank-fixed",
            f"torchrun --nnodes 2 --node_rank 0 --master_addr a {TRAINS}",
            f"torchrun --nnodes 2 --node_rank $RANK_OF_NODE --master_addr a {TRAINS}",
        ),
        (
            "node-rank-fixed",
            'WORDS=(--nnodes 2 --node_rank 0 --master_addr a)\ntorchrun "${WORDS[@]}" t.py',
            'N=0\nWORDS=(--nnodes 2 --node_rank $N --master_addr a)\ntorchrun "${WORDS[@]}" t.py',
        ),
        (
            "node-rank-fixed",
            'WORDS="--nnodes 2 --node_rank=1 --master_addr a"\ntorchrun $WORDS t.py',
            "N=1\ntorchrun --nnodes 2 --node_rank=$N --master_addr a t.py",
        ),
        (
            "node-rank-fixed",
            f"srun torchrun --nnodes 2 --node_rank $SLURM_NODEID --master_addr a {TRAINS}",
            "srun bash -c 'torchrun --nnodes 2 --node_rank $SLURM_NODEID --master_addr a t.py'",
        ),
        (
            "node-rank-fixed",
            'srun bash -c "torchrun --nnodes 2 --node_rank $SLURM_NODEID --master_addr a t.py"',
            "srun bash -c 'torchrun --nnodes 2 --node_rank $SLURM_NODEID --master_addr a t.py'",
        ),
        (
            "launcher-option",
            f"accelerate launch --use_cpu {TRAINS}",
            f"accelerate launch --cpu --fsdp_version 2 {TRAINS}",
        ),
        (
            "launcher-option",
            f"torchrun --nproc_per_node 2 --epochs 3 {TRAINS}",
            f"torchrun --nproc-per-node 2 --rdzv-conf a=1 --max-r 3 {TRAINS} --epochs 3",
        ),
        (
            "master-addr",
            f"export RANK=0 WORLD_SIZE=1 LOCAL_RANK=0\npython {TRAINS}",
            f"export RANK=0 WORLD_SIZE=1\npython {TRAINS}",
        ),
        (
            "launch-nested",
            f"torchrun --nproc_per_node 2 python {TRAINS}",
            f"torchrun --nproc_per_node 2 {TRAINS}",
        ),
        (
            "ranks-oversubscribed",
            f"#PBS -l select=2:ncpus=8:mpiprocs=8:ompthreads=8\nmpirun -np 16 python {TRAINS}",
            f"#PBS -l select=2:ncpus=8:mpiprocs=8:ompthreads=1\nmpirun -np 16 python {TRAINS}",
        ),
        (
            "ranks-oversubscribed",
            "#SBATCH --ntasks=4 --ntasks-per-node=4 --cpus-per-task=4\n"
            f"export OMP_NUM_THREADS=8\nmpirun -n 4 python {TRAINS}",
            "#SBATCH --ntasks=4 --ntasks-per-node=1 --cpus-per-task=4\n"
            f"export OMP_NUM_THREADS=4\nmpirun -n 4 python {TRAINS}",
        ),
        (
            "file-flag-refused",
            "python main.py --no-cuda --num_train_epochs 3",
            "python main.py --no-cuda --epochs 3 --gamma 0.7",
        ),
        (
            "setting-without-library",
            f"export KMP_BLOCKTIME=1\npython {TRAINS}",
            f"export KMP_BLOCKTIME=1 LD_PRELOAD=/opt/libiomp5.so\npython {TRAINS}",
        ),
        (
            "debug-left-on",
            f"export KMP_AFFINITY=verbose LD_PRELOAD=/opt/libiomp5.so\npython {TRAINS}",
            f"export KMP_AFFINITY=verbose\npython {TRAINS}",
        ),
        (
            "slurm-cpus-unset",
            f"#SBATCH --ntasks=1\nexport OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\npython {TRAINS}",
            f"#SBATCH -n1 -c8\nexport OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\npython {TRAINS}",
        ),
        (
            "slurm-cpus-unset",
            f"#SBATCH -n1\nexport OMP_NUM_THREADS=${{SLURM_CPUS_PER_TASK}}\npython {TRAINS}",
            "#SBATCH -n1\nsrun -c8 bash -c 'OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK python t.py'",
        ),
        (
            "slurm-one-cpu",
            f"#SBATCH --ntasks=1\npython {TRAINS}",
            f"#SBATCH --ntasks=1 --exclusive\npython {TRAINS}",
        ),
        (
            "slurm-one-cpu",
            f"#SBATCH --ntasks=1\nsrun python {TRAINS}",
            f"#SBATCH --ntasks=1\nsrun -c 8 python {TRAINS}",
        ),
        (
            "slurm-variable",
            f"#SBATCH --nodes=2\nsrun torchrun --nnodes $SLURM_NODES {TRAINS}",
            f"#SBATCH --nodes=2\nSLURM_NODES=2\nsrun torchrun --nnodes $SLURM_NODES {TRAINS}",
        ),
        (
            "argument-no-cpu",
            "python main.py --backend=nccl",
            "python main.py --backend=gloo",
        ),
        (
            "loader-threads",
            "python main.py --num_workers 32",
            "python main.py --num_workers 8",
        ),
        (
            "ranks-oversubscribed",
            f"mpirun -genv OMP_NUM_THREADS=16 -n 8 -ppn 2 python {TRAINS}",
            f"mpirun -genv OMP_NUM_THREADS=16 -n 8 -ppn 2 -hosts a,b,c,d python {TRAINS}",
        ),
        (
            "ranks-auto",
            f"export PET_NPROC_PER_NODE=auto\ntorchrun {TRAINS}",
            f"export PET_NPROC_PER_NODE=auto\npython {TRAINS}",
        ),
        (
            "file-k8s-args",
            IN_SHELL.format(text="python train.py"),
            IN_SHELL.format(text="'python train.py $0 $@'"),
        ),
        (
            "trainings-at-once",
            f"for s in 1 2 3; do python {TRAINS} --seed $s > $s.log 2>&1 & done; wait",
            f"for s in 1 2 3; do python {TRAINS} --seed $s > $s.log 2>&1; done",
        ),
        (
            "trainings-at-once",
            f"export OMP_NUM_THREADS=9\npython {TRAINS} &\npython {TRAINS} &\nwait",
            f"export OMP_NUM_THREADS=8\npython {TRAINS} &\npython {TRAINS} &\nwait",
        ),
        (
            "trainings-at-once",
            f"seq 4 | xargs -P 4 -I N python {TRAINS} --seed N",
            f"seq 4 | xargs -P 1 -I N python {TRAINS} --seed N",
        ),
        (
            "trainings-at-once",
            f"for c in $CPUS; do python {TRAINS} & done; wait",
            f"for c in $CPUS; do taskset -c $c python {TRAINS} & done; wait",
        ),
        (
            "trainings-at-once",
            f"for s in 1 2; do python {TRAINS} & done",
            f"for s in 1 2; do python {TRAINS} & wait; done",
        ),
        (
            "rendezvous-endpoint",
            f"torchrun --nnodes 2 --rdzv_backend c10d --rdzv_endpoint eth0 {TRAINS}",
            f"torchrun --nnodes 2 --rdzv_backend c10d --rdzv_endpoint node1:29400 {TRAINS}",
        ),
        (
            "nodes-elastic",
            f"torchrun --nnodes 1:3 --rdzv_endpoint node1:29400 {TRAINS}",
            f"torchrun --nnodes 3:3 --rdzv_endpoint node1:29400 {TRAINS}",
        ),
        (
            "cpus-absent",
            f"python -m torch.backends.xeon.run_cpu --ncores_per_instance 22 {TRAINS}",
            f"python -m torch.backends.xeon.run_cpu --ncores_per_instance 16 {TRAINS}",
        ),
        ("cpus-absent", f"numactl -C 9-16 python {TRAINS}", f"numactl -C 8-15 python {TRAINS}"),
        ("cpus-absent", f"taskset -c 16-19 python {TRAINS}", f"taskset -c 8-19 python {TRAINS}"),
        (
            "cpus-absent",
            f"docker run --cpuset-cpus 0-27 image python {TRAINS}",
            f"docker run --cpuset-cpus 0-7 image python {TRAINS}",
        ),
        (
            "container-variable",
            f"export OMP_NUM_THREADS=8\ndocker run image python {TRAINS}",
            f"export OMP_NUM_THREADS=8\ndocker run -e OMP_NUM_THREADS image python {TRAINS}",
        ),
        (
            "container-variable",
            f"HF_HUB_OFFLINE=1 podman run image python {TRAINS}",
            f"HF_HUB_OFFLINE=1 apptainer exec image.sif python {TRAINS}",
        ),
        (
            "file-launcher-missing",
            f"command -v ipexrun\nipexrun {TRAINS}",
            f"if command -v ipexrun; then ipexrun {TRAINS}; fi",
        ),
        (
            "file-line-ends",
            "python run_glue.py \\\n  --do_train\n  --use_cpu\n",
            "python run_glue.py \\\n  --do_train \\\n  --use_cpu\n",
        ),
        ("argument-no-cpu", f"python {TRAINS} --tf32 True", f"python {TRAINS} --tf32 False"),
        (
            "argument-no-cpu",
            f"torchrun {TRAINS} --ddp_backend nccl",
            f"torchrun {TRAINS} --ddp_backend gloo",
        ),
        (
            "argument-no-cpu",
            f"python {TRAINS} --attn_implementation flash_attention_2",
            f"python {TRAINS} --attn_implementation sdpa",
        ),
        (
            "argument-package",
            f"python {TRAINS} --optim paged_adamw_32bit",
            f"python {TRAINS} --optim adamw_torch",
        ),
        ("argument-sharded", f"python {TRAINS} --fsdp full_shard", f"python {TRAINS}"),
    ],
)
def test_a_fault_and_its_near_miss(code: str, text: str, near: str) -> None:
    assert code in codes(text)
    assert code not in codes(near)


def test_fused_adam_is_for_cpus_from_torch_2_4_on() -> None:
    text = f"python {TRAINS} --optim adamw_torch_fused"
    assert "argument-no-cpu" in codes(text, torch="2.3.1")
    assert "argument-no-cpu" not in codes(text, torch="2.4.0")


def test_bitsandbytes_steps_on_cpus_from_0_50_on() -> None:
    text = f"python {TRAINS} --optim adamw_bnb_8bit"
    assert "argument-no-cpu" in codes(text, bitsandbytes="0.49.2")
    assert codes(text, bitsandbytes="0.50.0").isdisjoint({"argument-no-cpu", "argument-package"})


def test_a_correct_job_of_two_nodes_is_not_judged_by_the_interfaces_here() -> None:
    text = (
        "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --cpus-per-task=8\n"
        "export GLOO_SOCKET_IFNAME=ib0 OMP_NUM_THREADS=4 SRUN_CPUS_PER_TASK=8\n"
        "srun torchrun --nnodes 2 --nproc_per_node 2 --rdzv_backend c10d "
        f"--rdzv_endpoint $HEAD:29400 {TRAINS}\n"
    )
    assert check_file(text, "job.sh", machine(TODAY, cores=2)) == ()


def test_a_script_with_its_own_process_group_does_not_need_accelerate() -> None:
    text = "export OMP_NUM_THREADS=2\ntorchrun --nproc_per_node 2 train.py"
    assert codes(text, host=FakeHost(train=LOOP)) == set()
    by_accelerate = FakeHost(train=f"import accelerate\n{LOOP}")
    assert codes(text, host=by_accelerate) == {"ranks-alone"}


@every_row(
    "line",
    [
        "TrainingArguments(output_dir='out', use_cpu=True)",
        "TrainingArguments('out', no_cuda = True)",
        "Accelerator(cpu=True)",
        "os.environ['ACCELERATE_USE_CPU'] = '1'",
    ],
)
def test_a_script_that_asks_for_the_cpu_needs_no_option(line: str) -> None:
    text = "export OMP_NUM_THREADS=2\ntorchrun --nproc_per_node 2 train.py"
    script = f"import accelerate, os\n{line}\n{LOOP}"
    assert codes(text, host=FakeHost(train=script)) == set()
    on_gpus = script.replace("True", "False").replace("ACCELERATE_USE_CPU", "OTHER")
    assert codes(text, host=FakeHost(train=on_gpus)) == {"ranks-alone"}


@every_row(
    ("script", "before", "found"),
    [
        ("import os, torch\nmp.Pool(os.cpu_count()).map(f, x)\n", "", True),
        ("import torch\nn = mp.cpu_count()\np = [mp.Process(target=f) for i in n]\n", "", True),
        ("import torch\nmp.Pool(mp.cpu_count())\n", "export OMP_NUM_THREADS=1\n", False),
        ("import torch\ntorch.set_num_threads(1)\nmp.Pool(mp.cpu_count())\n", "", False),
        ("import torch\nmp.Pool(2)\n", "", False),
        ("import json\nmp.Pool(mp.cpu_count())\n", "", False),
    ],
)
def test_processes_that_a_script_starts_share_the_cpus(
    script: str, before: str, found: bool
) -> None:
    host = FakeHost(train=script)
    assert ("script-processes" in codes(f"{before}python train.py", host=host)) is found


FIXED = (
    (
        "python t.py \\\n  --do_train\n  --use_cpu\n",
        "python t.py \\\n  --do_train \\\n  --use_cpu\n",
    ),
    ("python t.py \\  \n  --use_cpu\n", "python t.py \\\n  --use_cpu\n"),
    (
        "python t.py \\\n  # why\n  --use_cpu\n",
        "  # why\npython t.py \\\n  --use_cpu\n",
    ),
    ("python t.py \\\r\n  --use_cpu\r\n", "python t.py \\\n  --use_cpu\n"),
    (
        "python -m torch.distributed.launch --nproc_per_node=2 --use_env t.py",
        "export OMP_NUM_THREADS=8\nexport ACCELERATE_USE_CPU=true\n"
        "torchrun --nproc_per_node=2 t.py",
    ),
    (
        "accelerate launch --cpu --num_processes 2 \\\n  --main_process_port 29511 \\\n"
        "  t.py --x 1",
        "export OMP_NUM_THREADS=8\nACCELERATE_USE_CPU=true torchrun --nproc_per_node 2 \\\n"
        "  --master_port 29511 \\\n  t.py --x 1",
    ),
    (
        "OMP_NUM_THREADS=2 python a.py\nOMP_NUM_THREADS=64 python b.py\n",
        "OMP_NUM_THREADS=2 python a.py\nOMP_NUM_THREADS=16 python b.py\n",
    ),
    (
        "export OMP_NUM_THREADS=8\npython a.py\nexport OMP_NUM_THREADS='64'\npython b.py\n",
        "export OMP_NUM_THREADS=8\npython a.py\nexport OMP_NUM_THREADS=16\npython b.py\n",
    ),
    (
        f"torchrun {TRAINS} --ddp_backend nccl",
        f"torchrun {TRAINS} --ddp_backend gloo",
    ),
)


@every_row(("text", "after"), FIXED)
def test_a_fix_changes_its_own_words_alone(text: str, after: str) -> None:
    assert fix_file(text, "run.sh", FACTS).text == after


def test_a_here_document_assigns_nothing_and_no_branch_is_left_empty() -> None:
    text = (
        "cat << E\nexport TORCH_DISTRIBUTED_DEBUG=DETAIL\nE\nif [ $1 ]; then\n"
        "  export TORCH_DISTRIBUTED_DEBUG=DETAIL\nfi\npython train.py --use_cpu\n"
    )
    done = fix_file(text, "run.sh", FACTS)
    assert done.text == text.replace("  export TORCH_DISTRIBUTED_DEBUG=DETAIL\nfi", "    :\nfi")


def test_a_worker_of_zero_replicas_is_taken_out() -> None:
    text = (
        "kind: PyTorchJob\nspec:\n  nprocPerNode: '1'\n  pytorchReplicaSpecs:\n"
        "    Master: {replicas: 1}\n    Worker:\n      replicas: 0\n"
    )
    done = fix_file(text, "job.yaml", FACTS)
    assert "Worker" not in done.text
    assert [one.code for one in done.fixed] == ["file-k8s-no-workers"]


@pytest.mark.parametrize("option", ["--numa-binding node", "--numa_binding=socket"])
def test_a_binding_to_the_node_of_a_gpu_is_an_error_without_gpus(option: str) -> None:
    text = f"torchrun --standalone --nproc-per-node 2 {option} train.py --use_cpu --do_train\n"
    facts = machine(TODAY, cores=16)
    found = {one.code: one for one in check_file(text, "run.sh", facts)}
    assert "node" in found["numa-binding-gpu"].evidence
    after = fix_file(text, "run.sh", facts).text
    assert "numa" not in after
    assert "--nproc-per-node 2 train.py" in after
    with_gpu = replace(facts, accelerators=("NVIDIA A100",), packages=())
    assert "numa-binding-gpu" not in {one.code for one in check_file(text, "run.sh", with_gpu)}


def test_a_missing_program_is_named_before_words_that_are_not_known() -> None:
    for host, missing in ((FakeHost(), True), (FakeHost("numactl"), False)):
        assert ("file-wrapper-missing" in codes("numactl $ARGS python t.py", host=host)) is missing


def test_a_numa_node_that_is_absent_is_named() -> None:
    node = NumaNode(id=0, cpus=FACTS.topology.online, memory_bytes=None)
    facts = replace(FACTS, topology=replace(FACTS.topology, numa_nodes=(node,)))
    run_cpu = "python -m torch.backends.xeon.run_cpu --node_id"
    for binder in ("numactl -N {} python", "numactl -m {} python", f"{run_cpu} {{}}"):
        for number in (0, 1):
            line = f"{binder.format(number)} {TRAINS}"
            found = {finding.code for finding in check_file(line, "run.sh", facts)}
            assert ("cpus-absent" in found) == bool(number), line
