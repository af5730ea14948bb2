"""Versions that do not fit each other, read from metadata: nothing here is ever imported.

Importing a mismatched package can end the interpreter (IPEX 1.12 to 2.5 calls exit, the
oneCCL bindings abort), and pip does not notice the mismatch, since the wheels of IPEX do
not declare torch.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from functools import partial

from cputune.doctor import variables as env
from cputune.doctor.finding import Check, Finding, Severity, check, checks_of, fault
from cputune.facts import HostFacts
from cputune.stack import fit, uses
from cputune.stack.requirements import unmet
from cputune.stack.tables import DISTRIBUTIONS, Versions, load, parse, short_name, versions_of
from cputune.stack.ways import both_ways, way_out


def misfit(
    code: str,
    severity: Severity,
    told: Callable[[Versions], str | None],
    cure: Callable[[Versions], tuple[str, str | None]] = both_ways,
) -> Callable[[Callable[[], None]], Check]:
    """A check of a docstring alone: what is wrong with these versions, and the versions that fit.

    ``told`` says what is wrong in words, or None; ``cure`` gives remedy and command.
    """

    def find(one: Check, facts: HostFacts) -> Iterator[Finding]:
        versions = versions_of(facts)
        if (said := told(versions)) is not None:
            remedy, command = cure(versions)
            yield one.finding(said, remedy=remedy, command=command)

    return fault(code, severity, find)


def _ipex_torch(versions: Versions) -> str | None:
    return fit.ipex_torch(versions) if load().ipex_for(versions.torch) else None


def _ipex_ended(versions: Versions) -> str | None:
    said, last = fit.ipex_torch(versions), load().ipex[-1].version
    end = f"; the last IPEX for CPUs is {last}, for torch {last.major}.{last.minor}"
    return said + end if said and not load().ipex_for(versions.torch) else None


def _ipex_ignored(versions: Versions) -> str | None:
    trainer, own = uses.ipex_use(versions), uses.ipex_use(versions, framework="accelerate")
    if own.state != "ignored" or trainer.possible:
        return None
    return trainer.reason if trainer.state == "ignored" else own.reason


def _oneccl_unused(versions: Versions) -> str | None:
    refused = uses.ccl_refusals(versions)
    if versions.oneccl is None or not refused:
        return None
    if uses.ccl_use(versions, framework="accelerate") is None:
        refused = (*refused, "scripts with an Accelerator of their own can")
    return "; ".join(refused)


def _remove(name: str, versions: Versions) -> tuple[str, str]:
    """Remove a package that nothing uses; the versions that use it are named in words."""
    way = way_out("ipex", versions)
    stay = way.command() if way else None
    said = f" Or, to use it, take the versions of the IPEX era: {stay}." if stay else ""
    return f"Remove it: training stays as it is.{said}", f"pip uninstall -y {DISTRIBUTIONS[name]}"


@check("package-version-unknown", Severity.WARNING)
def package_version_unknown(facts: HostFacts) -> Iterator[Finding]:
    """A package of the training stack is installed without a version

    Symptom: ``importlib.metadata.version`` gives None, and programs that compare it fail.

    Cause: an installation that was interrupted, or a METADATA file without a version.
    Nothing can be said about what this package fits.

    Remedy: Install it again: its metadata is damaged.

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


@misfit("ipex-torch-mismatch", Severity.ERROR, _ipex_torch)
def ipex_torch_mismatch() -> None:
    """IPEX was built for another torch

    Symptom: ``undefined symbol: …autograd4Node4name…``, or the interpreter just ends.

    Cause: intel_extension_for_pytorch x.y works with torch x.y alone. Its wheels do not
    declare torch, so that ``pip install -U torch`` swaps torch without a message. Importing
    the pair prints an ERROR and then exits with 127 (1.12 to 2.5) or fails with an
    AttributeError (2.6 to 2.8).

    Remedy: Install the pair that fits.

    Source: intel/intel-extension-for-pytorch#811, intel/intel-extension-for-pytorch#313,
    intel/intel-extension-for-pytorch#317, intel/intel-extension-for-pytorch#778
    """


@misfit("ipex-ended", Severity.ERROR, _ipex_ended)
def ipex_ended() -> None:
    """There is no IPEX for this torch

    Symptom: "No matching distribution found for intel_extension_for_pytorch".

    Cause: IPEX 2.8.0 is the last release for CPUs; the project was archived on
    2026-03-30. From torch 2.9 on stock torch is the successor, with nothing to install.
    An older IPEX beside it fails at import.

    Remedy: Remove IPEX: torch itself runs bf16 and AMX through oneDNN.

    Source: intel/intel-extension-for-pytorch#867, intel/intel-extension-for-pytorch#871
    """


