"""Setups in which nothing is wrong: machines, launch files, stacks and logs."""

from __future__ import annotations

from pathlib import Path

import pytest
from clean_machine import CLEAN
from hosts.builder import machine
from hosts.known import KNOWN
from hosts.recordings import open_recording
from hosts.test_known_machines import MACHINES, WHERE, FakeMachine
from rows import every_row

from cputune import CannotError, Finding, Severity, diagnose, probe
from cputune.doctor.checkfile import check_file
from cputune.doctor.named_stack import judge_stack
from cputune.doctor.symptoms import judge_symptom
from cputune.host import Host

SCRIPT = """
from transformers import HfArgumentParser, TrainingArguments
HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
"""
ARGUMENTS = "--model_name_or_path bert-base-cased --do_train --use_cpu --output_dir out"

FILES = {
    "sbatch, one task": (
        "job.sh",
        "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --ntasks-per-node=1\n#SBATCH --cpus-per-task=16\n"
        "export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK\n"
        f"srun --cpu-bind=none python run_glue.py {ARGUMENTS}\n",
    ),
    "torchrun on one machine": (
        "run.sh",
        "#!/bin/bash\nset -euo pipefail\nexport OMP_NUM_THREADS=28 ACCELERATE_USE_CPU=true\n"
        f"torchrun --standalone --nproc-per-node 2 run_glue.py {ARGUMENTS} --ddp_backend gloo\n",
    ),
    "python alone": ("run.sh", f"OMP_NUM_THREADS=56 python run_glue.py {ARGUMENTS} --bf16\n"),
    "numactl and python": (
        "run.sh",
        f"OMP_NUM_THREADS=28 numactl -N 0 -m 0 python run_glue.py {ARGUMENTS}\n",
    ),
    "accelerate's YAML": (
        "cpu.yaml",
        "compute_environment: LOCAL_MACHINE\ndebug: false\ndistributed_type: 'NO'\n"
        "machine_rank: 0\nmain_training_function: main\nmixed_precision: 'no'\nnum_machines: 1\n"
        "num_processes: 1\nuse_cpu: true\n",
    ),
    "a PyTorchJob": (
        "job.yaml",
        """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: bert}
spec:
  nprocPerNode: "1"
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      restartPolicy: Never
      template:
        spec:
          containers:
            - name: pytorch
              image: registry.example/train:1
              command: [torchrun, train.py, --use_cpu, --do_train, --output_dir, /out]
              env: [{name: OMP_NUM_THREADS, value: "8"}]
              resources:
                requests: {cpu: "8", memory: 16Gi}
                limits: {cpu: "8", memory: 16Gi}
              volumeMounts: [{name: dshm, mountPath: /dev/shm}]
          volumes: [{name: dshm, emptyDir: {medium: Memory, sizeLimit: 2Gi}}]
""",
    ),
}
STACKS = (
    "torch=2.13.0,transformers=5.23.0,accelerate=1.15.0",
    "torch=2.8.0,transformers=4.55.4,accelerate=1.10.1",
    "torch=2.6.0,transformers=4.51.3,accelerate=1.6.0",
)
LOGS = (
    "OMP: Info #276: omp_set_nested routine deprecated, please use omp_set_max_active_levels\n"
    "CUDA is not available. Running on CPU, which needs no GPU.\n"
    "{'loss': 0.6931, 'learning_rate': 5e-05, 'epoch': 0.1}\n",
    "Some weights of BertForSequenceClassification were not initialized from the model checkpoint\n"
    "Word error rate of the last epoch: 0.12\nmean squared error = 3e-4\n"
    "100%|██████████| 100/100 [00:10<00:00, 10.00it/s]\n",
)


def against(findings: tuple[Finding, ...]) -> list[str]:
    """What is more than advice."""
    bad = (one for one in findings if one.severity is not Severity.ADVICE)
    return [f"{one.code}: {one.evidence}" for one in bad]


@every_row("where", ["bare", "vm", "pod"])
@every_row("name", MACHINES)
def test_a_healthy_machine(name: str, where: str) -> None:
    host, built = FakeMachine(), machine(None, **{**KNOWN[name], **WHERE[where]})
    host.files, host.children = built.files, built.children
    assert against(diagnose(probe(host)).findings) == []


@pytest.mark.parametrize("name", ["whole", "smt-off"])
def test_a_recorded_machine(name: str, tmp_path: Path) -> None:
    findings = diagnose(probe(open_recording(name, tmp_path))).findings
    emulated = [one for one in findings if one.code == "cpu-emulated"]  # they are guests of QEMU
    assert against(tuple(one for one in findings if one not in emulated)) == []


class FakeFolder(Host):
    """A folder with the script that the files name."""

    def read_text(self, path: str) -> str:
        if path.endswith(("run_glue.py", "train.py")):
            return SCRIPT
        raise FileNotFoundError(path)

    def which(self, program: str) -> str | None:
        return f"/usr/bin/{program}"


@every_row("name", FILES)
def test_a_healthy_launch_file(name: str) -> None:
    file, text = FILES[name]
    assert against(check_file(text, file, CLEAN, FakeFolder())) == []


@pytest.mark.parametrize("stack", STACKS)
def test_a_stack_that_fits(stack: str) -> None:
    assert against(judge_stack(stack, CLEAN)) == []


@pytest.mark.parametrize("log", LOGS)
def test_a_log_of_a_training_that_goes_on(log: str) -> None:
    try:
        findings = tuple(judge_symptom(log, CLEAN))
    except CannotError as error:
        assert "no error in this text" in str(error)  # noqa: PT017
    else:
        assert against(findings) == []
