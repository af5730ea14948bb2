"""How an argument of TrainingArguments is spelled, and which values it takes, release by release.

A version that is not known is taken to be newer than all tables.
"""

from __future__ import annotations

from cputune.stack.tables import load
from cputune.stack.versions import Versions


def takes(versions: Versions, argument: str) -> bool:
    """Whether TrainingArguments of this transformers has the argument (``use_ipex``).

    Raises KeyError for an argument that the tables do not hold.
    """
    return load().transformers.argument(argument).covers(versions.transformers)


def cpu_flag(versions: Versions) -> str:
    """The flag that keeps a Trainer on the CPU."""
    return "--use_cpu" if takes(versions, "use_cpu") else "--no_cuda"


def why_no_bf16(versions: Versions) -> str | None:
    """Why this Trainer cannot train in bf16 on a CPU; None where it can."""
    if load().transformers.does("bf16-on-cpu", versions.transformers):
        return None
    return f"transformers {versions.transformers} takes --bf16 for GPUs only"


def why_no_bf16_products(versions: Versions) -> str | None:
    """Why this torch cannot be told to multiply fp32 matrices in bf16; None where it can."""
    if versions.torch is None:
        return "the version of torch is not known"
    if load().torch_does("fp32-products-in-bf16", versions.torch):
        return None
    return f"torch {versions.torch} has no torch.backends.mkldnn.matmul.fp32_precision"


def why_no_masks(versions: Versions) -> str | None:
    """Why masks of ours cannot take the place of this torch's; None where they can."""
    if versions.torch is None:
        return "the version of torch is not known"
    if load().torch_does("kernels-in-python", versions.torch):
        return None
    return f"torch {versions.torch} lets no kernel take the place of its own"


def why_no_compile(versions: Versions) -> str | None:
    """Why this torch cannot compile a model that trains; None where it can."""
    if versions.torch is None:
        return "the version of torch is not known"
    if load().torch_does("compiles", versions.torch):
        return None
    return f"torch {versions.torch} compiles no model whose compiling can be told from its steps"


def backend_flags(versions: Versions, backend: str) -> tuple[str, ...]:
    """``--ddp_backend gloo`` as two words; none where this backend cannot be named.

    From transformers 4.29 on accelerate starts the process group, and must know ccl.
    """
    transformers = load().transformers
    if backend not in transformers.backends_of(versions.transformers):
        return ()
    if takes(versions, "ddp_backend"):
        if backend == "ccl" and load().accelerate.does("no-ccl", versions.accelerate):
            return ()
        return ("--ddp_backend", backend)
    return ("--xpu_backend", backend)


def optimizers(versions: Versions) -> tuple[str, ...]:
    """The spellings of AdamW that ``--optim`` takes and that can step on a CPU."""
    spans = load().transformers.optimizers
    return tuple(
        span.name
        for span in spans
        if span.covers(versions.transformers) and span.beside(versions.torch)
    )


def default_optimizer(versions: Versions) -> str | None:
    """What ``--optim`` is where nobody says it; None for a transformers that has no ``--optim``."""
    rows = load().transformers.default_optimizers
    found = (
        row.name for row in rows if row.covers(versions.transformers) and row.beside(versions.torch)
    )
    return next(found, None)
