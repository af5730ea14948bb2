"""Libraries in the process: what LD_PRELOAD names, and the variables that libraries read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace

from cputune.doctor import variables as env
from cputune.doctor.finding import Check, Finding, Severity, check, checks_of
from cputune.host.facts import HostFacts, Library
from cputune.stack import load, versions_of
from cputune.stack.system_packages import install_tcmalloc

_PRELOADS = {
    "tcmalloc": r"libtcmalloc",
    "jemalloc": r"libjemalloc",
    "libiomp5": env.INTEL_OPENMP,
    "libgomp": r"libgomp",
}
_READ_BY = {
    "libiomp5": ("KMP_AFFINITY", "KMP_BLOCKTIME", "KMP_TPAUSE", "KMP_SETTINGS", "KMP_HW_SUBSET"),
    "jemalloc": ("MALLOC_CONF",),
}


@check("variable-refused", Severity.ERROR)
def variable_refused(facts: HostFacts) -> Iterator[Finding]:
    """A variable requests what these libraries cannot do here

    Symptom: Trainer or Accelerator ends at its start: "PackageNotFoundError", "Expected a
    torch.device", "Unknown mixed_precision mode", "invalid truth value".

    Cause: accelerate launch passes its configuration to ranks in such variables. One exported for
    another machine, or left by an earlier launch, affects every later run.

    Remedy: Unset the variable.

    Source: https://huggingface.co/docs/accelerate/usage_guides/environment_variables
    """
    if env.without_gpu(facts) and (facts.package("accelerate") or facts.package("torch")):
        yield from _from_table(facts, variable_refused, "refused")
        yield from _dynamo_backend(facts)


def _dynamo_backend(facts: HostFacts) -> Iterator[Finding]:
    """A torch.compile backend that this accelerate does not know."""
    name, accelerate = "ACCELERATE_DYNAMO_BACKEND", versions_of(facts).accelerate
    backend = env.value(facts, name)
    if backend and accelerate and backend.lower() not in load().accelerate.dynamo_of(accelerate):
        problem = f": accelerate {accelerate} does not know this backend"
        yield env.unset(variable_refused, facts, name, problem)


@check("debug-left-on", Severity.WARNING)
def debug_left_on(facts: HostFacts) -> Iterator[Finding]:
    """A debugging variable is left on

    Symptom: slow steps, or logs of gigabytes.

    Cause: the library writes or checks more in every step.

    Remedy: Unset the variable when debugging is done.

    Source: https://uxlfoundation.github.io/oneDNN/dev_guide_verbose.html,
    https://pytorch.org/docs/stable/distributed.html#debugging-torch-distributed-applications
    """
    yield from _from_table(facts, debug_left_on, "slow")


def _from_table(facts: HostFacts, asking: Check, kind: str) -> Iterator[Finding]:
    def is_there(name: str) -> bool:
        return bool(facts.package(name) or env.value(facts, name))

    for row in env.variable_rows(kind):
        text = env.value(facts, row["name"])
        if text is None:
            continue
        meant = re.fullmatch(f"(?i:{row['values']})", text)
        lacking = "only_with" in row and not is_there(row["only_with"])
        if row.get("library") == "libiomp5" and not env.loads_intel_openmp(facts):
            lacking = True
        if not meant or lacking or is_there(row.get("unless", "")):
            continue
        finding = env.unset(asking, facts, row["name"], f": {row['does']}")
        kept = ",".join(word for word in text.split(",") if word != row.get("drops"))
        if "drops" in row and kept:
            finding = replace(finding, command=f"export {row['name']}={shlex.quote(kept)}")
        yield finding


@check("preload-dead", Severity.WARNING)
def preload_dead(facts: HostFacts) -> Iterator[Finding]:
    """LD_PRELOAD names a file that cannot be loaded

    Symptom: "object … from LD_PRELOAD cannot be preloaded: ignored", or no gain at all.

    Cause: the path is another machine's, a directory, or contains an unexpanded variable; or ld.so
    does not find a bare name. Debian and Ubuntu put the version in the name (libtcmalloc.so.4).

    Remedy: Name a file that exists; ld.so skips others.

    Source: intel/intel-extension-for-pytorch#279, pytorch/pytorch#180983
    """
    dead = facts.preload_missing
    replacements = {path: _library_for(path, facts) for path in dead}
    loadable = [path for path in env.preloaded(facts) if path not in dead]
    for library in replacements.values():
        if library is not None:
            loadable.append(library.path)
    wanted = ":".join(dict.fromkeys(loadable))
    for path, there in replacements.items():
        yield preload_dead.finding(
            f"ld.so cannot find or read {path}"
            + (f"; {there.name} is at {there.path}" if there else ""),
            command=f"export LD_PRELOAD={shlex.quote(wanted)}" if wanted else "unset LD_PRELOAD",
        )


def _library_for(path: str, facts: HostFacts) -> Library | None:
    """The library of this machine that a dead path was meant to name."""
    for name, pattern in _PRELOADS.items():
        if re.search(pattern, path):
            return facts.library(name)
    return None


def _preloaded(facts: HostFacts, library: str) -> list[str]:
    """The entries of LD_PRELOAD that name a library of ``_PRELOADS``."""
    return [path for path in env.preloaded(facts) if re.search(_PRELOADS[library], path)]


@check("openmp-two", Severity.WARNING)
def openmp_two(facts: HostFacts) -> Iterator[Finding]:
    """Two OpenMP runtimes in one process

    Symptom: "OMP: Error #15", wrong results, or two teams of threads on the same cores.

    Cause: each runtime has its own threads. KMP_DUPLICATE_LIB_OK only hides the message. ``doctor
    --deep`` counts the runtimes that ``import torch`` loads.

    Remedy: Keep one: preload libiomp5 only, or preload none and let torch use its libgomp.

    Source: pytorch/pytorch#98836, pytorch/pytorch#13806
    """
    intel, gnu = _preloaded(facts, "libiomp5"), _preloaded(facts, "libgomp")
    if intel and gnu:
        kept = shlex.quote(":".join(path for path in env.preloaded(facts) if path not in gnu))
        evidence = f"LD_PRELOAD contains {intel[0]} and {gnu[0]}"
        yield openmp_two.finding(evidence, command=f"export LD_PRELOAD={kept}")
    if env.is_true(facts, "KMP_DUPLICATE_LIB_OK"):
        problem = " hides that two runtimes are loaded"
        yield env.unset(openmp_two, facts, "KMP_DUPLICATE_LIB_OK", problem)


@check("setting-without-library", Severity.ADVICE)
def setting_without_library(facts: HostFacts) -> Iterator[Finding]:
    """A variable is set for a library that is not loaded

    Symptom: a variable from a tuning guide changes nothing.

    Cause: only Intel's and LLVM's OpenMP read KMP_* (pip's torch has GNU's), and only jemalloc
    reads MALLOC_CONF.

    Remedy: Preload the library, or unset the variable.

    Source: pytorch/pytorch#149422
    """
    there = {
        "libiomp5": env.loads_intel_openmp(facts),
        "jemalloc": bool(_preloaded(facts, "jemalloc")),
    }
    for library, names in _READ_BY.items():
        for name in names:
            if env.value(facts, name) and not there[library]:
                problem = f", but LD_PRELOAD does not name {library}"
                yield env.unset(setting_without_library, facts, name, problem)


@check("conda-pip-mixed", Severity.ADVICE)
def conda_pip_mixed(facts: HostFacts) -> Iterator[Finding]:
    """conda and pip each installed parts of the stack

    Symptom: two OpenMP runtimes, "undefined symbol", a package that comes back after removal.

    Cause: neither tool knows the libraries of the other; conda's numpy loads MKL and libiomp5,
    pip's torch loads libgomp.

    Remedy: Install the whole stack with one of them, in a new environment.

    Source: pytorch/pytorch#98836
    """
    names = ("torch", "numpy", "mkl", "intel-openmp", "scipy", "scikit-learn", "transformers")
    by_conda, by_pip = [], []
    for package in map(facts.package, names):
        if package is None:
            continue
        if package.installer == "conda":
            by_conda.append(package.name)
        elif package.installer in ("pip", "uv"):
            by_pip.append(package.name)
    native = {"torch", "numpy", "mkl", "intel-openmp", "scipy", "scikit-learn"}
    if native.intersection(by_conda) and native.intersection(by_pip):
        yield conda_pip_mixed.finding(
            f"from conda: {', '.join(by_conda)}; from pip: {', '.join(by_pip)}"
        )


_FASTER = re.compile(r"lib(?:tc|je|mi)malloc")


@check("allocator-default", Severity.ADVICE, tuned="allocator")
def allocator_default(facts: HostFacts) -> Iterator[Finding]:
    """tcmalloc is installed but not used

    Symptom: much time in page faults; every step frees and maps large tensors again.

    Cause: glibc's malloc returns large blocks to the kernel at once; tcmalloc keeps them.
    jemalloc's defaults also return them, and it measured slower than malloc; the tuner sets it to
    keep them.

    Remedy: Preload tcmalloc; cputune tune measures whether it helps.

    Source: https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html#switch-memory-allocator
    """
    library, set_to = facts.library("tcmalloc"), env.value(facts, "LD_PRELOAD")
    if facts.preload_missing or _is_preloaded(facts):
        return
    if library is not None and facts.package("torch"):
        wanted = ":".join(env.preloaded(facts) + [library.path])
        yield allocator_default.finding(
            f"{library.path} is installed, LD_PRELOAD is {set_to or 'unset'}",
            command=f"export LD_PRELOAD={shlex.quote(wanted)}",
        )


@check("allocator-missing", Severity.ADVICE)
def allocator_missing(facts: HostFacts) -> Iterator[Finding]:
    """tcmalloc is not installed

    Symptom: none; the tuner cannot try tcmalloc.

    Cause: tcmalloc is a separate package (on RHEL in EPEL). It keeps large blocks, which glibc's
    malloc returns to the kernel. On virtual machines of two cores a 4-layer BERT in bf16 trained
    1.12 times as fast (± 0.05) in processes side by side, up to 1.3 times in whole launches; with
    jemalloc 0.89 times (± 0.05). Yours may differ.

    Without root, install gperftools from conda-forge, or unpack Debian's package: `apt-get download
    libtcmalloc-minimal4`, `dpkg -x libtcmalloc-minimal4*.deb there`, then copy
    `there/usr/lib/*/libtcmalloc_minimal.so.4*` to `$VIRTUAL_ENV/lib`.

    Remedy: Install tcmalloc and tune again.

    Source: https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html#switch-memory-allocator
    """
    if facts.library("tcmalloc") or not facts.package("torch") or _is_preloaded(facts):
        return
    command, remedy = install_tcmalloc(facts.settings.distribution), allocator_missing.remedy
    if env.value(facts, "CONDA_PREFIX"):
        command = "conda install -c conda-forge gperftools"
    elif command is None:
        remedy = "Install gperftools (Debian: libtcmalloc-minimal4), then tune again."
    elif facts.settings.container:
        if command.startswith("apt"):
            command = f"apt-get update && {command}"
        remedy += f" To keep it in the image, add to the Dockerfile: RUN {command}"
    else:
        command = f"sudo {command}"
    yield allocator_missing.finding(
        "no libtcmalloc in the library folders of the environment and the system",
        command=command,
        remedy=remedy,
    )


def _is_preloaded(facts: HostFacts) -> bool:
    return any(_FASTER.search(path) for path in env.preloaded(facts))


CHECKS = checks_of(__name__)
