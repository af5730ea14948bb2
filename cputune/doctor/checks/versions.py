"""Versions that do not fit each other, read from metadata: nothing here is ever imported.

Importing a mismatched package can end the interpreter (IPEX 1.12 to 2.5 calls exit, the
oneCCL bindings abort), and pip does not notice the mismatch, since the wheels of IPEX do
not declare torch.
"""

from __future__ import annotations

from collections.abc import Iterator

from cputune.doctor.checks import eras, installed
from cputune.doctor.finding import Check, Finding, Severity, check
from cputune.facts import HostFacts
from cputune.stack import fit
from cputune.stack.tables import load, satisfies
from cputune.stack.versions import Versions, versions_of
from cputune.stack.ways import both_ways

IPEX_SOURCES = (
    "intel/intel-extension-for-pytorch#811, intel/intel-extension-for-pytorch#313, "
    "intel/intel-extension-for-pytorch#317, intel/intel-extension-for-pytorch#778"
)


@check(
    "ipex-torch-mismatch",
    Severity.ERROR,
    title="IPEX was built for another torch",
    remedy="Install the pair that fits.",
    source=IPEX_SOURCES,
)
def ipex_torch_mismatch(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: ``undefined symbol: …autograd4Node4name…``, or the interpreter just ends.

    Cause: intel_extension_for_pytorch x.y works with torch x.y alone. Its wheels do not
    declare torch, so that ``pip install -U torch`` swaps torch without a message. Importing
    the pair prints an ERROR and then exits with 127 (1.12 to 2.5) or fails with an
    AttributeError (2.6 to 2.8).
    """
    versions = versions_of(facts)
    said = fit.ipex_torch(load(), versions)
    if said is None or (versions.torch is not None and not load().ipex_for(versions.torch)):
        return
    remedy, command = both_ways(versions)
    yield ipex_torch_mismatch.finding(said + _on_import(versions), remedy=remedy, command=command)


@check(
    "ipex-ended",
    Severity.ERROR,
    title="There is no IPEX for this torch",
    remedy="Remove IPEX: torch itself runs bf16 and AMX through oneDNN.",
    source="intel/intel-extension-for-pytorch#867, intel/intel-extension-for-pytorch#871",
)
def ipex_ended(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: "No matching distribution found for intel_extension_for_pytorch".

    Cause: IPEX 2.8.0 is the last release for CPUs; the project was archived on
    2026-03-30. From torch 2.9 on stock torch is the successor, with nothing to install.
    An older IPEX beside it fails at import.
    """
    versions = versions_of(facts)
    if versions.ipex is None or versions.torch is None or load().ipex_for(versions.torch):
        return
    if (versions.ipex.local or "").startswith("xpu"):
        return  # Tags for Intel GPUs went on to 2.10; their torch is another build, too.
    last = load().ipex[-1].version
    evidence = (
        f"intel_extension_for_pytorch {versions.ipex} beside torch {versions.torch}; "
        f"the last IPEX for CPUs is {last}, for torch {last.major}.{last.minor}"
    )
    remedy, command = both_ways(versions)
    yield ipex_ended.finding(evidence + _on_import(versions), remedy=remedy, command=command)


def _on_import(versions: Versions) -> str:
    row = next((row for row in load().ipex if row.version == versions.ipex), None)
    if row is None or row.mismatch == "none":
        return ""
    end = "exits with 127" if row.mismatch == "exit 127" else f"raises {row.mismatch}"
    return f"; importing it prints an ERROR and {end}"


@check(
    "oneccl-torch-mismatch",
    Severity.ERROR,
    title="The oneCCL bindings were built for another torch",
    remedy="Install the bindings of this torch, or remove them and use gloo.",
    source="intel/torch-ccl#59, intel/torch-ccl#53, intel/torch-ccl#16",
)
def oneccl_torch_mismatch(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: an abort or an undefined symbol at ``import oneccl_bindings_for_pytorch``.

    Cause: oneccl_bind_pt carries the version of the one torch it was linked against.
    1.12.0 works with torch 1.12.0 alone, torch 1.12.1 needs 1.12.100. The module is
    called ``torch_ccl`` before 1.12.0 and ``oneccl_bindings_for_pytorch`` after.
    """
    versions = versions_of(facts)
    said = fit.oneccl_torch(load(), versions)
    if said is None or versions.torch is None:
        return
    rows = load().bindings_for(versions.torch)
    fits = f"; oneccl_bind_pt {rows[0].version} fits" if rows else "; no bindings exist for it"
    remedy, command = both_ways(versions)
    yield oneccl_torch_mismatch.finding(said + fits, remedy=remedy, command=command)


@check(
    "transformers-torch",
    Severity.ERROR,
    title="transformers needs another torch",
    remedy="Install versions that fit each other.",
    source="https://pypi.org/project/transformers/",
)
def transformers_torch(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: "Disabling PyTorch because PyTorch >= … is required", then "requires PyTorch".

    Cause: transformers looks at the version of torch when it is imported (from 4.52 on)
    and behaves as if there were none when it is too old. Earlier releases declare a
    minimum for ``transformers[torch]`` only, and fail later.
    """
    versions = versions_of(facts)
    said = fit.transformers_torch(load(), versions)
    if said is None or versions.transformers is None or versions.torch is None:
        return
    needs = load().transformers.needs_of(versions.transformers)
    runs = needs is not None and satisfies(versions.torch, needs.torch_at_run_time)
    remedy, command = both_ways(versions)
    yield transformers_torch.finding(
        said,
        severity=Severity.WARNING if runs else Severity.ERROR,
        remedy=remedy,
        command=command,
    )


@check(
    "transformers-accelerate",
    Severity.ERROR,
    title="Trainer needs another accelerate",
    remedy="Install an accelerate that this Trainer takes.",
    source="https://pypi.org/project/transformers/",
)
def transformers_accelerate(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: "Using the `Trainer` with `PyTorch` requires `accelerate>=…`".

    Cause: since 4.29 Trainer stands on accelerate, and refuses one that is older than its
    minimum, which rises with almost every release.
    """
    versions = versions_of(facts)
    said = fit.transformers_accelerate(load(), versions)
    if said is not None:
        remedy, command = both_ways(versions)
        yield transformers_accelerate.finding(said, remedy=remedy, command=command)


@check(
    "trainer-arguments",
    Severity.WARNING,
    title="Scripts cannot parse TrainingArguments with this pair",
    remedy="Take another transformers or accelerate.",
    source="huggingface/transformers#40818, huggingface/trl#4098",
)
def trainer_arguments(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: "NameError: name 'ParallelismConfig' is not defined" and "Type resolution
    failed for TrainingArguments" from run_qa.py and every other script with HfArgumentParser.

    Cause: transformers 4.56 annotates a field with a type of accelerate 1.10.1, and does
    without it only where TrainingArguments is built directly.
    """
    versions = versions_of(facts)
    said = fit.trainer_arguments(load(), versions)
    if said is not None:
        remedy, command = both_ways(versions)
        yield trainer_arguments.finding(said, remedy=remedy, command=command)


@check(
    "accelerate-torch",
    Severity.ERROR,
    title="accelerate needs a newer torch",
    remedy="Install versions that fit each other.",
    source="https://pypi.org/project/accelerate/",
)
def accelerate_torch(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: an ImportError or AttributeError out of accelerate or torch at import.

    Cause: accelerate declares a minimum of torch (2.0 from 1.3 on); an installation with
    ``--no-deps``, or by two package managers, gets around it.
    """
    versions = versions_of(facts)
    said = fit.accelerate_torch(load(), versions)
    if said is not None:
        remedy, command = both_ways(versions)
        yield accelerate_torch.finding(said, remedy=remedy, command=command)


@check(
    "numpy-too-new",
    Severity.ERROR,
    title="numpy 2 beside a package that needs numpy 1",
    remedy="Hold numpy below 2, or take torch 2.3 or later.",
    source="pytorch/pytorch#107302",
)
def numpy_too_new(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: "A module that was compiled using NumPy 1.x cannot be run in NumPy 2", and
    then "RuntimeError: Numpy is not available".

    Cause: torch before 2.3 was compiled against the binary interface of numpy 1.
    transformers 4.42 and accelerate 0.32 to 0.33 declare numpy below 2 as well.
    """
    versions = versions_of(facts)
    said = fit.numpy_torch(load(), versions)
    severity = Severity.ERROR if said else Severity.WARNING
    said = said or fit.numpy_libraries(load(), versions)
    if said is not None:
        yield numpy_too_new.finding(said, severity=severity, command="pip install 'numpy<2'")


@check(
    "python-without-wheel",
    Severity.WARNING,
    title="A package has no wheel for this Python",
    remedy="Use a Python that has one.",
    source="https://pypi.org/project/torch/",
)
def python_without_wheel(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: "No matching distribution found", or a build from source nobody asked for.

    Cause: torch, IPEX and the oneCCL bindings are compiled for certain Pythons, and pip
    passes over releases without a wheel for the one it runs in.
    """
    versions = versions_of(facts)
    said = fit.python_wheels(load(), versions) or fit.python_libraries(load(), versions)
    if said is None:
        return
    others = fit.pythons_for(versions)
    remedy = f"All of it has wheels for Python {', '.join(others)}." if others else None
    command = f"python{others[-1]} -m venv venv" if others else None
    yield python_without_wheel.finding(said, remedy=remedy, command=command)


CHECKS: tuple[Check, ...] = (
    installed.package_version_unknown,
    installed.package_twice,
    ipex_torch_mismatch,
    ipex_ended,
    oneccl_torch_mismatch,
    transformers_torch,
    transformers_accelerate,
    trainer_arguments,
    accelerate_torch,
    numpy_too_new,
    installed.torch_missing,
    installed.accelerate_missing,
    python_without_wheel,
    *eras.CHECKS,
    installed.oneccl_setvars,
    installed.torch_cuda_build,
)
"""Most versions are wrong in several ways at once; what ends the interpreter comes first."""
