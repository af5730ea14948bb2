"""A fix is proven before it is shown: read again, judged again, compared with the file before."""

from __future__ import annotations

import re

import pytest
from golden_texts import Golden
from rows import every_row
from stacks import TODAY, machine

from cputune import Finding
from cputune.doctor import Severity
from cputune.doctor.checkfile import FixedFile, check_file, fix_file, offered
from cputune.launch.edit import Edit, original_lines
from cputune.verifier.schemas import refused_document

FACTS = machine(TODAY, cores=16)


def fixed(text: str, name: str = "run.sh") -> FixedFile:
    return fix_file(text, name, FACTS, None, refused_document)


def codes(done: FixedFile) -> set[str]:
    return {finding.code for finding in done.unfixed}


def reason(done: FixedFile) -> str:
    return " ".join(one.evidence for one in done.unfixed if one.code == "file-fix-unproven")


WITHHELD = (
    # a script, what has to stay in it, a word of the reason
    ("N=${N:-1}\nipexrun --nnodes ${N} train.py --bf16\n", "ipexrun --nnodes ${N}", "variable"),
    ("R=${R:-1}\nipexrun --ninstances $R train.py\n", "ipexrun --ninstances $R", "variable"),
    ("ipexrun --memory-allocator jemalloc train.py\n", "ipexrun --memory-allocator", "jemalloc"),
    ("ipexrun --enable_tcmalloc train.py\n", "ipexrun --enable_tcmalloc", "tcmalloc"),
    (
        "export CCL_WORKER_COUNT=4\nsource /opt/x/oneccl_bindings_for_pytorch/env/setvars.sh\n"
        "torchrun --nproc_per_node 2 train.py --dist-backend ccl\n",
        "CCL_WORKER_COUNT=4",
        "ccl",
    ),
)


@every_row(("text", "stays", "word"), WITHHELD)
def test_a_fix_that_is_worse_is_withheld_with_its_reason(text: str, stays: str, word: str) -> None:
    done = fixed(text)
    assert stays in done.text
    assert "file-fix-unproven" in codes(done)
    assert word in reason(done)


NOT_KNOWN = (
    # a launch for GPUs, for another machine, or of a script that is not read
    "#SBATCH --gres=gpu:4\ntorchrun --nproc_per_node 4 train.py --bf16\n",
    "#SBATCH --nodes=1\nexport NCCL_DEBUG=INFO\ntorchrun --nproc_per_node 4 train.py --bf16\n",
    "srun -N2 torchrun --nnodes 2 --nproc_per_node 4 --rdzv_endpoint $HEAD:1 train.py\n",
    "srun accelerate launch --use_fsdp --num_processes 8 --num_machines 2 --rdzv_backend c10d"
    " --machine_rank $SLURM_PROCID --main_process_ip $HEAD train.py\n",
    "torchrun --nproc_per_node gpu train.py\n",
    "deepspeed main.py --deepspeed --zero_stage 2 --output_dir out\n",
    "python train.py --output_dir out --fp16 --warmup_ratio 0.1 --no_cuda\n",
    "export CCL_WORKER_COUNT=4\npython train.py\n",
)


@pytest.mark.parametrize("text", NOT_KNOWN)
def test_what_is_not_known_is_not_changed(text: str) -> None:
    done = fixed(text)
    assert done.text == text
    if "deepspeed" not in text and "gpu train" not in text:
        assert not [one.code for one in done.unfixed if one.severity is Severity.ERROR]


PRINTED = (
    ("ipexrun train.py --bf16\n", "python train.py"),
    ("ipexrun --nprocs-per-node 2 train.py\n", "torchrun --nproc_per_node 2 train.py"),
    ("R=2\nipexrun --nprocs-per-node $R train.py\n", "torchrun --nproc_per_node $R train.py"),
    (
        "export LD_PRELOAD=/usr/lib/libjemalloc.so.2\n"
        "ipexrun --memory-allocator jemalloc train.py\n",
        "python train.py",
    ),
    ("export OMP_NUM_THREADS=32\npython train.py\n", "OMP_NUM_THREADS=16"),
    (
        "source /opt/x/oneccl_bindings_for_pytorch/env/setvars.sh --force; N=1\npython t.py\n",
        "N=1\npython t.py\n",
    ),
    (
        "N=8 && \\\ntorchrun --nproc_per_node 2 train.py\n",
        "export ACCELERATE_USE_CPU=true\nN=8 && \\",
    ),
    (
        "export CCL_WORKER_COUNT=4\npython run_qa.py --ddp_backend ccl --output_dir out\n",
        "python run_qa.py",
    ),
)


@every_row(("text", "now"), PRINTED)
def test_a_fix_that_is_as_good_is_printed(text: str, now: str) -> None:
    done = fixed(text)
    assert now in done.text
    assert "file-fix-unproven" not in codes(done)


def test_versions_and_images_of_arguments_are_read_and_fixed_where_they_are_written() -> None:
    text = """ARG IMAGE_NAME=intel/intel-optimized-pytorch
FROM ${IMAGE_NAME}
ARG TORCH=2.4.0
ARG VERSION="4.45.0"
RUN pip install torch==${TORCH} transformers==$VERSION && \\
    pip install intel_extension_for_pytorch==${TORCH}
RUN curl -L https://github.com/huggingface/transformers/archive/v${VERSION}.tar.gz
"""
    done = fixed(text, "Dockerfile")
    assert done.text.splitlines()[:5] == [
        "ARG IMAGE_NAME=python:3.11",
        "FROM ${IMAGE_NAME}",
        "ARG TORCH=2.13.0",
        'ARG VERSION="5.23.0"',
        "RUN pip install torch==${TORCH} transformers==$VERSION",
    ]


