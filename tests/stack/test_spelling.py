"""How a flag is spelled, at every release where that changes."""

from packaging.version import Version
from rows import every_row

from cputune.stack import (
    Versions,
    backend_flags,
    cpu_flag,
    default_optimizer,
    optimizers,
    why_no_bf16,
    why_no_masks,
)


def stack(transformers=None, torch=None, accelerate=None):
    named = {"transformers": transformers, "torch": torch, "accelerate": accelerate}
    return Versions(**{name: Version(text) for name, text in named.items() if text})


@every_row(
    ("transformers", "flag"),
    [("4.31.0", "--no_cuda"), ("4.32.0", "--use_cpu"), ("5.0.0", "--use_cpu"), (None, "--use_cpu")],
)
def test_the_cpu(transformers, flag):
    assert cpu_flag(stack(transformers)) == flag


def test_bf16_on_a_cpu():
    assert "for GPUs only" in why_no_bf16(stack("4.19.4"))
    assert why_no_bf16(stack("4.20.0")) is None
    assert why_no_bf16(stack()) is None


def test_masks_of_ours_in_torch():
    assert "is not known" in why_no_masks(stack())
    assert "torch 1.13.1 " in why_no_masks(stack(torch="1.13.1"))
    assert why_no_masks(stack(torch="2.0.0")) is None


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


@every_row(
    ("transformers", "torch", "default", "taken"),
    [
        ("4.15.0", "1.10.2", None, ()),
        ("4.16.2", "1.10.2", "adamw_hf", ("adamw_hf", "adamw_torch")),
        ("4.26.1", "2.8.0", "adamw_hf", ("adamw_hf", "adamw_torch")),
        ("4.27.4", "2.3.1", "adamw_hf", ("adamw_hf", "adamw_torch")),
        ("4.27.4", "2.4.0", "adamw_hf", ("adamw_hf", "adamw_torch", "adamw_torch_fused")),
        ("4.31.0", "2.3.1", "adamw_hf", ("adamw_hf", "adamw_torch")),
        ("4.32.0", "2.3.1", "adamw_torch", ("adamw_hf", "adamw_torch")),
        ("4.49.0", "2.3.1", "adamw_torch", ("adamw_hf", "adamw_torch")),
        ("4.50.0", "2.3.1", "adamw_torch", ("adamw_torch",)),
        ("4.53.3", "2.8.0", "adamw_torch", ("adamw_torch", "adamw_torch_fused")),
        ("4.54.1", "2.7.1", "adamw_torch", ("adamw_torch", "adamw_torch_fused")),
        ("4.54.1", "2.8.0", "adamw_torch_fused", ("adamw_torch", "adamw_torch_fused")),
        ("5.23.0", "2.7.1", "adamw_torch", ("adamw_torch", "adamw_torch_fused")),
        (None, None, "adamw_torch_fused", ("adamw_torch", "adamw_torch_fused")),
    ],
)
def test_adamw(transformers, torch, default, taken):
    asked = stack(transformers, torch)
    assert default_optimizer(asked) == default
    assert optimizers(asked) == taken
