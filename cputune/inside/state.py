"""What this rank really runs with, as opposed to what the plan asks for.

oneCCL binds each of its workers to exactly one CPU and gives it the name of the thread that started
it (oneapi-src/oneCCL, ``ccl_base_thread::start`` in src/exec/thread/base_thread.cpp). These two
signs tell a worker from other threads.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import re
import sys
import zlib
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar

from cputune.inside import SHOW_VARIABLE
from cputune.inside.applying.parts import the_parts
from cputune.inside.messages import RankState

if TYPE_CHECKING:
    from torch.nn import Module
    from torch.utils.hooks import RemovableHandle

_ALLOCATORS = ("tcmalloc", "jemalloc", "mimalloc")
# The first one wins: torch loads libgomp even if another is preloaded.
_OPENMP = ("iomp5", "omp", "gomp")

_LIBRARY = re.compile(rf"lib({'|'.join((*_ALLOCATORS, *_OPENMP))})[._-][^/]*so")

# Read once by native libraries, and not shown otherwise.
_VARIABLES = re.compile(
    r"(OMP|GOMP|KMP|MKL|OPENBLAS)_.*|CCL_(WORKER_.*|ATL_.*)|MALLOC_.*|GLIBC_TUNABLES|TCMALLOC_.*"
    r"|ATEN_CPU_CAPABILITY|(DNNL|ONEDNN)_.*"
)


_PACKAGES = ("torch", "transformers", "accelerate", "intel_extension_for_pytorch")


def read() -> RankState:
    """Threads, affinity, process group, libraries and versions of this process."""
    torch = sys.modules.get("torch")
    distributed = sys.modules.get("torch.distributed")
    grouped = (
        distributed is not None and distributed.is_available() and distributed.is_initialized()
    )
    libraries = mapped_libraries()
    mapped = {}
    for path in libraries:
        library = _LIBRARY.search(path)
        if library is not None:
            mapped[path] = library[1]
    import resource  # Windows has none

    environment = _shown_variables()
    state: RankState = {
        "pid": os.getpid(),
        "host": os.uname().nodename,
        "rank": distributed.get_rank() if grouped and distributed else 0,
        "world_size": distributed.get_world_size() if grouped and distributed else 1,
        "backend": str(distributed.get_backend()) if grouped and distributed else None,
        "threads": torch.get_num_threads() if torch is not None else None,
        "affinity": sorted(os.sched_getaffinity(0)),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "allocator": next((name for name in _ALLOCATORS if name in mapped.values()), "default"),
        "openmp": next((f"lib{name}" for name in _OPENMP if name in mapped.values()), None),
        "preload": _preloaded_files(libraries),
        "mapped": list(mapped),
        "versions": _versions(),
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "environment": environment,
    }
    if SHOW_VARIABLE in os.environ:  # by verify alone: its words may hold secrets
        state["command"] = list(getattr(sys, "orig_argv", sys.argv))
    if torch is not None:
        state["products_rounded"] = products_rounded(torch)
    state["dropout"] = "torch"
    for part in the_parts().values():
        state.update(part.report())
    if state["allocator"] == "default":
        state["mapped_blocks"] = mapped_blocks()
        state["huge_pages_bytes"] = huge_pages_bytes()
    if state["backend"] == "ccl":
        state["ccl_workers"], state["ccl_workers_unknown"] = ccl_workers(environment)
    return state


def _shown_variables() -> dict[str, str]:
    """The variables that native libraries read, and those that ``verify`` asks for."""
    requested = os.environ.get(SHOW_VARIABLE, "").split(",")
    variables = {}
    for name, value in os.environ.items():
        if _VARIABLES.fullmatch(name) or name in requested:
            variables[name] = value
    return variables


def _preloaded_files(libraries: list[str]) -> list[str]:
    names = re.split(r"[:\s]+", os.environ.get("LD_PRELOAD", ""))
    return [_file_of(name, libraries) for name in names if name]


def _versions() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        if name in sys.modules:
            versions[name] = str(getattr(sys.modules[name], "__version__", "unknown"))
    return versions


class _MallocInfo(ctypes.Structure):
    """``struct mallinfo2`` of malloc.h."""

    _fields_: ClassVar = [
        ("arena", ctypes.c_size_t),
        ("ordblks", ctypes.c_size_t),
        ("smblks", ctypes.c_size_t),
        ("hblks", ctypes.c_size_t),
        ("hblkhd", ctypes.c_size_t),
        ("usmblks", ctypes.c_size_t),
        ("fsmblks", ctypes.c_size_t),
        ("uordblks", ctypes.c_size_t),
        ("fordblks", ctypes.c_size_t),
        ("keepcost", ctypes.c_size_t),
    ]


def mapped_blocks() -> int | None:
    """Blocks that glibc's malloc has mapped one by one; None for another libc, or an old one."""
    with contextlib.suppress(OSError, AttributeError):
        mallinfo = ctypes.CDLL(None).mallinfo2  # glibc 2.33 and later
        mallinfo.restype = _MallocInfo
        return int(mallinfo().hblks)
    return None