def test_an_argument_of_two_packages_is_not_set_to_the_version_of_one() -> None:
    text = (
        "FROM python:3.11\nARG V=2.1.0\nRUN pip install torch==$V torchaudio==$V oneccl_bind_pt\n"
    )
    done = fixed(text, "Dockerfile")
    assert "ARG V=2.1.0" in done.text
    assert "torch==2.13.0 torchaudio==2.11.0" in done.text


def test_a_job_that_the_api_server_would_refuse_is_not_shown() -> None:
    good = "spec:\n  nprocPerNode: '1'\n  pytorchReplicaSpecs: {}\n"
    wrong = "spec:\n  nprocPerNode: 1\n  pytorchReplicaSpecs: {}\n"
    head = "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: a}\n"
    assert refused_document(head + good, head + good) is None
    assert "nprocPerNode" in str(refused_document(head + good, head + wrong))


@pytest.mark.parametrize(
    ("rest", "word"),
    [
        ("RUN pip install transformers==4.45.0\n", "torch"),
        ("RUN yum install -y gcc\nRUN pip install torch==2.4.0 transformers==4.45.0\n", "yum"),
        ("RUN conda install -y numpy && pip install torch==2.4.0\n", "conda"),
    ],
)
def test_an_image_that_the_rest_of_the_file_needs_stays(
    rest: str, word: str, golden: Golden
) -> None:
    text = f"FROM intel/intel-optimized-pytorch:2.4.0\n{rest}"
    done = fixed(text, "Dockerfile")
    golden(done.text)
    (left,) = [one for one in done.unfixed if one.code == "file-image-ended"]
    assert word in left.evidence.partition("no fix is printed")[2]


def test_what_is_left_has_the_lines_of_the_file_before_it_is_fixed() -> None:
    text = (
        "# a training\nexport TRANSFORMERS_CACHE=/c\n\n"
        "torchrun --nproc_per_node 2 run_qa.py --bf16 --no_cuda --tf32 True\n"
        "python prepare.py --deepspeed a.json --output_dir o\n"
    )
    done = fixed(text)
    assert done.text.count("\n") > text.count("\n")  # lines are added before the launches
    lines = text.splitlines()
    for finding in done.unfixed:
        _, number, said = finding.evidence.split(":", 2)
        words = re.findall(r"--\w+", said)
        assert words
        assert all(word in lines[int(number) - 1] for word in words[:1]), finding.evidence
    assert {"argument-sharded", "file-option-left"} <= codes(done)


def test_lines_of_a_changed_text_are_those_before() -> None:
    assert original_lines("a\nb\nc\n", "x\na\nc\nd\n") == [1, 1, 3, 3]
    assert original_lines("", "x\n") == [1]


def without_lines(finding: Finding) -> tuple[str, str]:
    return finding.code, re.sub(r":\d+: ", ": ", finding.evidence)


FAULTY = (
    "torchrun --nproc_per_node=gpu train.py --use_cpu --do_train --output_dir out\n",
    "torchrun --nproc_per_node auto train.py --use_cpu --do_train --output_dir out\n",
    "accelerate launch --multi_gpu --num_processes 2 train.py --fp16\n",
    "mpirun -n 2 -ppn 1 -genv OMP_NUM_THREADS 64 python train.py --use_ipex --no_cuda\n",
    "export OMP_NUM_THREADS=64 KMP_AFFINITY=granularity=fine,compact,1,0\n"
    "torchrun --nproc_per_node 4 train.py --use_cpu --ddp_backend ccl\n",
    "export MASTER_ADDR=127.0.0.1\n"
    "srun torchrun --nnodes 2 --nproc_per_node 2 train.py --use_cpu\n",
    "ipexrun --nnodes 2 --nprocs-per-node 2 train.py --bf16\n",
    "LD_PRELOAD=/gone/libtcmalloc.so.4 python train.py --bf16 --tf32 true --use_cpu\n",
)


@every_row("text", FAULTY + tuple(text for text, _, _ in WITHHELD))
def test_a_fix_that_is_applied_removes_its_finding(text: str) -> None:
    done = fixed(f"#!/bin/bash\n{text}")
    assert not {without_lines(one) for one in done.fixed} & {
        without_lines(one) for one in done.unfixed
    }
    again = fixed(done.text)
    assert again.text == done.text


def test_a_fix_that_would_change_nothing_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "#!/bin/bash\ntorchrun --nproc_per_node=gpu train.py --use_cpu --do_train\n"

    def by_comment(*_: object) -> tuple[Edit, ...]:
        return (Edit(start=0, end=0, text="# changed\n"),)

    monkeypatch.setattr("cputune.doctor.files.judge._edits_of_a_rank", by_comment)
    findings = check_file(text, "run.sh", FACTS)
    assert [bool(one.edits) for one in findings] == [True]
    done = fixed(text)
    assert done.text == text
    assert "file-fix-unproven" in codes(done)
    assert [one.edits for one in offered(findings, text, "run.sh", FACTS, None)] == [()]
