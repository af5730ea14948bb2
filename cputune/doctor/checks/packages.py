"""What is installed besides the stack, and whether the tables know these releases."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from cputune.doctor.finding import Finding, Severity, check, checks_of
from cputune.host.facts import HostFacts
from cputune.stack import Versions, load, versions_of
from cputune.stack.fit import misfits, misfitting
from cputune.stack.requirements import Unmet, unmet
from cputune.stack.tables import DISTRIBUTIONS, beyond, short_name
from cputune.stack.version_changes import smallest_change, upgraded


@check("requirement-unmet", Severity.ERROR)
def requirement_unmet(facts: HostFacts) -> Iterator[Finding]:
    """An installed package requires another version of a package

    Symptom: "ImportError: tokenizers>=… is required for a normal functioning of this module",
    "undefined symbol" out of torchvision, or an AttributeError deep inside a library.

    Cause: ``pip install`` of another package, ``--no-deps`` or a second package manager changed a
    version for which others declare a range (``Requires-Dist``). transformers checks tokenizers,
    huggingface_hub, safetensors and numpy at import.

    Remedy: Install versions that fit each other.

    Source: https://packaging.python.org/en/latest/specifications/core-metadata/#requires-dist
    """
    versions = versions_of(facts)
    for missed in unmet(facts):
        yield requirement_unmet.finding(missed.problem, command=_install(missed, versions))


def _install(missed: Unmet, versions: Versions) -> str | None:
    """The command that meets a requirement and does not contradict another finding's command.

    Packages in the tables are solved together. For others: the release that all accept, if it is no
    downgrade; else a newer release of the package that requires it.
    """
    names = {short_name(missed.name), short_name(missed.by)}
    if any(names.issuperset(misfit) for misfit in misfitting(versions)):
        change = smallest_change(versions)
        if change is None:
            return None
        return change.command()
    if missed.possible and not missed.downgrade:
        return f"pip install {shlex.quote(missed.wanted)}"
    # PyPI's newest release of the other package, and what that one requires.
    return f"pip install -U {shlex.quote(missed.by)}"


# Architectures for which PyPI's wheels have no CUDA.
_CPU_ALONE = ("aarch64", "ppc64le", "s390x")


@check("torch-build-mixed", Severity.ERROR)
def torch_build_mixed(facts: HostFacts) -> Iterator[Finding]:
    """torch is a CPU build, and a package that is linked against it is not

    Symptom: "operator torchvision::nms does not exist", "partially initialized module 'torchvision'
    has no attribute 'extension'", "Could not load this library: …/libtorchaudio.so", when
    transformers is imported.

    Cause: PyPI's torchvision and torchaudio for Linux x86-64 are built for CUDA. With torch's CPU
    build their libraries find no CUDA runtime and are not loaded.

    Remedy: Install it from the page that torch came from, or remove it if you train on neither
    pictures nor sound.

    Source: pytorch/pytorch#122494, meta-llama/llama-cookbook#710
    """
    versions = versions_of(facts)
    torch = versions.torch
    other = facts.cpu.architecture in _CPU_ALONE
    if torch is None or torch.local != "cpu" or other:
        return
    change = smallest_change(versions)
    if change is None:
        kept = versions
    else:
        kept = change.result
    for name in ("torchvision", "torchaudio"):
        version, package, wanted = versions.get(name), facts.package(name), kept.get(name)
        from_pypi = package is not None and package.installer != "conda"
        if version is None or wanted is None or not from_pypi or version.local == "cpu":
            continue
        page = load().wheels["torch_cpu"]
        yield torch_build_mixed.finding(
            f"torch {torch} is a CPU build, {name} {version} is PyPI's",
            command=f"pip install --force-reinstall --no-deps {name}=={wanted.public} "
            f"--index-url {page}",
        )


@check("torch-load-refused", Severity.WARNING)
def torch_load_refused(facts: HostFacts) -> Iterator[Finding]:
    """transformers loads no checkpoint with this torch

    Symptom: "Due to a serious vulnerability issue in `torch.load` … we now require users to upgrade
    torch to at least v2.6", when training is resumed or weights are loaded from a .bin file.

    Cause: torch.load of an older torch can run code (CVE-2025-32434). transformers 4.52 and later
    require torch 2.6 for it: always for optimizer.pt and scheduler.pt, for weights if they are not
    safetensors.

    Remedy: Upgrade torch to 2.6 or later before you need to resume.

    Source: huggingface/transformers#37785
    """
    versions = versions_of(facts)
    row = load().transformers.does("torch-load-refused", versions.transformers, versions.torch)
    if row is None or versions.transformers is None or versions.torch is None or misfits(versions):
        return
    change = None
    if versions.ipex is None and versions.oneccl is None:
        change = upgraded("torch", row.torch, versions)
    yield torch_load_refused.finding(
        f"transformers {versions.transformers}, torch {versions.torch}: --resume_from_checkpoint "
        "is refused",
        command=None if change is None else change.command(),
    )


@check("stack-newer", Severity.ADVICE)
def stack_newer(facts: HostFacts) -> Iterator[Finding]:
    """A version is not in the tables

    Symptom: none; a pair of such versions may fail without a finding.

    Cause: the doctor's tables end at the releases of one day. For a newer release they assume the
    declarations of the last one before it.

    Remedy: Upgrade cputune, or try the launch: `cputune doctor -- python train.py` asks the
    libraries themselves.

    Source: the tables in cputune/stack/stack.toml
    """
    versions, day = versions_of(facts), load().checked["day"]
    unknown = []
    for name in DISTRIBUTIONS:
        reason = beyond(name, versions.get(name))
        if reason is not None:
            unknown.append(f"{DISTRIBUTIONS[name]} {versions.get(name)} {reason}")
    if unknown:
        yield stack_newer.finding(f"{'; '.join(unknown)}; the tables are dated {day}")


CHECKS = checks_of(__name__)