def huge_pages_bytes() -> int | None:
    """Bytes of this process in transparent huge pages; None if it is not known."""
    with (
        contextlib.suppress(OSError, ValueError),
        open("/proc/self/smaps_rollup", encoding="ascii", errors="replace") as file,
    ):
        for line in file:
            if line.startswith("AnonHugePages:"):
                return int(line.split()[1]) * 1024
    return None


def products_rounded(torch: ModuleType) -> bool:
    """Whether a matmul in fp32 loses what bf16 cannot hold; one is computed."""
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        factor = torch.full((64, 64), 1 + 2.0**-12)
        return bool((factor @ torch.eye(64))[0, 0] == 1)


def optimizer(stepped: object) -> dict[str, object]:
    """The class of an optimizer, and which of torch's implementations it uses.

    Without ``fused`` and ``foreach`` in its groups torch loops over the parameters on a CPU
    (torch/optim/optimizer.py).
    """
    inner = getattr(stepped, "optimizer", stepped)  # accelerate wraps it
    groups = [group for group in getattr(inner, "param_groups", ()) if isinstance(group, dict)]
    return {
        "class": type(inner).__name__,
        "fused": any(group.get("fused") for group in groups),
        "foreach": any(group.get("foreach") for group in groups),
    }


def model(stepped: object) -> str | None:
    """What an optimizer trains: its numbers, its tensors, and a digest of their sorted shapes."""
    inner = getattr(stepped, "optimizer", stepped)  # accelerate wraps it
    shapes: list[tuple[int, ...]] = []
    for group in getattr(inner, "param_groups", ()):
        if isinstance(group, dict):
            shapes += [tuple(parameter.shape) for parameter in group["params"]]
    if not shapes:
        return None
    digest = zlib.crc32(repr(sorted(shapes)).encode())
    numbers = sum(map(math.prod, shapes))
    return f"{numbers} numbers in {len(shapes)} tensors, shapes {digest:08x}"


def _file_of(name: str, mapped: list[str]) -> str:
    """The file of a library that is preloaded by name, found as the linker finds it."""
    paths = (path for path in mapped if "/" not in name and f"/{name}" in path)
    return next(paths, name)


def mapped_libraries() -> list[str]:
    """The shared libraries that are mapped into this process, by path."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        paths = [line.rstrip("\n").split(maxsplit=5)[-1] for line in maps]
    return list(dict.fromkeys(path for path in paths if ".so" in path))


class DtypeProbe:
    """A forward hook on one layer that multiplies matrices, to read the type of its result.

    accelerate skips fp16 on a CPU and trains in fp32 without a message (accelerate/accelerator.py,
    ``native_amp``).
    """

    def __init__(self) -> None:
        self._hook: RemovableHandle | None = None
        self.dtype: str | None = None

    def attach(self, model: Module) -> bool:
        """Hook the first layer that multiplies matrices, once; returns whether one is hooked."""
        if self._hook is None:
            module = next(filter(_multiplies, model.modules()), None)
            self._hook = None if module is None else module.register_forward_hook(self._seen)
        return self._hook is not None

    def detach(self) -> str | None:
        """Remove the hook; returns the dtype ("float32", "bfloat16"), or None if it saw none."""
        if self._hook is not None:
            self._hook.remove()
        return self.dtype

    def _seen(self, module: object, inputs: object, output: object) -> None:
        if hasattr(output, "dtype"):
            self.dtype = str(output.dtype).removeprefix("torch.")


def _multiplies(module: object) -> bool:
    name = type(module).__name__
    weight = getattr(module, "weight", None)
    return (
        weight is not None
        and getattr(weight, "ndim", 0) >= 2
        and weight.is_floating_point()
        and "Embedding" not in name
        and "Norm" not in name
    )


# With these an OpenMP runtime binds its own threads to single CPUs.
BINDING_VARIABLES = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


def ccl_workers(
    environment: Mapping[str, str], tasks: str = "/proc/self/task"
) -> tuple[list[int] | None, str]:
    """The CPU of each worker, sorted; or None, and why the workers are not known."""
    binding = next((name for name in BINDING_VARIABLES if environment.get(name)), None)
    if binding is not None:
        return None, f"{binding} binds OpenMP's threads too, and they look like workers"
    threads = dict(_threads(tasks))
    name, cpus = threads.pop(os.getpid())
    workers: list[int] = []
    for other, place in threads.values():
        if other == name and len(place) == 1 and place != cpus:
            workers += place
    workers.sort()
    if not workers and len(cpus) == 1:
        return None, "the rank has one CPU, on which a worker looks like any other thread"
    return workers, ""


def _threads(tasks: str) -> Iterator[tuple[int, tuple[str, set[int]]]]:
    """Every thread that is there, with its name and the CPUs that it may run on."""
    for thread in os.listdir(tasks):
        with contextlib.suppress(OSError), open(f"{tasks}/{thread}/comm", "rb") as file:
            name = file.read().decode(errors="replace")
            yield int(thread), (name, os.sched_getaffinity(int(thread)))
