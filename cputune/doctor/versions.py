"""Versions that do not fit each other, read from metadata: nothing here is ever imported.

Importing a mismatched package can end the interpreter (IPEX 1.12 to 2.5 calls exit, the
oneCCL bindings abort), and pip does not notice the mismatch, since the wheels of IPEX do
not declare torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from packaging.version import Version

from cputune.doctor import eras, fit
from cputune.doctor.finding import Check, Finding, Severity, check
from cputune.doctor.fit import DISTRIBUTIONS, Versions, versions_of
from cputune.doctor.stack import load, minor, parse, satisfies
from cputune.doctor.variables import value
from cputune.doctor.ways import Way, ways_out
from cputune.facts import HostFacts

IPEX_SOURCES = (
    "intel/intel-extension-for-pytorch#811, intel/intel-extension-for-pytorch#313, "
    "intel/intel-extension-for-pytorch#317, intel/intel-extension-for-pytorch#778"
)


def both_ways(versions: Versions) -> tuple[str, str | None]:
    """Both ways out as a sentence, and the smaller one as a command."""
    ways = [way for way in ways_out(versions) if way.changes]
    if not ways:
        return "No stack in the tables has wheels for this Python; use Python 3.10 to 3.13.", None
    said = [f"{_verb(way)}: {way.command()}" for way in ways]
    sentence = "; or ".join(said)
    sentence = f"{sentence[0].upper()}{sentence[1:]}."
    if versions.torch is not None and versions.torch.local == "cpu" and " torch==" in sentence:
        page = load().wheels["torch_cpu"]
        sentence += f" PyPI's torch brings the CUDA libraries; its CPU build lies at {page}."
    return sentence, ways[0].command()


def _verb(way: Way) -> str:
    return ("stay in " if "IPEX" in way.says else "go to ") + way.says


@check(
    "package-version-unknown",
    Severity.WARNING,
    title="A package of the training stack is installed without a version",
    remedy="Install it again: its metadata is damaged.",
    source="https://packaging.python.org/en/latest/specifications/core-metadata/",
)
def package_version_unknown(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: ``importlib.metadata.version`` gives None, and programs that compare it fail.

    Cause: an installation that was interrupted, or a METADATA file without a version.
    Nothing can be said about what this package fits.
    """
    for package in facts.packages:
        name = fit.short_name(package.name)
        if name is None or parse(package.version) is not None:
            continue
        shown = "no version" if package.version is None else f"the version {package.version!r}"
        yield package_version_unknown.finding(
            f"{package.name} in {package.location or 'an unknown place'} has {shown}",
            command=f"pip install --force-reinstall --no-deps {DISTRIBUTIONS[name]}",
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
    declare torch, so that ``pip install -U torch`` swaps torch without a word. Importing
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
    "oneccl-setvars",
    Severity.WARNING,
    title="The environment of the oneCCL bindings was not sourced",
    remedy="Source setvars.sh of the bindings in every shell that starts ranks.",
    source="intel/torch-ccl#43",
)
def oneccl_setvars(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: ``libccl.so.1: cannot open shared object file``.

    Cause: the bindings bring oneCCL and Intel MPI inside their wheel; their
    ``env/setvars.sh`` puts both on LD_LIBRARY_PATH and PATH and sets CCL_ROOT.
    """
    package = facts.package("oneccl_bind_pt")
    version = versions_of(facts).oneccl
    if package is None or version is None or facts.recorded:
        return
    paths = value(facts, "LD_LIBRARY_PATH") or ""
    if value(facts, "CCL_ROOT") or "ccl" in paths.lower():
        return
    row = load().bindings_row(version)
    module = row.module if row else "oneccl_bindings_for_pytorch"
    script = f"{package.location or '.'}/{module}/env/setvars.sh"
    yield oneccl_setvars.finding(
        "CCL_ROOT is not set, and LD_LIBRARY_PATH names no oneCCL", command=f". '{script}'"
    )


@check(
    "transformers-torch",
    Severity.ERROR,
    title="transformers needs another torch",
    remedy="Bring the two together.",
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

    Cause: since 4.29 Trainer stands on accelerate, and refuses one that is missing or
    older than its minimum; ``pip install transformers`` alone does not bring it.
    """
    versions = versions_of(facts)
    said = fit.transformers_accelerate(load(), versions)
    if said is not None:
        remedy, command = both_ways(versions)
        yield transformers_accelerate.finding(said, remedy=remedy, command=command)
        return
    if versions.transformers is None or facts.package("accelerate") is not None:
        return
    needs = load().transformers.needs_of(versions.transformers)
    if needs is not None and needs.accelerate and minor(versions.transformers) >= (4, 29):
        yield transformers_accelerate.finding(
            f"transformers {versions.transformers} needs accelerate {needs.accelerate}, found none",
            severity=Severity.WARNING,
            command=f"pip install 'accelerate{needs.accelerate}'",
        )


@check(
    "accelerate-torch",
    Severity.ERROR,
    title="accelerate needs a newer torch",
    remedy="Bring the two together.",
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
    others = [
        f"3.{small}"
        for small in range(8, 16)
        if not fit.misfits(replace(versions, python=Version(f"3.{small}")))
    ]
    remedy = f"All of it has wheels for Python {', '.join(others)}." if others else None
    command = f"python{others[-1]} -m venv venv" if others else None
    yield python_without_wheel.finding(said, remedy=remedy, command=command)


@check(
    "torch-missing",
    Severity.WARNING,
    title="There is no torch",
    remedy="Install torch; from this page it comes without the CUDA libraries.",
    source="https://pytorch.org/get-started/locally/",
)
def torch_missing(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: "None of PyTorch, TensorFlow >= 2.0, or Flax have been found".

    Cause: transformers, accelerate, IPEX and the oneCCL bindings install without torch.
    """
    if facts.package("torch") is not None:
        return
    stack = [p.name for p in facts.packages if fit.short_name(p.name) not in (None, "numpy")]
    if stack:
        yield torch_missing.finding(
            f"{', '.join(stack)} without torch",
            command=f"pip install torch --index-url {load().wheels['torch_cpu']}",
        )


@check(
    "torch-cuda-build",
    Severity.ADVICE,
    title="A CUDA build of torch on a machine without a GPU",
    remedy="Install the CPU build: several gigabytes less to store and to load.",
    source="https://pytorch.org/get-started/locally/",
)
def torch_cuda_build(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: an image of seven gigabytes and a slow first import.

    Cause: on Linux x86-64 PyPI's torch is the CUDA build and brings the NVIDIA libraries.
    """
    torch = facts.package("torch")
    if torch is None or facts.accelerators is None or facts.accelerators:
        return
    brought = [p.name for p in facts.packages if p.name.lower().startswith("nvidia-")]
    version = parse(torch.version)
    if version is None:
        return
    if not (brought or "cu" in (version.local or "") or (torch.build or "").startswith("cuda")):
        return
    also = f" ({torch.build})" if torch.build else ""
    also += f" and {len(brought)} nvidia packages" if brought else ""
    page = load().wheels["torch_cpu"]
    remove = f"pip uninstall -y torch {' '.join(brought)}".strip()
    yield torch_cuda_build.finding(
        f"torch {torch.version}{also}, no GPU",
        command=f"{remove} && pip install torch=={version.public} --index-url {page}",
    )


VERSION_CHECKS: tuple[Check, ...] = (
    package_version_unknown,
    ipex_torch_mismatch,
    ipex_ended,
    oneccl_torch_mismatch,
    transformers_torch,
    transformers_accelerate,
    accelerate_torch,
    numpy_too_new,
    torch_missing,
    python_without_wheel,
    *eras.CHECKS,
    oneccl_setvars,
    torch_cuda_build,
)
"""Most versions are wrong in several ways at once; what ends the interpreter comes first."""
