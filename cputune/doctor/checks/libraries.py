"""Libraries in the process: OpenMP runtimes, what LD_PRELOAD names."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from cputune.doctor.finding import Check, Finding, Severity, check
from cputune.doctor.variables import (
    INTEL_OPENMP,
    is_true,
    loads_intel_openmp,
    number,
    preloaded,
    value,
)
from cputune.facts import HostFacts, Library

_PRELOADS = {
    "tcmalloc": r"libtcmalloc",
    "jemalloc": r"libjemalloc",
    "libiomp5": INTEL_OPENMP,
    "libgomp": r"libgomp",
}
_KMP_SETTINGS = ("KMP_BLOCKTIME", "KMP_TPAUSE", "KMP_SETTINGS", "KMP_HW_SUBSET")
_LONG_BLOCKTIME_MS = 1000


@check(
    "preload-dead",
    Severity.WARNING,
    title="LD_PRELOAD names what cannot be loaded",
    remedy="Name the file that is there; ld.so goes on without what it does not find.",
    source="intel/intel-extension-for-pytorch#279, pytorch/pytorch#180983",
)
def preload_dead(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: "object … from LD_PRELOAD cannot be preloaded: ignored", or no gain at all.

    Cause: the path is another machine's, a directory, or holds a variable that nobody has
    expanded; or a bare name lies where ld.so does not search. Debian and Ubuntu name the
    files with their version (libtcmalloc.so.4), and scripts look for libtcmalloc.so.
    """
    dead = facts.preload_missing
    found = {path: _library_for(path, facts) for path in dead}
    living = [path for path in preloaded(facts) if path not in dead]
    wanted = ":".join(dict.fromkeys([*living, *(lib.path for lib in found.values() if lib)]))
    for path, there in found.items():
        yield preload_dead.finding(
            f"{path} is no file that ld.so finds and may read"
            + (f"; {there.name} lies at {there.path}" if there else ""),
            command=f"export LD_PRELOAD={shlex.quote(wanted)}" if wanted else "unset LD_PRELOAD",
        )


def _library_for(path: str, facts: HostFacts) -> Library | None:
    """The library of this machine that a dead path means."""
    name = next((n for n, pattern in _PRELOADS.items() if re.search(pattern, path)), None)
    return facts.library(name) if name else None


