"""How a flag is spelled, at every release where that changes."""

from packaging.version import Version
from rows import every_row

from cputune.stack import Versions, backend_flags, cpu_flag


def stack(transformers=None, torch=None, accelerate=None):
    named = {"transformers": transformers, "torch": torch, "accelerate": accelerate}
    return Versions(**{name: Version(text) for name, text in named.items() if text})


@every_row(
    ("transformers", "flag"),
    [("4.31.0", "--no_cuda"), ("4.32.0", "--use_cpu"), ("5.0.0", "--use_cpu"), (None, "--use_cpu")],
)
def test_the_cpu(transformers, flag):
    assert cpu_flag(stack(transformers)) == flag


@every_row(
    ("transformers", "accelerate", "backend", "expected"),
    [
        ("4.10.3", "0.10.0", "ccl", ()),
        ("4.11.3", "0.10.0", "ccl", ("--xpu_backend", "ccl")),
        ("4.23.1", "0.13.2", "gloo", ()),
        ("4.24.0", "0.13.2", "gloo", ("--xpu_backend", "gloo")),
        ("4.28.1", "1.13.0", "ccl", ("--xpu_backend", "ccl")),
        ("4.29.0", "0.19.0", "gloo", ("--ddp_backend", "gloo")),
        ("5.0.0", "1.12.0", "ccl", ("--ddp_backend", "ccl")),
        ("5.0.0", "1.13.0", "ccl", ()),
        ("5.0.0", None, "ccl", ()),
        ("5.1.0", "1.12.0", "ccl", ()),
        ("5.1.0", "1.13.0", "gloo", ("--ddp_backend", "gloo")),
        (None, None, "gloo", ("--ddp_backend", "gloo")),
        (None, None, "nccl", ()),
    ],
)
def test_the_backend(transformers, accelerate, backend, expected):
    assert backend_flags(stack(transformers, accelerate=accelerate), backend) == expected
