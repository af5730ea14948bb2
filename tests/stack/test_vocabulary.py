"""What becomes of a word in a stack: accepted, ignored, refused, and what to write instead."""

from __future__ import annotations

from rows import every_row

from cputune.stack import Versions
from cputune.stack.uses import vocabulary


def said(spelling: str, stack: dict[str, str], **others: str) -> str | None:
    words = vocabulary(Versions.from_names({**stack, **others}))
    found = [
        f"{word.state.value}: {word.describe()}" for word in words if word.spelling == spelling
    ]
    return found[0] if found else None


@every_row(
    ("spelling", "transformers", "expected"),
    [
        ("--use_cpu", "5.23.0", "accepted: --use_cpu"),
        ("--no_cuda", "5.23.0", "refused: --no_cuda (instead: --use_cpu)"),
        ("--use_cpu", "4.31.0", "refused: --use_cpu (instead: --no_cuda)"),
        ("--use_mps_device", "5.0.0", "refused: --use_mps_device (instead: nothing)"),
        (
            "--jit_mode_eval",
            "5.0.0",
            "refused: --jit_mode_eval (instead: nothing, torch.compile has taken its place)",
        ),
        ("--optim", "4.15.0", "refused: --optim"),
        ("--fp16", "5.23.0", "ignored: --fp16 (on a CPU it trains in fp32; instead: --bf16)"),
        ("--fp16", "4.42.0", "ignored: --fp16 (on a CPU it trains in fp32; instead: --bf16)"),
        ("--fp16", "4.41.2", "ignored: --fp16 (on a CPU it trains in fp32; instead: --bf16)"),
        ("--fp16", "4.40.2", "refused: --fp16 (on a CPU it is a ValueError; instead: --bf16)"),
        ("--fp16", "4.19.4", "refused: --fp16 (on a CPU it is a ValueError; instead: nothing)"),
        ("--ddp_backend gloo", "4.29.0", "accepted: --ddp_backend gloo"),
        ("--xpu_backend gloo", "4.28.1", "accepted: --xpu_backend gloo"),
        ("--xpu_backend gloo", "4.23.1", "refused: --xpu_backend gloo"),
        ("--colour", "5.23.0", None),
    ],
)
def test_an_argument_is_what_its_release_makes_of_it(
    spelling: str, transformers: str, expected: str | None
) -> None:
    assert said(spelling, {"transformers": transformers}) == expected


@every_row(
    ("spelling", "accelerate", "expected"),
    [
        ("ipex_config:", "1.12.0", "accepted"),
        ("ipex_config:", "1.13.0", "refused"),
        ("debug:", "0.21.0", "refused"),
        ("use_cpu:", "1.15.0", None),  # every release has known it
        ("dynamo_config:", "1.15.0", None),
        ("mpirun_config.mpirun_ccl:", "0.27.2", None),
        ("mpirun_config.mpirun_ccl:", "1.12.0", "accepted"),
        ("mpirun_config.mpirun_ccl:", "1.13.0", "ignored"),
        ("ACCELERATE_USE_IPEX", "1.12.0", "accepted"),
        ("ACCELERATE_USE_IPEX", "1.13.0", "ignored"),
        ("CCL_WORKER_COUNT", "1.12.0", "accepted"),
        ("CCL_WORKER_COUNT", "1.13.0", "ignored"),
    ],
)
def test_keys_and_variables_are_those_of_accelerate(
    spelling: str, accelerate: str, expected: str | None
) -> None:
    found = said(spelling, {"accelerate": accelerate})
    assert (found or "").partition(":")[0] == (expected or "")