@misfit("oneccl-torch-mismatch", Severity.ERROR, fit.oneccl_torch)
def oneccl_torch_mismatch() -> None:
    """The oneCCL bindings were built for another torch

    Symptom: an abort or an undefined symbol at ``import oneccl_bindings_for_pytorch``.

    Cause: oneccl_bind_pt carries the version of the one torch it was linked against.
    1.12.0 works with torch 1.12.0 alone, torch 1.12.1 needs 1.12.100. The module is
    called ``torch_ccl`` before 1.12.0 and ``oneccl_bindings_for_pytorch`` after.

    Remedy: Install the bindings of this torch, or remove them and use gloo.

    Source: intel/torch-ccl#59, intel/torch-ccl#53, intel/torch-ccl#16
    """


@check("transformers-torch", Severity.ERROR)
def transformers_torch(facts: HostFacts) -> Iterator[Finding]:
    """transformers needs another torch

    Symptom: "Disabling PyTorch because PyTorch >= … is required", then "requires PyTorch".

    Cause: transformers looks at the version of torch when it is imported (from 4.52 on)
    and behaves as if there were none when it is too old. Earlier releases declare a
    minimum for ``transformers[torch]`` only, and fail later.

    Remedy: Install versions that fit each other.

    Source: https://pypi.org/project/transformers/
    """
    versions = versions_of(facts)
    refused = fit.transformers_torch(versions)
    said = refused or fit.declared(versions, "transformers", "torch")
    if said is not None:
        remedy, command = both_ways(versions)
        severity = None if refused else Severity.WARNING
        yield transformers_torch.finding(said, severity=severity, remedy=remedy, command=command)


@misfit(
    "transformers-accelerate",
    Severity.ERROR,
    lambda v: fit.declared(v, "transformers", "accelerate"),
)
def transformers_accelerate() -> None:
    """Trainer needs another accelerate

    Symptom: "Using the `Trainer` with `PyTorch` requires `accelerate>=…`".

    Cause: since 4.29 Trainer stands on accelerate, and refuses one that is older than its
    minimum, which rises with almost every release.

    Remedy: Install an accelerate that this Trainer takes.

    Source: https://pypi.org/project/transformers/
    """


@misfit("trainer-arguments", Severity.WARNING, fit.trainer_arguments)
def trainer_arguments() -> None:
    """Scripts cannot parse TrainingArguments with this pair

    Symptom: "NameError: name 'ParallelismConfig' is not defined" and "Type resolution
    failed for TrainingArguments" from run_qa.py and every other script with HfArgumentParser.

    Cause: transformers 4.56 annotates a field with a type of accelerate 1.10.1, and does
    without it only where TrainingArguments is built directly.

    Remedy: Take another transformers or accelerate.

    Source: huggingface/transformers#40818, huggingface/trl#4098
    """


@misfit("pair-does-not-train", Severity.ERROR, fit.trainer_calls)
def pair_does_not_train() -> None:
    """transformers and accelerate do not train together

    Symptom: a TypeError or an ImportError as training begins, evaluates or saves:
    "unwrap_model() got an unexpected keyword argument 'keep_torch_compile'",
    "unexpected keyword argument 'dispatch_batches'".

    Cause: Trainer calls accelerate in ways that the metadata of both allow and that this
    accelerate does not know, or no longer.

    Remedy: Take another transformers or accelerate.

    Source: huggingface/transformers#34699
    """


@check("requirement-unmet", Severity.ERROR)
def requirement_unmet(facts: HostFacts) -> Iterator[Finding]:
    """An installed package requires another version of a package

    Symptom: "ImportError: tokenizers>=… is required for a normal functioning of this module",
    "undefined symbol" out of torchvision, or an AttributeError deep inside a library.

    Cause: ``pip install`` of one package, ``--no-deps`` or a second package manager changed a
    package that others declare a range for (``Requires-Dist``). transformers looks at
    tokenizers, huggingface_hub, safetensors and numpy itself when it is imported.

    Remedy: Install a version that all of them take.

    Source: https://packaging.python.org/en/latest/specifications/core-metadata/#requires-dist
    """
    for broken in unmet(facts):
        command = f"pip install {shlex.quote(broken.wanted)}"
        yield requirement_unmet.finding(broken.said, command=command)


@misfit("accelerate-torch", Severity.ERROR, lambda v: fit.declared(v, "accelerate", "torch"))
def accelerate_torch() -> None:
    """accelerate needs a newer torch

    Symptom: an ImportError or AttributeError out of accelerate or torch at import.

    Cause: accelerate declares a minimum of torch (2.0 from 1.3 on); an installation with
    ``--no-deps``, or by two package managers, gets around it.

    Remedy: Install versions that fit each other.

    Source: https://pypi.org/project/accelerate/
    """


