"""Versions of packages that do not fit each other, read from metadata.

Importing a mismatched package can end the interpreter: IPEX 1.12 to 2.5 calls exit, and the oneCCL
bindings abort. pip does not notice, because IPEX's wheels do not declare torch.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from functools import partial

from cputune.doctor import variables as env
from cputune.doctor.finding import Check, Finding, Severity, check, checks_of, fault
from cputune.host.facts import HostFacts
from cputune.stack import fit, uses
from cputune.stack.tables import DISTRIBUTIONS, Versions, load, parse, short_name, versions_of
from cputune.stack.version_changes import (
    advised_changes,
    newest_fitting,
    smallest_change,
    version_change,
)


def misfit(
    code: str,
    severity: Severity,
    wrong: Callable[[Versions], str | None],
    remedy_of: Callable[[Versions], tuple[str | None, str | None]] = advised_changes,
) -> Callable[[Callable[[], None]], Check]:
    """A check of versions alone; the decorated function only carries the docstring."""

    def find(described: Check, facts: HostFacts) -> Iterator[Finding]:
        versions = versions_of(facts)
        if (evidence := wrong(versions)) is not None:
            remedy, command = remedy_of(versions)
            yield described.finding(evidence, remedy=remedy, command=command)

    return fault(code, severity, find)


def _ipex_torch(versions: Versions) -> str | None:
    if load().ipex_for(versions.torch):
        return fit.ipex_torch(versions)
    return None


def _ipex_ended(versions: Versions) -> str | None:
    misfit_text, last = fit.ipex_torch(versions), load().ipex[-1].version
    end = f"; the last IPEX for CPUs is {last}, for torch {last.major}.{last.minor}"
    if misfit_text and not load().ipex_for(versions.torch):
        return misfit_text + end
    return None


def _ipex_ignored(versions: Versions) -> str | None:
    trainer, accelerate = uses.ipex_use(versions), uses.ipex_use(versions, framework="accelerate")
    if accelerate.state != "ignored" or trainer.possible:
        return None
    if trainer.state == "ignored":
        return trainer.reason
    return accelerate.reason


# The day on which IPEX's repository was archived; its oneCCL bindings ended with it.
_ENDED = "2026-03-30"
_INSTEAD = (
    "torch itself runs bf16 on AMX and AVX-512 (--bf16 --use_cpu), torch.compile compiles graphs, "
    "cputune run, or python -m torch.backends.xeon.run_cpu, replaces ipexrun, and gloo or "
    "MPI replaces ccl"
)


def _archived(name: str, versions: Versions) -> str | None:
    """Evidence that a package which fits and is used had its last release, or None."""
    package = versions.get(name)
    trainer, accelerate = uses.ipex_use(versions), uses.ipex_use(versions, framework="accelerate")
    used = trainer.possible or accelerate.possible
    if name == "oneccl":
        used = not uses.ccl_refusals(versions)
    if package is None or versions.torch is None or not used or fit.misfits(versions):
        return None
    last = load().ipex[-1].version
    return (
        f"{DISTRIBUTIONS[name]} {package} fits torch {versions.torch} and is used; {last} is the "
        f"last release, archived on {_ENDED}: no torch after {last.major}.{last.minor} has one"
    )


def _stay_or_leave(name: str, versions: Versions) -> tuple[str, str | None]:
    """How to keep such a package, and what replaces each use."""
    kept = ("torch", "ipex", "oneccl", "transformers", "accelerate")
    pins = (f"{DISTRIBUTIONS[n]}=={v.public}" for n in kept if (v := versions.get(n)) is not None)
    stay = f"Stay: pin what fits together ({', '.join(pins)}), without further fixes"
    change = version_change("today", versions)
    leave = ""
    if change is not None:
        leave = f" ({change.command()})"
    # No command: which of both is right is your decision, and other findings keep these versions.
    return f"{stay}. Or leave{leave}: {_INSTEAD}.", None


def _both_and_instead(versions: Versions) -> tuple[str, str | None]:
    """The versions that fit, and what replaces each use of what has ended."""
    remedy, command = advised_changes(versions)
    return f"{remedy or ''} Without it: {_INSTEAD}.".strip(), command


def _oneccl_unused(versions: Versions) -> str | None:
    refused = uses.ccl_refusals(versions)
    if versions.oneccl is None or not refused:
        return None
    if uses.ccl_use(versions, framework="accelerate") is None:
        refused = refused + ("scripts with an Accelerator can",)
    return "; ".join(refused)


def _remove(name: str, versions: Versions) -> tuple[str, str]:
    """Remedy for a package that nothing uses: remove it, or install versions that use it."""
    change = version_change("ipex", versions)
    stay = None
    if change:
        stay = change.command()
    alternative = ""
    if stay:
        alternative = f" Or, to use it, install the versions of the IPEX era: {stay}."
    command = f"pip uninstall -y {DISTRIBUTIONS[name]}"
    smallest = smallest_change(versions)
    if smallest is not None and (name, None) in smallest.changes:
        command = smallest.command() or command
    return f"Remove it: training does not change, {_INSTEAD}.{alternative}", command


@check("package-version-unknown", Severity.WARNING)
def package_version_unknown(facts: HostFacts) -> Iterator[Finding]:
    """A package of the training stack is installed without a version

    Symptom: ``importlib.metadata.version`` returns None, and programs that compare it fail.

    Cause: pip was interrupted, or the METADATA file has no version. The doctor cannot compare such
    a package with others.

    Remedy: Install the package again: its metadata is damaged.

    Source: https://packaging.python.org/en/latest/specifications/core-metadata/
    """
    for package in facts.packages:
        name = short_name(package.name)
        if name is not None and parse(package.version) is None:
            yield package_version_unknown.finding(
                f"{package.name} in {package.location} has the version "
                f"{package.version or '(none)'}",
                command=f"pip install --force-reinstall --no-deps {DISTRIBUTIONS[name]}",
            )


@misfit("ipex-torch-mismatch", Severity.ERROR, _ipex_torch, _both_and_instead)
def ipex_torch_mismatch() -> None:
    """IPEX was built for another torch

    Symptom: ``undefined symbol: …autograd4Node4name…``, or Python ends without a traceback.

    Cause: intel_extension_for_pytorch x.y works only with torch x.y. Its wheels do not declare
    torch, so ``pip install -U torch`` breaks the pair. Importing it exits with 127 (1.12 to 2.5) or
    raises AttributeError (2.6 to 2.8).

    Remedy: Install the pair that fits.

    Source: intel/intel-extension-for-pytorch#811, intel/intel-extension-for-pytorch#313,
    intel/intel-extension-for-pytorch#317, intel/intel-extension-for-pytorch#778
    """


@misfit("ipex-ended", Severity.ERROR, _ipex_ended, _both_and_instead)
def ipex_ended() -> None:
    """There is no IPEX for this torch

    Symptom: "No matching distribution found for intel_extension_for_pytorch".

    Cause: IPEX 2.8.0 is the last release for CPUs; the project was archived on 2026-03-30. From
    torch 2.9 on stock torch replaces it. An older IPEX fails at import.

    Remedy: Remove IPEX: torch itself runs bf16 and AMX through oneDNN.

    Source: intel/intel-extension-for-pytorch#867, intel/intel-extension-for-pytorch#871
    """


@misfit("oneccl-torch-mismatch", Severity.ERROR, fit.oneccl_torch, _both_and_instead)
def oneccl_torch_mismatch() -> None:
    """The oneCCL bindings were built for another torch

    Symptom: an abort or an undefined symbol at ``import oneccl_bindings_for_pytorch``.

    Cause: oneccl_bind_pt has the version of the torch that it was linked with: 1.12.0 for torch
    1.12.0, 1.12.100 for 1.12.1. The module is ``torch_ccl`` before 1.12.0, then
    ``oneccl_bindings_for_pytorch``.

    Remedy: Install the bindings for this torch, or remove them and use gloo.

    Source: intel/torch-ccl#59, intel/torch-ccl#53, intel/torch-ccl#16
    """


@check("transformers-torch", Severity.ERROR)
def transformers_torch(facts: HostFacts) -> Iterator[Finding]:
    """transformers needs another version of torch

    Symptom: "Disabling PyTorch because PyTorch >= … is required", then "requires PyTorch".

    Cause: transformers 4.52 and later act as if an older torch were not installed. Earlier releases
    declare a minimum only for ``transformers[torch]``, and fail later.

    Remedy: Install versions that fit each other.

    Source: https://pypi.org/project/transformers/
    """
    versions = versions_of(facts)
    refused = fit.transformers_torch(versions)
    evidence = refused or fit.declared(versions, "transformers", "torch")
    if evidence is not None:
        remedy, command = advised_changes(versions)
        severity = None
        if not refused:
            severity = Severity.WARNING
        yield transformers_torch.finding(
            evidence, severity=severity, remedy=remedy, command=command
        )


@misfit(
    "transformers-accelerate",
    Severity.ERROR,
    lambda v: fit.declared(v, "transformers", "accelerate"),
)
def transformers_accelerate() -> None:
    """Trainer needs another version of accelerate

    Symptom: "Using the `Trainer` with `PyTorch` requires `accelerate>=…`".

    Cause: since 4.29 Trainer uses accelerate, and refuses one below its minimum, which rises with
    almost every release.

    Remedy: Install an accelerate that this Trainer accepts.

    Source: https://pypi.org/project/transformers/
    """


@misfit("trainer-arguments", Severity.WARNING, fit.trainer_arguments)
def trainer_arguments() -> None:
    """Scripts cannot parse TrainingArguments with this pair

    Symptom: "NameError: name 'ParallelismConfig' is not defined" and "Type resolution failed for
    TrainingArguments" from run_qa.py and every other script with HfArgumentParser.

    Cause: transformers 4.56 annotates a field with a type that accelerate has from 1.10.1 on.
    Scripts that build TrainingArguments themselves work.

    Remedy: Install another version of transformers or accelerate.

    Source: huggingface/transformers#40818, huggingface/trl#4098
    """


@misfit("pair-does-not-train", Severity.ERROR, fit.trainer_calls)
def pair_does_not_train() -> None:
    """These versions of transformers and accelerate do not train together

    Symptom: a TypeError or an ImportError as training begins, evaluates or saves: "unwrap_model()
    got an unexpected keyword argument 'keep_torch_compile'", "unexpected keyword argument
    'dispatch_batches'".

    Cause: Trainer calls functions that this accelerate does not have, although the metadata allow
    the pair.

    Remedy: Install another version of transformers or accelerate.

    Source: huggingface/transformers#34699
    """


@misfit("import-gone", Severity.ERROR, fit.imported_names)
def import_gone() -> None:
    """A package imports a name that another one no longer has

    Symptom: "cannot import name 'HfFolder' from 'huggingface_hub'", "cannot import name
    'HybridCache' from 'transformers'", when Trainer or the package is imported.

    Cause: the metadata of the older package allow the newer one, which has removed the name.
    Trainer imports datasets and peft if they are installed, also if the script does not use them.

    Remedy: Upgrade the package that imports the name.

    Source: https://huggingface.co/docs/huggingface_hub/concepts/migration
    """


@misfit("pair-import", Severity.ERROR, lambda v: fit.conflicts(v, trains=False))
def pair_import() -> None:
    """These releases cannot be imported together

    Symptom: "Failed to import trl.trainer.sft_trainer", "No module named 'mergekit'".

    Cause: the metadata of the older package allow the newer one, whose helpers return something
    else. It was found by importing both.

    Remedy: Upgrade the older package.

    Source: https://github.com/huggingface/trl/releases
    """


def _newer_transformers(versions: Versions) -> tuple[str | None, str | None]:
    return None, "pip install -U transformers accelerate"


@misfit(
    "resume-fails", Severity.WARNING, lambda v: fit.conflicts(v, trains=True), _newer_transformers
)
def resume_fails() -> None:
    """This pair trains, and cannot resume

    Symptom: "Weights only load failed" with --resume_from_checkpoint.

    Cause: torch.load has weights_only=True from torch 2.6 on, and these releases of transformers
    save what it refuses.

    Remedy: Upgrade transformers to 4.47 or later, or use torch before 2.6.

    Source: huggingface/transformers#34631
    """


@misfit("accelerate-torch", Severity.ERROR, lambda v: fit.declared(v, "accelerate", "torch"))
def accelerate_torch() -> None:
    """accelerate needs a newer torch

    Symptom: an ImportError or AttributeError in accelerate or torch at import.

    Cause: accelerate declares a minimum version of torch (2.0 from accelerate 1.3 on).
    ``--no-deps`` or a second package manager ignores it.

    Remedy: Install versions that fit each other.

    Source: https://pypi.org/project/accelerate/
    """


@check("numpy-too-new", Severity.ERROR)
def numpy_too_new(facts: HostFacts) -> Iterator[Finding]:
    """numpy 2 is installed with a package that needs numpy 1

    Symptom: "A module that was compiled using NumPy 1.x cannot be run in NumPy 2", and then
    "RuntimeError: Numpy is not available".

    Cause: torch before 2.3 was compiled for numpy 1. transformers 4.42 and accelerate 0.32 to 0.33
    declare numpy below 2.

    Remedy: Install a numpy below 2, or torch 2.3 or later.

    Source: pytorch/pytorch#107302
    """
    versions = versions_of(facts)
    evidence = fit.numpy_torch(versions)
    if evidence:
        severity = Severity.ERROR
    else:
        severity = Severity.WARNING
    evidence = evidence or fit.numpy_libraries(versions)
    if evidence is not None:
        remedy, command = advised_changes(versions)
        yield numpy_too_new.finding(evidence, severity=severity, remedy=remedy, command=command)


@check("torch-missing", Severity.WARNING)
def torch_missing(facts: HostFacts) -> Iterator[Finding]:
    """torch is not installed

    Symptom: "None of PyTorch, TensorFlow >= 2.0, or Flax have been found".

    Cause: transformers, accelerate, IPEX and the oneCCL bindings install without torch. Or the
    doctor runs in another environment than the training (pipx, conda).

    Remedy: Install torch; the build on this page has no CUDA libraries.

    Source: https://pytorch.org/get-started/locally/
    """
    if not env.lacks_torch(facts):
        return
    stack = []
    for p in facts.packages:
        if short_name(p.name) not in (None, "numpy"):
            stack.append(p.name)
    page = load().wheels["torch_cpu"]
    elsewhere = "Install torch here, or name the Python that trains: cputune doctor --python PATH"
    yield torch_missing.finding(
        f"{', '.join(stack)} without torch" if stack else f"Python {facts.python} has no torch",
        severity=Severity.ERROR if stack else None,
        remedy=None if stack else elsewhere,
        command=f"pip install {_torch_for(facts)} --index-url {page}" if stack else None,
    )


def _torch_for(facts: HostFacts) -> str:
    """``torch`` if the newest release fits the installed packages; else the newest that does."""
    versions = versions_of(facts)
    newest = versions.changed(torch=load().torch[-1].version)
    fitting = newest_fitting("torch", versions)
    if fitting is None or set(fit.misfits(newest)) <= set(fit.misfits(versions)):
        return "torch"
    return f"torch=={fitting}"


@check("accelerate-missing", Severity.ERROR)
def accelerate_missing(facts: HostFacts) -> Iterator[Finding]:
    """Trainer needs accelerate, which is not installed

    Symptom: "Using the `Trainer` with `PyTorch` requires `accelerate>=…`".

    Cause: Trainer uses accelerate since transformers 4.29, and ``pip install transformers`` does
    not install it.

    Remedy: Install accelerate, or transformers[torch].

    Source: https://pypi.org/project/transformers/
    """
    version = versions_of(facts).transformers
    if version is None or facts.package("accelerate") is not None:
        return
    needs = load().transformers.needs_of(version)
    if needs and load().transformers.does("accelerate-starts-ranks", version):
        yield accelerate_missing.finding(
            f"transformers {version} needs accelerate {needs.accelerate}",
            command=f"pip install {_accelerate_for(facts, needs.accelerate)}",
        )


def _accelerate_for(facts: HostFacts, needed: str) -> str:
    """The newest accelerate that fits the installed packages, as a requirement."""
    fitting = newest_fitting("accelerate", versions_of(facts))
    if fitting is None:
        return f"'accelerate{needed}'"
    return f"accelerate=={fitting}"


@misfit("ipex-ignored", Severity.WARNING, _ipex_ignored, partial(_remove, "ipex"))
def ipex_ignored() -> None:
    """IPEX is installed, but nothing calls it

    Symptom: IPEX fits torch, but training is as fast as without it.

    Cause: Trainer called ``ipex.optimize`` in transformers 4.20 to 4.52. Later it is left to
    accelerate: 1.8 to 1.12 call it only with torch below 2.7, 1.13 and later never.

    Remedy: Remove IPEX, or install an accelerate that calls it.

    Source: huggingface/transformers#40784, huggingface/accelerate#3883
    """


@misfit("oneccl-unused", Severity.WARNING, _oneccl_unused, partial(_remove, "oneccl"))
def oneccl_unused() -> None:
    """The oneCCL bindings are installed, but Trainer cannot use them

    Symptom: ``--ddp_backend ccl`` is refused, or the ranks use gloo.

    Cause: accelerate 1.13 removed the ccl backend, transformers 5.1 --ddp_backend ccl. The bindings
    were deprecated in November 2025; their last release is 2.8.0.

    Remedy: Use gloo, or versions that know ccl: transformers 4.22 to 5.0, accelerate up to 1.12.

    Source: huggingface/accelerate#3883
    """


@misfit(
    "ipex-archived",
    Severity.ADVICE,
    partial(_archived, "ipex"),
    partial(_stay_or_leave, "ipex"),
)
def ipex_archived() -> None:
    """IPEX works here, but had its last release

    Symptom: none now; the next torch, transformers or Python has no IPEX.

    Cause: 2.8 is the last IPEX for CPUs; its repository is archived since 2026-03-30. These work
    together: torch up to 2.8, transformers 4.56, accelerate 1.7 (1.12 with torch below 2.7), Python
    3.9 to 3.13.

    Remedy: Stay and pin these versions, or leave.

    Source: intel/intel-extension-for-pytorch#867, huggingface/transformers#40784
    """


@misfit(
    "oneccl-archived",
    Severity.ADVICE,
    partial(_archived, "oneccl"),
    partial(_stay_or_leave, "oneccl"),
)
def oneccl_archived() -> None:
    """The oneCCL bindings work here, but had their last release

    Symptom: none now; the next torch has no bindings, and the newest accelerate no ccl.

    Cause: 2.8 is their last release, deprecated in November 2025; accelerate knows ccl up to 1.12,
    transformers up to 5.0.

    Remedy: Stay and pin these versions, or leave: gloo or MPI exchange gradients too.

    Source: intel/torch-ccl#48, huggingface/accelerate#3883
    """


@check("stack-variable-ignored", Severity.WARNING)
def stack_variable_ignored(facts: HostFacts) -> Iterator[Finding]:
    """A variable is set that the installed versions do not read

    Symptom: ``ACCELERATE_USE_IPEX=true`` or ``CCL_WORKER_COUNT=1`` changes nothing.

    Cause: accelerate 1.13 and later read neither; transformers reads TRANSFORMERS_CACHE up to 4.57,
    later models are downloaded into another folder.

    Remedy: Unset the variable: it has no effect.

    Source: huggingface/accelerate#3883
    """
    for word in uses.vocabulary(versions_of(facts)):
        is_set = env.is_true(facts, word.spelling) or env.number(facts, word.spelling)
        if is_set and word.state is uses.Fate.IGNORED:
            problem = f"; {word.reader} does not read it"
            yield env.unset(stack_variable_ignored, facts, word.spelling, problem)
    version = versions_of(facts).transformers
    for row in load().transformers.variables:
        text, instead = env.value(facts, row.name), version and row.instead(version)
        if text and version is not None and not row.covers(version):
            if instead:
                read = [f"export {instead}={shlex.quote(text)}"]
            else:
                read = []
            yield stack_variable_ignored.finding(
                f"{row.name}={text}; transformers {version} does not read it",
                remedy=f"Set {instead} instead." if instead else None,
                command="\n".join(read + [f"unset {row.name}"]),
            )


@check("ipex-unasked", Severity.ADVICE, under=("ipex-archived",))
def ipex_unasked(facts: HostFacts) -> Iterator[Finding]:
    """accelerate uses IPEX without being asked to

    Symptom: the run uses IPEX although ``use_ipex=False``.

    Cause: if ``ACCELERATE_USE_IPEX`` is unset, accelerate 0.20 to 1.7 (1.8 to 1.12 with torch below
    2.7) calls ``ipex.optimize``. transformers 4.32 to 4.57 sets it to false in TrainingArguments;
    then only scripts with an Accelerator are concerned.

    Remedy: To run without IPEX, set the variable to false, or ipex_config: {ipex: false} in
    accelerate's YAML.

    Source: huggingface/transformers#24871
    """
    versions = versions_of(facts)
    unasked = uses.ipex_use(versions, framework="accelerate").state == "used unasked"
    if not unasked or env.value(facts, uses.IPEX_VARIABLE):
        return
    every = uses.ipex_use(versions).state in ("used unasked", "unknown")
    whose = "in scripts with an Accelerator, not in Trainer's"
    if every:
        whose = "in every script"
    yield ipex_unasked.finding(
        f"accelerate {versions.accelerate}, intel_extension_for_pytorch {versions.ipex}, "
        f"ACCELERATE_USE_IPEX is not set: {whose}",
        command="export ACCELERATE_USE_IPEX=false",
    )


@check("oneccl-setvars", Severity.WARNING, under=("oneccl-torch-mismatch", "oneccl-unused"))
def oneccl_setvars(facts: HostFacts) -> Iterator[Finding]:
    """setvars.sh of the oneCCL bindings was not sourced

    Symptom: ``libccl.so.1: cannot open shared object file``.

    Cause: the wheel contains oneCCL and Intel MPI. Its ``env/setvars.sh`` adds both to
    LD_LIBRARY_PATH and PATH, and sets CCL_ROOT.

    Remedy: Source setvars.sh in every shell that starts ranks. If the bindings contain no oneCCL,
    install it and source its setvars.sh.

    Source: intel/torch-ccl#43
    """
    package, version = facts.package("oneccl_bind_pt"), versions_of(facts).oneccl
    if package is None or version is None or facts.recorded:
        return
    searched = (env.value(facts, "LD_LIBRARY_PATH") or "").split(":")
    folders = []
    for lib in facts.libraries:
        if lib.name == "libccl":
            folders.append(lib.path.rpartition("/")[0])
    if set(folders) & set(searched):
        return
    brought = f"{package.location or '.'}/{uses.oneccl_module(versions_of(facts))}"
    has_own = any(folder.startswith(brought) for folder in folders)
    yield oneccl_setvars.finding(
        "no directory of LD_LIBRARY_PATH contains libccl.so",
        command=f". '{brought}/env/setvars.sh'" if has_own else None,
    )


@check("torch-cuda-build", Severity.ADVICE)
def torch_cuda_build(facts: HostFacts) -> Iterator[Finding]:
    """A CUDA build of torch on a machine without a GPU

    Symptom: an image of seven gigabytes and a slow first import.

    Cause: on Linux x86-64 PyPI's torch is the CUDA build, with the NVIDIA libraries.

    Remedy: Install the CPU build: it is several gigabytes smaller.

    Source: https://pytorch.org/get-started/locally/
    """
    torch = facts.package("torch")
    version = None
    if torch:
        version = parse(torch.version)
    if torch is None or version is None or facts.accelerators != ():
        return
    brought = []
    for package in facts.packages:
        if package.name.startswith("nvidia-") or package.name == "triton":
            brought.append(package.name)
    build = torch.build or version.local or ""
    if brought or build.startswith("cu"):
        change = smallest_change(versions_of(facts))
        if change is None:
            kept = versions_of(facts)
        else:
            kept = change.result
        names, pins = [], []
        for name in ("torch", "torchvision", "torchaudio"):
            if kept.get(name) is not None:
                names.append(name)
                pins.append(f"{name}=={_public(kept, name)}")
        uninstall = " ".join(["pip uninstall -y", *names, *brought])
        page = load().wheels["torch_cpu"]
        yield torch_cuda_build.finding(
            f"torch {torch.version}, built for {build or 'CUDA'}, no GPU",
            command=f"{uninstall} && pip install {' '.join(pins)} --index-url {page}",
        )


def _public(versions: Versions, name: str) -> str:
    version = versions.get(name)
    if version is None:
        return ""
    return version.public


# Checks of an installation: `cputune doctor --stack`, which names versions, skips them.
INSTALLED: tuple[Check, ...] = (torch_missing, accelerate_missing, torch_cuda_build)

# Versions are often wrong in several ways; checks for what ends the interpreter come first.
CHECKS = checks_of(__name__)
