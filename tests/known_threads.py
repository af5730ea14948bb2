"""Threads of users about training on CPUs, each with a machine or last words as theirs were.

``docs/threads.md`` is made of it (``make doc``), and ``test_known_threads.py`` holds that what it
says is found. A machine is the clean one with what is named made different (`clean_machine`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from clean_machine import CASCADE_LAKE_ISA, IPEX_ERA, changed, topology

from cputune import diagnose
from cputune.host.facts import Package
from cputune.ranks.failure import failure

sys.path.append(str(Path(__file__).parent / "doctor"))
from test_doctor_checks import FAULTS

_PLANTED = dict(reversed(FAULTS))
"""Of each code the first machine that has it."""


class Thread(NamedTuple):
    """A thread (``owner/repo#n``), what was met there, and by what it is found.

    ``found`` is a code of the doctor; on the machine that its own test plants, where ``machine`` is
    None. Where a launch failed it is a part of what is said of its ``last`` words.
    """

    name: str
    met: str
    found: str
    machine: dict[str, Any] | None = None
    status: int = 1
    last: str = ""


def env(**variables: str | None) -> dict[str, Any]:
    return {"environment": variables}


def packages(**versions: str | Package | None) -> dict[str, Any]:
    return {"packages": versions}


AVX2 = {"cpu": {"isa": ("avx", "avx2", "fma", "sse4_2")}}
ONE_RANK = env(OMP_NUM_THREADS=None)
WANTS_HUB = Package(
    name="accelerate", version="1.15.0", location="/venv", requires=("huggingface_hub>=0.21.0",)
)
TLS = "ImportError: {}: cannot allocate memory in static TLS block"
LIBGOMP = "libgomp: Thread creation failed: Resource temporarily unavailable"
TAKEN = (
    "RuntimeError: The server socket has failed to listen on any local network address. "
    "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
)
BUS = "RuntimeError: DataLoader worker (pid 13) is killed by signal: Bus error."

THREADS = (
    # how many threads, and where
    Thread("pytorch/pytorch#22260", "torchrun sets OMP_NUM_THREADS=1", "threads-one"),
    Thread("dmlc/dgl#2812", "one thread in every process", "threads-one"),
    Thread(
        "callummcdougall/ARENA_3.0#397",
        "a tiny model, 8 times slower with 48 threads than with one",
        "threads-one",
        ONE_RANK,
    ),
    Thread(
        "pytorch/pytorch#42094",
        "set_num_threads is faster than the default",
        "threads-one",
        ONE_RANK,
    ),
    Thread("pytorch/pytorch#93247", "72 cores, slower the more of them", "threads-one", ONE_RANK),
    Thread(
        "pytorch/pytorch#125547",
        "30 times slower, bound to fewer CPUs than threads",
        "threads-affinity",
        {"topology": {"allowed": tuple(range(7))}},
    ),
    Thread("pytorch/pytorch#64864", "slow under taskset", "threads-affinity"),
    Thread("intel/intel-extension-for-pytorch#310", "threads on siblings", "threads-siblings"),
    Thread("pytorch/pytorch#149422", "GOMP_CPU_AFFINITY leaves one core", "affinity-gomp"),
    Thread("pytorch/pytorch#49971", "set_num_threads is of no effect", "affinity-gomp"),
    Thread("pytorch/pytorch#99625", "import torch shrinks the affinity", "affinity-shrinks"),
    Thread("huggingface/accelerate#3911", "all ranks on the same cores", "affinity-shrinks"),
    Thread("deepspeedai/DeepSpeed#4531", "bound by numactl and by MPI", "bound-twice"),
    Thread("geopm/geopm#614", "a pin mask without 0x", "pin-mask"),
    Thread("open-mpi/ompi#13009", "both ranks on one core each", "openmpi-one-core"),
    Thread("open-mpi/ompi#12900", "--bind-to core by default", "openmpi-one-core"),
    Thread("pytorch/pytorch#131011", "numactl fails in a cpuset", "numa-not-zero"),
    Thread("intel/intel-extension-for-pytorch#354", "set_mempolicy not permitted", "mempolicy"),
    # containers and limits
    Thread(
        "kserve/kserve#1031",
        "40 cores, a limit of 4: throttled nine tenths of the time",
        "quota-threads",
        {"topology": topology(cores=40, smt=1), "limits": {"cpu_quota": 4.0}, **ONE_RANK},
    ),
    Thread("onyx-dot-app/onyx#12351", "the container has few CPUs' time", "quota-threads"),
    Thread("vllm-project/vllm#34462", "threads of the host in a pod", "quota-threads"),
    Thread("springfall2008/batpred#4771", "threads above the quota", "quota-threads"),
    Thread("pytorch/pytorch#5040", "a loader's worker dies: Bus error", "shm-small"),
    Thread("pytorch/pytorch#16979", "64 MiB of /dev/shm in Docker", "shm-small"),
    Thread(
        "open-mmlab/mmdetection#1997",
        "the same, seen in the last words",
        "/dev/shm is too small",
        last=BUS,
    ),
    Thread("pytorch/pytorch#11201", "too many open files", "open-files"),
    Thread("pytorch/pytorch#973", "received 0 items of ancdata", "open-files"),
    Thread("pytorch/pytorch#193859", "60 processes for 128 threads", "processes-few"),
    Thread(
        "MIC-DKFZ/nnUNet#1343",
        "RLIMIT_NPROC 4096 on 64 cores",
        "may start no more threads",
        last=LIBGOMP,
    ),
    Thread("kubeflow/trainer#2407", "a rank on every CPU of the node", "ranks-auto"),
    Thread(
        "huggingface/transformers#20987", "killed without a word", "killed for memory", status=-9
    ),
    # precision and instructions
    Thread(
        "pytorch/pytorch#86270",
        "bf16 slower than fp32",
        "bf16-slow",
        {"cpu": {"isa": CASCADE_LAKE_ISA}},
    ),
    Thread("pytorch/pytorch#118499", "bf16 200 times slower with AVX2", "bf16-slow", AVX2),
    Thread("pytorch/pytorch#111456", "bf16 convolutions slow", "bf16-slow", AVX2),
    Thread("intel/intel-extension-for-pytorch#178", "bf16 without its instructions", "bf16-slow"),
    Thread(
        "huggingface/transformers#20445",
        "--bf16 asks for a GPU",
        "add --use_cpu",
        last="ValueError: Your setup doesn't support bf16/gpu. You need torch>=1.10",
    ),
    Thread(
        "pytorch/pytorch#22338", "QEMU's cpu64 has no AVX", "isa-old", {"cpu": {"isa": ("sse4_2",)}}
    ),
    Thread(
        "pytorch/pytorch#37577",
        "Illegal instruction at import torch",
        "an instruction that this processor does not have",
        status=-4,
    ),
    Thread("uxlfoundation/oneDNN#5689", "AMX in a virtual machine", "amx-doubtful"),
    # libraries
    Thread(
        "hiyouga/LlamaFactory#8768",
        "libgomp: static TLS block",
        "LD_PRELOAD=/e/libgomp.so.1",
        last=TLS.format("/e/libgomp.so.1"),
    ),
    Thread(
        "scikit-learn/scikit-learn#17231",
        "the same on a Raspberry Pi",
        "LD_PRELOAD=/usr/lib/libgomp.so.1",
        last=TLS.format("/usr/lib/libgomp.so.1"),
    ),
    Thread("pytorch/pytorch#98836", "two OpenMP runtimes in a process", "openmp-two"),
    Thread("intel/intel-extension-for-pytorch#279", "LD_PRELOAD of what is gone", "preload-dead"),
    Thread(
        "pytorch/pytorch#107302",
        "numpy 2 beside an older torch",
        "numpy-too-new",
        packages(torch="2.1.0", numpy="2.0.0"),
    ),
    # versions
    Thread(
        "huggingface/transformers#34699",
        "accelerate too old for the Trainer",
        "pair-does-not-train",
        packages(accelerate="1.1.1"),
    ),
    Thread(
        "huggingface/huggingface_hub#2377",
        "cannot import a name from huggingface_hub",
        "requirement-unmet",
        packages(huggingface_hub="0.20.0", accelerate=WANTS_HUB),
    ),
    Thread(
        "ZhangXInFD/SpeechTokenizer#12",
        "cannot import name 'split_torch_state_dict_into_shards'",
        "requirement-unmet",
        packages(huggingface_hub="0.20.3", accelerate=WANTS_HUB),
    ),
    Thread(
        "intel/intel-extension-for-pytorch#313",
        "undefined symbol in IPEX",
        "ipex-torch-mismatch",
        packages(**{**IPEX_ERA, "torch": "2.7.0"}),
    ),
    Thread(
        "intel/intel-extension-for-pytorch#867",
        "IPEX has ended",
        "ipex-ended",
        packages(intel_extension_for_pytorch="2.8.0"),
    ),
    Thread(
        "intel/torch-ccl#53",
        "bindings of another torch",
        "oneccl-torch-mismatch",
        packages(**{**IPEX_ERA, "oneccl_bind_pt": "2.3.0+cpu"}),
    ),
    # ranks that meet, or do not
    Thread(
        "huggingface/accelerate#2741",
        "--num_processes 2 --cpu starts one",
        "accelerate-one-process",
    ),
    Thread("huggingface/accelerate#3883", "every rank trains alone", "ranks-alone"),
    Thread("sgl-project/sglang#3226", "Gloo connectFullMesh failed", "gloo-loopback"),
    Thread("pytorch/gloo#223", "connect [127.0.1.1]: Connection refused", "gloo-loopback"),
    Thread("meta-pytorch/data#1142", "refused between nodes", "gloo-loopback"),
    Thread("aws-samples/aws-do-eks#50", "the master's name is the loopback", "master-loopback"),
    Thread(
        "pytorch/pytorch#126510",
        "errno 98 - Address already in use",
        "another job has the port",
        last=TAKEN,
    ),
    Thread(
        "Lightning-AI/pytorch-lightning#401",
        "a second job on one machine",
        "another job has the port",
        last="RuntimeError: Address already in use",
    ),
    Thread("intel/torch-ccl#48", "ccl without mpirun", "ccl-without-mpi"),
    Thread("uxlfoundation/oneCCL#168", "workers take the cores", "ccl-workers"),
)


def page() -> str:
    """``docs/threads.md``."""
    rows = []
    for thread in THREADS:
        repository, _, number = thread.name.partition("#")
        link = f"[{thread.name}](https://github.com/{repository}/issues/{number})"
        words = " ".join(next(said(thread), "").split()).replace("|", "\\|").replace("<", "&lt;")
        if _is_code(thread):
            words = words.partition(": ")[0]  # the title; the evidence is of the planted machine
        code = f"[`{thread.found}`](checks.md#{thread.found})" if _is_code(thread) else "last words"
        rows.append(f"| {link} | {thread.met} | {code} | {words} |")
    return "\n".join((HEAD.format(len(THREADS)), *rows, ""))


def _is_code(thread: Thread) -> bool:
    return thread.status == 1 and not thread.last


HEAD = """# Threads of users

Search this page for a problem that you have. It lists {} public threads about training on CPUs and
what cputune reports in that situation: a finding of `cputune doctor`, or the cause of a failed
launch from its last words. Each row is a test. Made by `make doc`.

| thread | problem | found by | report |
|---|---|---|---|"""


def said(thread: Thread) -> Iterator[str]:
    """What cputune says there: titles and evidence by code, or why the launch failed."""
    if thread.status != 1 or thread.last:
        tail = f"Traceback (most recent call last):\n{thread.last}"
        exits = [{"event": "exit", "rank": 0, "status": thread.status, "tail": tail}]
        kills = 1 if thread.status == -9 else None
        yield str(failure(exits, [], memory_kills=kills, steps=0, script="train.py"))  # type: ignore[arg-type]
        return
    machine = _PLANTED[thread.found] if thread.machine is None else thread.machine
    for finding in diagnose(changed(**machine)).findings:
        if finding.code == thread.found:
            yield f"{finding.title}: {finding.evidence}"
