"""Arguments of Trainer that a CPU cannot follow, or that need a package."""

from __future__ import annotations

from collections.abc import Iterator

from cputune.doctor.files.judged_launch import JudgedLaunch
from cputune.doctor.finding import Finding, Severity, checks_of, fault
from cputune.host.facts import HostFacts
from cputune.launch.edit import Edit
from cputune.launch.places import Places
from cputune.launch.script import are_trainers
from cputune.stack.uses import bitsandbytes_steps_on_cpu, fuses_on_cpu

# Part of the name of a Trainer optimizer: the module it imports (transformers/trainer.py).
_OPTIMIZERS = {
    "bnb": "bitsandbytes",
    "8bit": "bitsandbytes",
    "paged": "bitsandbytes",
    "torchao": "torchao",
}
_SHARDED = ("--deepspeed", "--fsdp", "--fsdp_config")


@fault("argument-no-cpu", Severity.ERROR)
def no_cpu() -> None:
    """An argument asks for what a CPU does not have

    Symptom: "--tf32 requires Ampere", "FlashAttention2 … GPU", "fused=True requires …",
    "Distributed package doesn't have NCCL built in".

    Cause: the arguments were written for a GPU. TF32 and FlashAttention need CUDA; torch for CPUs
    has neither NCCL nor MPI; its fused AdamW works on CPUs from torch 2.4 on.

    Remedy: Remove the argument, or write what the evidence says.

    Source: gensyn-ai/rl-swarm#148, deepmodeling/deepmd-kit#4667, pytorch/pytorch#108491
    """


@fault("argument-package", Severity.ERROR)
def lacks_package() -> None:
    """An argument needs a package that is not installed

    Symptom: "You need to install `bitsandbytes`", "--deepspeed requires Deepspeed", an ImportError
    after the model was loaded.

    Cause: some optimizers, reporters and sharding methods are in other packages.

    Remedy: Install the package, or write what the evidence says.

    Source: bitsandbytes-foundation/bitsandbytes#1226
    """


@fault("argument-sharded", Severity.ERROR)
def sharded() -> None:
    """An argument divides the model over accelerators

    Symptom: an ImportError of deepspeed, or a ValueError about FSDP.

    Cause: --deepspeed and --fsdp divide the weights over the memories of several accelerators.
    Ranks of one machine share its memory and gain nothing. `cputune tune` refuses both.

    Remedy: Remove the argument, and pass the script the batch, optimizer and precision of its file.

    Source: https://huggingface.co/docs/transformers/deepspeed
    """


def judge_arguments(launch: JudgedLaunch) -> Iterator[Finding]:
    """Every argument that cannot work."""
    yield from _sharded(launch)
    if launch.facts.accelerators:
        return
    yield from _of_gpus(launch)
    yield from _optimizer(launch)


def asks_for_tf32(launch: JudgedLaunch) -> bool:
    """Whether ``--tf32`` asks a Trainer for what no CPU has."""
    given = launch.switched_on("--tf32") and not launch.facts.accelerators
    sure = launch.is_trainers("--tf32")
    likely = are_trainers(launch.arguments) and launch.may_be_trainers("--tf32")
    return given and (sure or likely)


def _sharded(launch: JudgedLaunch) -> Iterator[Finding]:
    for name in _SHARDED:
        value = launch.argument(name)
        if value in (None, "", "None") or not launch.may_be_trainers(name):
            continue
        text = f"{name} {value}: it divides a model over accelerators"
        severity = None
        if not launch.is_trainers(name):
            if not are_trainers(launch.arguments):
                continue
            severity = Severity.WARNING
            text += ", if the script parses TrainingArguments"
        yield sharded.finding(launch.at(text), severity=severity)


