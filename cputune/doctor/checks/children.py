"""What the children of ``doctor --deep`` show: imports that fail, CPUs lost, slow kernels."""

from __future__ import annotations

from cputune.doctor.finding import Check, Severity

SKIPPED = Check(
    code="deep-skipped",
    severity=Severity.ADVICE,
    title="A part of --deep could not be run",
    remedy="Nothing to mend: this part of --deep has no result here.",
    source="https://pytorch.org/get-started/locally/",
    story="""--deep starts children that import torch. Where torch is not installed, or the
machine is a recording, there is nothing to start; a child that does not end in time, or
says nothing, proves nothing.""",
)
IMPORT_FAILS = Check(
    code="deep-import",
    severity=Severity.ERROR,
    title="A package cannot be imported",
    remedy="Install a version that fits; cputune doctor names the pair.",
    source="intel/intel-extension-for-pytorch#811, intel/torch-ccl#59, intel/torch-ccl#43",
    story="""Symptom: the interpreter ends with 127, an abort, or an undefined symbol.

Cause: the package was built for another torch, or a library that it needs is not on
LD_LIBRARY_PATH. It was really imported, in a child, and this is how the child ended.""",
)
AFFINITY = Check(
    code="deep-affinity",
    severity=Severity.ERROR,
    title="Importing torch takes CPUs away from the process",
    remedy="Unset the variable that binds, and bind the process from outside instead.",
    source="pytorch/pytorch#91989, pytorch/pytorch#99625, pytorch/pytorch#101850",
    story="""Symptom: everything runs on CPU 0, DataLoader workers too.

Cause: an OpenMP runtime that is told to bind (KMP_AFFINITY, GOMP_CPU_AFFINITY,
OMP_PROC_BIND) binds the main thread, and what it starts later inherits that mask. The
masks were read before and after torch computed its first product.""",
)
OPENMP = Check(
    code="deep-openmp-two",
    severity=Severity.WARNING,
    title="Several OpenMP runtimes are loaded into one process",
    remedy="Preload the one that torch should use, or install the packages from one place.",
    source="pytorch/pytorch#98836, pytorch/pytorch#13806",
    story="""Symptom: "OMP: Error #15", or twice as many threads as asked for, and slow.

Cause: torch, scikit-learn, MKL and others bring an OpenMP runtime each. Each has a team
of its own, and they spin against each other. The libraries are those that /proc/self/maps
showed after torch and transformers were imported.""",
)
ISA = Check(
    code="deep-isa",
    severity=Severity.WARNING,
    title="oneDNN uses less than the CPU shows",
    remedy="Unset what limits the instruction set, or install a torch that knows this CPU.",
    source="https://uxlfoundation.github.io/oneDNN/dev_guide_cpu_dispatcher_control.html",
    story="""Symptom: bf16 is no faster than fp32 on a CPU with AMX.

Cause: ONEDNN_MAX_CPU_ISA, a kernel that does not grant AMX, or an old oneDNN. The
instruction set is the one that oneDNN itself printed (ONEDNN_VERBOSE=1).""",
)
RATIO = Check(
    code="deep-bf16-ratio",
    severity=Severity.ADVICE,
    title="The speed of bf16 against fp32 on one core",
    remedy="Train in the faster one: --bf16 --use_cpu, or neither.",
    source="pytorch/pytorch#86270, pytorch/pytorch#118499, pytorch/pytorch#111456",
    story="""One core multiplied the same matrices in fp32 and in bf16, in turns, and these
are the medians. A training step gains less: only its matrix products change.""",
)
LIMITS = Check(
    code="deep-limits",
    severity=Severity.ADVICE,
    title="What all cores reach at most",
    remedy="Hold the speed of a training against it: `cputune tune` says how far it is from it.",
    source="https://www.cs.virginia.edu/stream/ref.html (triad)",
    story="""All threads that torch takes multiplied two matrices of 2048 × 2048 numbers, and
passed over memory that no cache holds (a = b + s * c). The best of some tries counts, so that
a neighbour lowers the numbers less. A training step comes to a part of it: its matrices are
smaller, and not all of it is products.""",
)
ILLEGAL = Check(
    code="deep-illegal-instruction",
    severity=Severity.ERROR,
    title="The CPU shows instructions that it does not execute",
    remedy="Keep oneDNN from using them (ONEDNN_MAX_CPU_ISA).",
    source="uxlfoundation/oneDNN#5689",
    story="""Symptom: "Illegal instruction" at the first bf16 product.

Cause: the hypervisor or the kernel shows AMX or AVX-512 flags and does not let the
process use them. oneDNN can be told to stay below: ONEDNN_MAX_CPU_ISA.""",
)

CHECKS: tuple[Check, ...] = (
    ILLEGAL,
    IMPORT_FAILS,
    AFFINITY,
    OPENMP,
    ISA,
    RATIO,
    LIMITS,
    SKIPPED,
)
