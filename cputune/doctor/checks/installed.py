"""Packages of the training stack that are missing, damaged, doubled or of the wrong build."""

from __future__ import annotations

from collections.abc import Iterator

from cputune.doctor.finding import Check, Finding, Severity, check
from cputune.doctor.variables import lacks_torch, value
from cputune.facts import HostFacts
from cputune.stack.tables import load, parse
from cputune.stack.uses import oneccl_module
from cputune.stack.versions import DISTRIBUTIONS, short_name, versions_of


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
        name = short_name(package.name)
        if name is None or parse(package.version) is not None:
            continue
        shown = "no version" if package.version is None else f"the version {package.version!r}"
        yield package_version_unknown.finding(
            f"{package.name} in {package.location or 'an unknown place'} has {shown}",
            command=f"pip install --force-reinstall --no-deps {DISTRIBUTIONS[name]}",
        )


@check(
    "package-twice",
    Severity.WARNING,
    title="The metadata of several versions lies in one environment",
    remedy="Remove the package until nothing is left of it, then install it once.",
    source="https://packaging.python.org/en/latest/specifications/recording-installed-packages/",
)
def package_twice(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: pip shows one version, the import is another, and nothing fits.

    Cause: an installation that was interrupted, or two package managers in one folder.
    What the doctor says about versions is then about the first that was found.
    """
    for package in facts.packages:
        name = short_name(package.name)
        if name is None or not package.others:
            continue
        distribution = DISTRIBUTIONS[name]
        again = f"{distribution}=={package.version}" if package.version else distribution
        remove = " && ".join([f"pip uninstall -y {distribution}"] * (1 + len(package.others)))
        yield package_twice.finding(
            f"{package.name} {package.version} and {', '.join(package.others)} "
            f"in {package.location or 'an unknown place'}",
            command=f"{remove} && pip install {again}",
        )


@check(
    "torch-missing",
    Severity.WARNING,
    title="There is no torch",
    remedy="Install torch; from this page it comes without the CUDA libraries.",
    source="https://pytorch.org/get-started/locally/",
)
def torch_missing(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: "None of PyTorch, TensorFlow >= 2.0, or Flax have been found".

    Cause: transformers, accelerate, IPEX and the oneCCL bindings install without torch. Or
    the doctor stands in another environment than the one that trains (pipx, conda).
    """
    if not lacks_torch(facts):
        return
    stack = [p.name for p in facts.packages if short_name(p.name) not in (None, "numpy")]
    elsewhere = "Install torch here, or name the Python that trains: cputune doctor --python PATH"
    yield torch_missing.finding(
        f"{', '.join(stack)} without torch" if stack else f"Python {facts.python} has no torch",
        remedy=None if stack else elsewhere,
        command=f"pip install torch --index-url {load().wheels['torch_cpu']}" if stack else None,
    )


@check(
    "accelerate-missing",
    Severity.WARNING,
    title="Trainer needs accelerate, and there is none",
    remedy="Install it; pip install 'transformers[torch]' would have brought it.",
    source="https://pypi.org/project/transformers/",
)
def accelerate_missing(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: "Using the `Trainer` with `PyTorch` requires `accelerate>=…`".

    Cause: Trainer stands on accelerate since transformers 4.29, and ``pip install
    transformers`` alone does not bring it.
    """
    version = versions_of(facts).transformers
    transformers = load().transformers
    if version is None or facts.package("accelerate") is not None:
        return
    needs = transformers.needs_of(version)
    if needs is None or not transformers.does("accelerate-starts-ranks", version):
        return
    yield accelerate_missing.finding(
        f"transformers {version} needs accelerate {needs.accelerate}",
        command=f"pip install 'accelerate{needs.accelerate}'",
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
    brought = [p.name for p in facts.packages if _is_cuda_only(p.name)]
    version = parse(torch.version)
    if version is None:
        return
    if not (brought or "cu" in (version.local or "") or (torch.build or "").startswith("cuda")):
        return
    also = f" ({torch.build})" if torch.build else ""
    also += f" and {len(brought)} packages for CUDA" if brought else ""
    page = load().wheels["torch_cpu"]
    remove = f"pip uninstall -y torch {' '.join(brought)}".strip()
    yield torch_cuda_build.finding(
        f"torch {torch.version}{also}, no GPU",
        command=f"{remove} && pip install torch=={version.public} --index-url {page}",
    )


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
    searched = (value(facts, "LD_LIBRARY_PATH") or "").split(":")
    root = value(facts, "CCL_ROOT")
    found = [lib.path for lib in facts.libraries if lib.name == "libccl"]
    if any(path.rpartition("/")[0] in searched for path in found):
        return
    brought = f"{package.location or '.'}/{oneccl_module(versions_of(facts))}"
    own = any(path.startswith(f"{brought}/") for path in found)
    said = f"CCL_ROOT={root}" if root else "CCL_ROOT is not set"
    yield oneccl_setvars.finding(
        f"{said}, and no directory of LD_LIBRARY_PATH holds libccl.so",
        remedy=None
        if own
        else "These bindings bring no oneCCL: install it, and source its setvars.sh.",
        command=f". '{brought}/env/setvars.sh'" if own else None,
    )


def _is_cuda_only(distribution: str) -> bool:
    return distribution.lower().startswith("nvidia-") or distribution == "triton"


CHECKS: tuple[Check, ...] = (
    package_version_unknown,
    package_twice,
    torch_missing,
    accelerate_missing,
    oneccl_setvars,
    torch_cuda_build,
)
"""What only an installation can have: a stack that is merely named is spared them."""