def _of_gpus(launch: JudgedLaunch) -> Iterator[Finding]:
    if asks_for_tf32(launch):
        text = "--tf32 needs a GPU (Ampere or newer), and is refused"
        evidence = launch.at(text)
        if launch.is_trainers("--tf32"):
            edits = launch.edits_by(Places.without_value, "--tf32")
            yield no_cpu.finding(evidence, edits=edits, dropped=(f"{evidence}: it is removed",))
        else:
            unsure = f"{evidence}, if the script parses TrainingArguments"
            yield no_cpu.finding(unsure, severity=Severity.WARNING)
    attention = launch.argument("--attn_implementation") or ""
    if attention.startswith("flash_attention"):
        text = f"--attn_implementation {attention} needs CUDA: CPUs have sdpa"
        edits = _value(launch, "--attn_implementation", attention, "sdpa")
        yield no_cpu.finding(launch.at(text), edits=edits)
    for name in ("--backend", "--dist_backend", "--dist-backend"):
        if launch.argument(name) == "nccl" and launch.reader_of(name) != "trainer":
            text = f"{name} nccl: NCCL is for GPUs, if the script passes it to torch.distributed"
            edits = _value(launch, name, "nccl", "gloo")
            yield no_cpu.finding(launch.at(text), severity=Severity.WARNING, edits=edits)
            break
    backend = launch.backend or ""
    torch = launch.facts.package("torch")
    cpu_build = torch is None or torch.build in (None, "cpu") or launch.facts.accelerators == ()
    of_trainer = launch.may_be_trainers("--ddp_backend")
    if backend in ("nccl", "mpi") and cpu_build and of_trainer:
        lacks = "torch's wheels are built without MPI"
        if backend == "nccl":
            lacks = "NCCL is for GPUs"
        text = f"--ddp_backend {backend}: {lacks}; write gloo"
        edits = _value(launch, "--ddp_backend", backend, "gloo")
        severity = None
        if backend != "nccl":
            severity = Severity.WARNING
        yield no_cpu.finding(launch.at(text), severity=severity, edits=edits)


def _optimizer(launch: JudgedLaunch) -> Iterator[Finding]:
    name = launch.argument("--optim") or ""
    if name and not launch.may_be_trainers("--optim"):
        return
    parts = name.split("_")
    torch = launch.context.versions.torch
    if "fused" in parts and torch is not None and not fuses_on_cpu(torch):
        text = f"--optim {name}: torch {torch} has no fused AdamW for CPUs; write adamw_torch"
        edits = _value(launch, "--optim", name, "adamw_torch")
        yield no_cpu.finding(launch.at(text), edits=edits)
    modules = dict.fromkeys(module for word, module in _OPTIMIZERS.items() if word in parts)
    for module in modules:
        if _is_installed(module, launch.facts) is False:
            text = f"--optim {name} needs {module}, which is not installed"
            if module == "bitsandbytes":
                text += "; write adamw_torch (other moments: another training)"
            evidence = launch.at(text)
            yield lacks_package.finding(evidence, command=f"pip install {module}")
        elif module == "bitsandbytes":
            yield from _old_bnb(name, launch)


def _old_bnb(name: str, launch: JudgedLaunch) -> Iterator[Finding]:
    package = launch.facts.package("bitsandbytes")
    version = None
    if package:
        version = package.version
    if bitsandbytes_steps_on_cpu(version) is False:
        text = f"--optim {name}: bitsandbytes {version} works only on GPUs (on CPUs from 0.50)"
        yield no_cpu.finding(launch.at(text))


def _is_installed(module: str, facts: HostFacts) -> bool | None:
    """Whether a package is installed; None if that is not known, as for a named stack."""
    if facts.package(module) is not None:
        return True
    if facts.packages and not facts.recorded:
        return False
    return None


def _value(launch: JudgedLaunch, name: str, value: str, instead: str) -> tuple[Edit, ...]:
    """The edits that give an argument another value."""
    return launch.edits_by(Places.change_flag, f"{name} {value}", f"{name} {instead}")


CHECKS = checks_of(__name__)
