"""The worker threads of oneCCL in this process.

oneCCL starts each of its workers bound to exactly one CPU and gives it no name, so that it
bears the name of the thread that started it (oneapi-src/oneCCL, ``ccl_base_thread::start`` in
src/exec/thread/base_thread.cpp). By that a worker is told from the other threads.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

BINDING_VARIABLES = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
"""By these an OpenMP runtime binds its own threads to single CPUs."""


def workers(
    environment: Mapping[str, str], tasks: str = "/proc/self/task"
) -> tuple[list[int] | None, str]:
    """The CPU of each worker, sorted; or None, and why the workers are not known."""
    binding = next((name for name in BINDING_VARIABLES if environment.get(name)), None)
    if binding is not None:
        return None, f"{binding} binds OpenMP's threads too, and they look like workers"
    threads = dict(_threads(tasks))
    own = threads.pop(os.getpid(), None)
    if own is None:
        return None, f"{tasks} does not show the threads of the process"
    name, cpus = own
    bound = [place for other, place in threads.values() if other == name and len(place) == 1]
    found = sorted(place[0] for place in bound if place != cpus)
    if not found and len(cpus) == 1:
        return None, "the rank has one CPU, on which a worker looks like any other thread"
    return found, ""


def _threads(tasks: str) -> Iterator[tuple[int, tuple[str, list[int]]]]:
    """Every thread with its name and the CPUs that it may run on."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(tasks):
            with contextlib.suppress(OSError, KeyError, ValueError):
                with open(f"{tasks}/{thread}/status", encoding="utf-8", errors="replace") as file:
                    fields = dict(
                        line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line
                    )
                yield int(thread), (fields["Name"], _cpus(fields["Cpus_allowed_list"]))


def _cpus(text: str) -> list[int]:
    """The CPUs of a list like ``0-3,8``."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found
