"""Import modules, one after the other: where each comes from, and what it does to the process.

    python imports.py /home/you/project torch transformers

Arguments: the folder that Python searches first ("" for none), then names of modules. Prints lines
of JSON: the CPUs of the process, then the result of each import.
"""

import contextlib
import importlib
import json
import os
import re
import sys
import traceback

OPENMP = re.compile(r"/lib(gomp|iomp5|omp)[^/]*\.so[^/]*$")


def send(**facts: object) -> None:
    """Print the result so far; it survives a crash."""
    os.write(1, (json.dumps(facts) + "\n").encode())


def openmp_libraries() -> list[str]:
    """The OpenMP runtimes that are mapped into this process."""
    paths = set()
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = line.rstrip("\n").split(None, 5)[5:]
            if path and OPENMP.search(path[0]):
                paths.add(os.path.realpath(path[0]))
    return sorted(paths)


def look(name: str) -> None:
    """Import one module. Its output goes to stderr; a failure is reported with its place."""
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        message, where = " ".join(str(error).split())[:300], ""
        for at in traceback.extract_tb(error.__traceback__):
            if at.filename != __file__ and not at.filename.startswith("<"):
                where = f"{at.filename}:{at.lineno}"
        send(module=name, error=type(error).__name__, said=message, where=where)
        return
    if name == "torch":
        with contextlib.suppress(AttributeError):  # a torch.py of yours
            module.ones(512, 512) @ module.ones(512, 512)  # starts the OpenMP threads
    version = getattr(module, "__version__", None)
    send(
        module=name,
        path=getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None),
        version="" if version is None else str(version),
        cpus=sorted(os.sched_getaffinity(0)),
        openmp=openmp_libraries(),
    )


def main() -> None:
    """Each module in turn."""
    folder, *names = sys.argv[1:]
    sys.path[:1] = [folder] if folder else []
    sys.stdout = sys.stderr
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    send(cpus=sorted(os.sched_getaffinity(0)))
    for name in names:
        send(trying=name)
        look(name)


if __name__ == "__main__":
    main()
