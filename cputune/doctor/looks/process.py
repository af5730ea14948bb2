"""What importing torch and transformers does to a process: its CPUs and its libraries."""

import json
import os
import re
import sys

OPENMP = re.compile(r"/lib(gomp|iomp5|omp)[^/]*\.so[^/]*$")


def tell(**facts: object) -> None:
    """Print what is known so far."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def openmp_libraries() -> list[str]:
    """The OpenMP runtimes that are mapped into this process."""
    found = set()
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = line.rstrip("\n").split(None, 5)[5:]
            if path and OPENMP.search(path[0]):
                found.add(os.path.realpath(path[0]))
    return sorted(found)


def main() -> None:
    """Look before torch, after it, after it has computed, and after the libraries on top."""
    tell(affinity_before=sorted(os.sched_getaffinity(0)))
    import torch

    torch.ones(512, 512) @ torch.ones(512, 512)
    tell(affinity_after=sorted(os.sched_getaffinity(0)), threads=torch.get_num_threads())
    tell(openmp_torch=openmp_libraries())
    for name in sys.argv[1:]:
        try:
            __import__(name)
        except BaseException as error:
            tell(import_failed=[name, f"{type(error).__name__}: {error}"])
    tell(openmp_all=openmp_libraries())


if __name__ == "__main__":
    main()
