"""One fault and the tests of its room, in a process that is forked for it.

The faults are planted in a copy of the project, never in the project itself. What costs time,
importing pytest and other people's libraries, is done once, before the fork.
"""

from __future__ import annotations

import compileall
import gc
import importlib
import itertools
import os
import py_compile
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import grimp
import hypothesis
import hypothesis.strategies
import pytest

QUICK = "not torch and not slow and not consumer and not vm and not ipex"
OPTIONS = (
    *("-x", "-q", "-p", "no:cacheprovider", "--assert=plain", "-m", QUICK),
    *("-p", "pytest_timeout", "-p", "_hypothesis_pytestplugin"),
)

SAID = "said.txt"
"""What pytest says about the last try, inside the copy."""

MEMORY_BYTES = 8 << 30
"""Of one try: a fault may make a list without end."""


# Quick, and the same for every fault; what is found need not be made small.
hypothesis.settings.register_profile(
    "mutants",
    deadline=None,
    derandomize=True,
    database=None,
    phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
)


class Nursery:
    """Tries one fault after another in a copy of the project, the best tests first."""

    def __init__(self, copy: Path) -> None:
        self._copy = copy
        self._catchers: list[str] = []
        # By hash: two faults of one second and one size are not mistaken for each other.
        by_hash = py_compile.PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(copy, quiet=2, invalidation_mode=by_hash)
        sys.dont_write_bytecode = True
        sys.path.insert(0, str(copy))
        os.chdir(copy)
        os.environ.update(
            PYTHONPATH=str(copy), PYTHONDONTWRITEBYTECODE="1", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"
        )
        self._graph = grimp.build_graph("cputune", cache_dir=None)

    def prepare(self, module: str) -> None:
        """Import what this module has no part in: all forks have it, and only the rest is new."""
        for name in [name for name in sys.modules if name.partition(".")[0] == "cputune"]:
            del sys.modules[name]
        dotted = module.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        touched = {dotted, *self._graph.find_downstream_modules(dotted)}
        for name in sorted(self._graph.modules - touched):
            # A package whose __init__ is touched is loaded with its modules.
            above = itertools.accumulate(name.split("."), "{}.{}".format)
            if touched.isdisjoint(above) and not name.endswith((".__main__", ".sitecustomize")):
                importlib.import_module(name)
        gc.freeze()

    def source(self, module: str) -> str:
        """The module as it was copied: the project itself may be worked on meanwhile."""
        return (self._copy / module).read_text(encoding="utf-8")

    def unharmed(self, tests: Sequence[str]) -> float:
        """CPU and wall seconds of these tests without a fault; raises RuntimeError if one fails."""
        began = time.monotonic()
        if self._forked(tests, limit_seconds=600.0):
            raise RuntimeError(f"these fail without any fault:\n{Path(SAID).read_text()}")
        return time.monotonic() - began

    def notices(self, module: str, source: str, tests: Sequence[str], seconds: float) -> bool:
        """Whether these tests, which take so long without it, notice this fault."""
        place = self._copy / module
        before = place.read_bytes()
        place.write_text(source, encoding="utf-8")
        try:
            return self._forked(tests, limit_seconds=10.0 + 5.0 * seconds)
        finally:
            place.write_bytes(before)

    def _forked(self, tests: Sequence[str], limit_seconds: float) -> bool:
        """Whether a test failed, or did not come to an end."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            os.setsid()
            _run(tests, self._catchers, writing)
        os.close(writing)
        ready, _, _ = select.select([reading], [], [], limit_seconds)
        caught_by = os.read(reading, 4096).decode() if ready else ""
        os.close(reading)
        if not ready:
            os.killpg(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if caught_by:
            self._catchers = [caught_by, *(c for c in self._catchers if c != caught_by)][:20]
        code = os.waitstatus_to_exitcode(status)
        if code in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED):
            raise RuntimeError(f"no tests: {' '.join(tests)}")
        return code != 0


class _Catching:
    """Puts the tests that caught the last faults first, and tells which one caught this."""

    def __init__(self, catchers: list[str]) -> None:
        self._rank = {name: number for number, name in enumerate(catchers)}
        self.caught_by = ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: self._rank.get(item.nodeid, len(self._rank)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.caught_by:
            self.caught_by = report.nodeid


def _run(tests: Sequence[str], catchers: list[str], answer: int) -> NoReturn:
    """The tests, in the child; it ends with pytest's exit code."""
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        said = os.open(SAID, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(said, 1)
        os.dup2(said, 2)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        hypothesis.settings.load_profile("mutants")
        catching = _Catching(catchers)
        code = int(pytest.main([*OPTIONS, *tests], plugins=[catching]))
        os.write(answer, catching.caught_by.encode())
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