@check(
    "openmp-two",
    Severity.WARNING,
    title="Two OpenMP runtimes in one process",
    remedy="Keep one: preload libiomp5 alone, or none and let torch use the libgomp it brings.",
    source="pytorch/pytorch#98836, pytorch/pytorch#13806",
)
def openmp_two(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: "OMP: Error #15", wrong results, or threads of two teams on the same cores.

    Cause: each runtime has a thread pool of its own. KMP_DUPLICATE_LIB_OK only silences
    the message. ``doctor --deep`` counts the runtimes that ``import torch`` loads.
    """
    loaded = preloaded(facts)
    intel = [path for path in loaded if re.search(_PRELOADS["libiomp5"], path)]
    gnu = [path for path in loaded if re.search(_PRELOADS["libgomp"], path)]
    if intel and gnu:
        yield openmp_two.finding(f"LD_PRELOAD holds {intel[0]} and {gnu[0]}")
    if is_true(facts, "KMP_DUPLICATE_LIB_OK"):
        yield openmp_two.finding(
            f"KMP_DUPLICATE_LIB_OK={value(facts, 'KMP_DUPLICATE_LIB_OK')} hides that two "
            "runtimes are loaded",
            command="unset KMP_DUPLICATE_LIB_OK",
        )


@check(
    "setting-without-library",
    Severity.ADVICE,
    title="A variable is set for a library that is not loaded",
    remedy="Preload the library, or unset the variable.",
    source="pytorch/pytorch#149422",
)
def setting_without_library(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: a variable out of a tuning guide changes nothing.

    Cause: KMP_* are read by Intel's and LLVM's OpenMP (pip's torch brings GNU's),
    MALLOC_CONF by jemalloc.
    """
    loaded = preloaded(facts)
    for name in _KMP_SETTINGS:
        if value(facts, name) and not loads_intel_openmp(facts):
            yield setting_without_library.finding(
                f"{name}={value(facts, name)}, and LD_PRELOAD holds no libiomp5"
            )
    jemalloc = any(re.search(_PRELOADS["jemalloc"], path) for path in loaded)
    if value(facts, "MALLOC_CONF") and not jemalloc:
        yield setting_without_library.finding(
            f"MALLOC_CONF={value(facts, 'MALLOC_CONF')}, and LD_PRELOAD holds no jemalloc"
        )


@check(
    "blocktime-long",
    Severity.ADVICE,
    title="Idle OpenMP threads spin for long",
    remedy="Set KMP_BLOCKTIME=1 where several ranks or oneCCL workers share the machine.",
    source="https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
)
def blocktime_long(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: ranks slow each other down although each has its own cores.

    Cause: after a parallel region libiomp5's threads spin for KMP_BLOCKTIME
    milliseconds and keep the core from oneCCL's workers and the DataLoader's.
    """
    text = (value(facts, "KMP_BLOCKTIME") or "").lower()
    spin = number(facts, "KMP_BLOCKTIME")
    if text == "infinite" or (spin is not None and spin >= _LONG_BLOCKTIME_MS):
        yield blocktime_long.finding(f"KMP_BLOCKTIME={text}", command="export KMP_BLOCKTIME=1")


@check(
    "schedule-dynamic",
    Severity.ADVICE,
    title="OpenMP loops are scheduled dynamically",
    remedy="Unset OMP_SCHEDULE: the static default suits loops over tensors.",
    source="https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
)
def schedule_dynamic(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: poor locality, more remote memory on machines with several sockets.

    Cause: a dynamic or guided schedule hands the same rows to another core every time.
    """
    text = value(facts, "OMP_SCHEDULE")
    if text is not None and re.search(r"dynamic|guided", text, re.IGNORECASE):
        yield schedule_dynamic.finding(f"OMP_SCHEDULE={text}", command="unset OMP_SCHEDULE")


@check(
    "conda-pip-mixed",
    Severity.ADVICE,
    title="conda and pip both brought parts of the stack",
    remedy="Install the whole stack with one of them, in a fresh environment.",
    source="pytorch/pytorch#98836",
)
def conda_pip_mixed(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: two OpenMP runtimes, "undefined symbol", a package that comes back after removal.

    Cause: neither tool sees the libraries that the other brought; conda's numpy loads
    MKL and libiomp5, pip's torch loads its own libgomp.
    """
    names = ("torch", "numpy", "mkl", "intel-openmp", "scipy", "scikit-learn", "transformers")
    found = [p for p in map(facts.package, names) if p is not None and p.installer]
    by_conda = [p.name for p in found if p.installer == "conda"]
    by_pip = [p.name for p in found if p.installer in ("pip", "uv")]
    native = {"torch", "numpy", "mkl", "intel-openmp", "scipy", "scikit-learn"}
    if native.intersection(by_conda) and native.intersection(by_pip):
        yield conda_pip_mixed.finding(
            f"from conda: {', '.join(by_conda)}; from pip: {', '.join(by_pip)}"
        )


@check(
    "intel-only",
    Severity.ADVICE,
    title="Intel's extensions on a processor that is not Intel's",
    remedy="Measure without them: upstream torch uses oneDNN on AMD and Arm as well.",
    source="https://github.com/intel/intel-extension-for-pytorch#system-requirements",
)
def intel_only(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: IPEX or oneCCL is slower than plain torch, or cannot be imported.

    Cause: they are built for x86-64 with AVX2 or more and tested on Intel's processors.
    On AMD they run, untested by their makers; on Arm there is no build of them.
    """
    vendor, machine = facts.cpu.vendor, facts.cpu.architecture
    names = ("intel_extension_for_pytorch", "oneccl_bind_pt")
    found = [p.name for p in map(facts.package, names) if p is not None]
    if found and vendor is not None and vendor != "GenuineIntel":
        yield intel_only.finding(
            f"{', '.join(found)} on {vendor} ({machine or 'unknown architecture'})",
            severity=Severity.ERROR if machine in ("aarch64", "arm", "ppc64") else None,
        )


CHECKS: tuple[Check, ...] = (
    intel_only,
    preload_dead,
    openmp_two,
    setting_without_library,
    blocktime_long,
    schedule_dynamic,
    conda_pip_mixed,
)