@check("numpy-too-new", Severity.ERROR)
def numpy_too_new(facts: HostFacts) -> Iterator[Finding]:
    """numpy 2 beside a package that needs numpy 1

    Symptom: "A module that was compiled using NumPy 1.x cannot be run in NumPy 2", and
    then "RuntimeError: Numpy is not available".

    Cause: torch before 2.3 was compiled against the binary interface of numpy 1.
    transformers 4.42 and accelerate 0.32 to 0.33 declare numpy below 2 as well.

    Remedy: Hold numpy below 2, or take torch 2.3 or later.

    Source: pytorch/pytorch#107302
    """
    versions = versions_of(facts)
    said = fit.numpy_torch(versions)
    severity = Severity.ERROR if said else Severity.WARNING
    said = said or fit.numpy_libraries(versions)
    if said is not None:
        yield numpy_too_new.finding(said, severity=severity, command="pip install 'numpy<2'")


@check("torch-missing", Severity.WARNING)
def torch_missing(facts: HostFacts) -> Iterator[Finding]:
    """There is no torch

    Symptom: "None of PyTorch, TensorFlow >= 2.0, or Flax have been found".

    Cause: transformers, accelerate, IPEX and the oneCCL bindings install without torch. Or
    the doctor stands in another environment than the one that trains (pipx, conda).

    Remedy: Install torch; from this page it comes without the CUDA libraries.

    Source: https://pytorch.org/get-started/locally/
    """
    if not env.lacks_torch(facts):
        return
    stack = [p.name for p in facts.packages if short_name(p.name) not in (None, "numpy")]
    elsewhere = "Install torch here, or name the Python that trains: cputune doctor --python PATH"
    yield torch_missing.finding(
        f"{', '.join(stack)} without torch" if stack else f"Python {facts.python} has no torch",
        severity=Severity.ERROR if stack else None,
        remedy=None if stack else elsewhere,
        command=f"pip install torch --index-url {load().wheels['torch_cpu']}" if stack else None,
    )


@check("accelerate-missing", Severity.ERROR)
def accelerate_missing(facts: HostFacts) -> Iterator[Finding]:
    """Trainer needs accelerate, and there is none

    Symptom: "Using the `Trainer` with `PyTorch` requires `accelerate>=…`".

    Cause: Trainer stands on accelerate since transformers 4.29, and ``pip install
    transformers`` alone does not bring it.

    Remedy: Install it; pip install 'transformers[torch]' would have brought it.

    Source: https://pypi.org/project/transformers/
    """
    version = versions_of(facts).transformers
    if version is None or facts.package("accelerate") is not None:
        return
    needs = load().transformers.needs_of(version)
    if needs and load().transformers.does("accelerate-starts-ranks", version):
        yield accelerate_missing.finding(
            f"transformers {version} needs accelerate {needs.accelerate}",
            command=f"pip install 'accelerate{needs.accelerate}'",
        )


@misfit("ipex-ignored", Severity.WARNING, _ipex_ignored, partial(_remove, "ipex"))
def ipex_ignored() -> None:
    """IPEX is installed, and nothing calls it

    Symptom: IPEX is installed and fits, and training is as fast as without it.

    Cause: Trainer called ``ipex.optimize`` itself in transformers 4.20 to 4.52; after
    that only accelerate could, and 1.8 to 1.12 do it with torch below 2.7 only, 1.13
    and later never.

    Remedy: Take the accelerate of the IPEX era, or remove IPEX.

    Source: huggingface/transformers#40784, huggingface/accelerate#3883
    """


@misfit("oneccl-unused", Severity.WARNING, _oneccl_unused, partial(_remove, "oneccl"))
def oneccl_unused() -> None:
    """The oneCCL bindings are installed, and Trainer cannot use them

    Symptom: ``--ddp_backend ccl`` is refused, or the ranks speak gloo.

    Cause: accelerate 1.13 dropped the ccl backend, transformers 5.1 the word. The
    bindings were deprecated in November 2025; their last release is 2.8.0.

    Remedy: Use gloo, or take the versions that know ccl: transformers 4.22 to 5.0, accelerate up
    to 1.12.

    Source: huggingface/accelerate#3883
    """


@check("stack-variable-ignored", Severity.WARNING)
def stack_variable_ignored(facts: HostFacts) -> Iterator[Finding]:
    """A variable is set that the installed versions do not read

    Symptom: ``ACCELERATE_USE_IPEX=true`` or ``CCL_WORKER_COUNT=1`` changes nothing.

    Cause: accelerate 1.13 and later know neither.

    Remedy: Unset it: it has no effect.

    Source: huggingface/accelerate#3883
    """
    for word in uses.vocabulary(versions_of(facts)):
        asked = env.is_true(facts, word.spelling) or env.number(facts, word.spelling)
        if asked and word.state is uses.Fate.IGNORED:
            why = f"; {word.reader} does not read it"
            yield env.unset(stack_variable_ignored, facts, word.spelling, why)


@check("ipex-unasked", Severity.ADVICE)
def ipex_unasked(facts: HostFacts) -> Iterator[Finding]:
    """accelerate uses IPEX whether it is asked to or not

    Symptom: the run uses IPEX although ``use_ipex=False``.

    Cause: accelerate 0.20 to 1.7 (1.8 to 1.12 with torch below 2.7) takes
    ``ACCELERATE_USE_IPEX`` for true where it is not set, and calls ``ipex.optimize``
    wherever IPEX can be imported. In a YAML: ``ipex_config: {ipex: false}``. Trainer stands
    on accelerate from transformers 4.30 on; in 4.32 to 4.57 TrainingArguments sets the
    variable to false, so that only scripts with an Accelerator of their own are left.

    Remedy: Switch it off where a run without IPEX is wanted, in the environment or the YAML.

    Source: huggingface/transformers#24871
    """
    versions = versions_of(facts)
    unasked = uses.ipex_use(versions, framework="accelerate").state == "used unasked"
    if not unasked or env.value(facts, uses.IPEX_VARIABLE):
        return
    every = uses.ipex_use(versions).state in ("used unasked", "unknown")
    whose = "in every script" if every else "in scripts with an Accelerator, not in Trainer's"
    yield ipex_unasked.finding(
        f"accelerate {versions.accelerate}, intel_extension_for_pytorch {versions.ipex}, "
        f"ACCELERATE_USE_IPEX is not set: {whose}",
        command="export ACCELERATE_USE_IPEX=false",
    )


@check("oneccl-setvars", Severity.WARNING)
def oneccl_setvars(facts: HostFacts) -> Iterator[Finding]:
    """The environment of the oneCCL bindings was not sourced

    Symptom: ``libccl.so.1: cannot open shared object file``.

    Cause: the bindings bring oneCCL and Intel MPI inside their wheel; their
    ``env/setvars.sh`` puts both on LD_LIBRARY_PATH and PATH and sets CCL_ROOT.

    Remedy: Source setvars.sh in every shell that starts ranks: that of the bindings, or of an
    oneCCL of its own where they bring none.

    Source: intel/torch-ccl#43
    """
    package, version = facts.package("oneccl_bind_pt"), versions_of(facts).oneccl
    if package is None or version is None or facts.recorded:
        return
    searched = (env.value(facts, "LD_LIBRARY_PATH") or "").split(":")
    found = [lib.path.rpartition("/")[0] for lib in facts.libraries if lib.name == "libccl"]
    if set(found) & set(searched):
        return
    brought = f"{package.location or '.'}/{uses.oneccl_module(versions_of(facts))}"
    own = any(folder.startswith(brought) for folder in found)
    yield oneccl_setvars.finding(
        "no directory of LD_LIBRARY_PATH holds libccl.so",
        command=f". '{brought}/env/setvars.sh'" if own else None,
    )


@check("torch-cuda-build", Severity.ADVICE)
def torch_cuda_build(facts: HostFacts) -> Iterator[Finding]:
    """A CUDA build of torch on a machine without a GPU

    Symptom: an image of seven gigabytes and a slow first import.

    Cause: on Linux x86-64 PyPI's torch is the CUDA build and brings the NVIDIA libraries.

    Remedy: Install the CPU build: several gigabytes less to store and to load.

    Source: https://pytorch.org/get-started/locally/
    """
    torch = facts.package("torch")
    version = parse(torch.version) if torch else None
    if torch is None or version is None or facts.accelerators != ():
        return
    names = [package.name for package in facts.packages]
    brought = [name for name in names if name.startswith("nvidia-") or name == "triton"]
    build = torch.build or version.local or ""
    if brought or build.startswith("cu"):
        uninstall = " ".join(["pip uninstall -y torch", *brought])
        page = load().wheels["torch_cpu"]
        yield torch_cuda_build.finding(
            f"torch {torch.version}, built for {build or 'CUDA'}, no GPU",
            command=f"{uninstall} && pip install torch=={version.public} --index-url {page}",
        )


INSTALLED: tuple[Check, ...] = (torch_missing, accelerate_missing, torch_cuda_build)
"""What only an installation can have: a stack that is merely named is spared them."""

CHECKS = checks_of(__name__)
"""Most versions are wrong in several ways at once; what ends the interpreter comes first."""
