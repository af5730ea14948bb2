"""One fault and the tests of its room, in a process that is forked for it.

Of the tests those are run that run the faulty function or start processes; those that caught the
last faults come first, then the shortest; the first that fails ends the try.

The faults are planted in a copy of the project, never in the project itself. Two ways lead to
the same answer:

- quick: the tests are collected once, and each fork runs them with the function exchanged that
  has the fault; on disk it is in the file, for the processes that a test starts;
- whole: each fork imports everything anew. That is how what cannot be exchanged is tried: a
  constant, a default, a class, and a function that has run while the tests were collected.
"""

from __future__ import annotations

import compileall
import contextlib
import ctypes
import gc
import importlib
import itertools
import json
import os
import py_compile
import resource
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import NoReturn

import grimp
import hypothesis
import hypothesis.strategies
import pytest

from mutants.exchange import Exchange
from mutants.planting import Mutant

QUICK = "not torch and not slow and not consumer and not vm and not ipex"
OPTIONS = (
    *("-x", "-q", "-p", "no:cacheprovider", "--assert=plain", "--basetemp=tmp", "-m", QUICK),
    *("-p", "pytest_timeout", "-p", "_hypothesis_pytestplugin"),
)

Way = tuple[float, Sequence[str]]
"""The CPU time of a test, and the functions of the faulty module that it runs."""

ELSEWHERE = "in a process of its own"
"""Stands for the functions that a test runs where nobody sees it."""

LONGEST_SECONDS = 5.0
"""CPU time of a test: longer ones are left to the suite, for each survivor would wait for them."""

SAID = "said.txt"
"""What pytest says about the last try, inside the copy."""

PR_SET_PDEATHSIG = 1  # prctl(2)

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
    """Tries faults in a copy of the project, those tests first that caught the last ones."""

    def __init__(self, copy: Path) -> None:
        self._copy = copy
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

    def source(self, module: str) -> str:
        """The module as it was copied: the project itself may be worked on meanwhile."""
        return (self._copy / module).read_text(encoding="utf-8")

    def noticed(
        self, module: str, mutants: Sequence[Mutant], tests: Sequence[str]
    ) -> Iterator[bool]:
        """Of each of these faults of a module whether the tests notice it.

        Raises RuntimeError if one of them fails without any fault.
        """
        self._prepare(module)
        place = self._copy / module
        code, said = _forked(_Quick(place, mutants), tests, 100_000.0)
        if code:
            raise RuntimeError(f"these fail without any fault:\n{Path(SAID).read_text()}")
        quick, limit_seconds, ways = json.loads(said)
        catchers: list[str] = []
        for mutant, noticed in zip(mutants, quick, strict=True):
            if noticed is not None:
                yield noticed
                continue
            with _planted(place, mutant.source):
                yield _catches(*_forked(_First(catchers, ways), tests, limit_seconds), catchers)

    def _prepare(self, module: str) -> None:
        """Import what this module has no part in: all forks have it, and only the rest is new."""
        for name in [name for name in sys.modules if name.partition(".")[0] == "cputune"]:
            del sys.modules[name]
        dotted = module.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        touched = {dotted, *self._graph.find_downstream_modules(dotted)}
        for name in sorted(self._graph.modules - touched):
            # A package whose __init__ is touched is loaded with its modules.
            above = itertools.accumulate(name.split("."), "{}.{}".format)
            if touched.isdisjoint(above) and not name.startswith("cputune.inside."):
                importlib.import_module(name)
        gc.freeze()


class _First:
    """Runs the likeliest tests first, and tells which one catches this fault.

    ``catchers`` caught the last faults; ``ways`` are what each test runs, as ``_Ways`` tells.
    """

    def __init__(self, catchers: Sequence[str], ways: Mapping[str, Way] | None = None) -> None:
        self.catchers = catchers
        self.ways = ways or {}
        self.faulty: frozenset[str] = frozenset()
        self.answer = ""
        self.answer_to = -1

    def pytest_configure(self, config: pytest.Config) -> None:
        config.addinivalue_line("markers", "xdist_group: xdist's, which is not loaded here")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        rank = {name: number for number, name in enumerate(self.catchers)}

        def way(item: pytest.Item) -> Way:
            return self.ways.get(item.nodeid, (0.0, [*self.faulty]))

        def may_notice(item: pytest.Item) -> bool:
            seconds, run = way(item)
            reaches = not self.faulty or ELSEWHERE in run or not self.faulty.isdisjoint(run)
            return reaches and seconds <= LONGEST_SECONDS

        items[:] = [item for item in items if may_notice(item)]
        items.sort(key=lambda item: (rank.get(item.nodeid, len(rank)), way(item)[0]))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.answer:
            self.answer = report.nodeid


class _Ways:
    """What each test runs of one module, and how long it takes; told as JSON when all have run."""

    def __init__(self, place: Path, plugin: _First) -> None:
        self._place, self._plugin = str(place), plugin
        self._found: dict[str, Way] = {}
        self._processes = 0
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        self._processes += event in ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.exec")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        run: set[CodeType] = set()
        began, processes = _cpu_seconds(), self._processes

        def see(frame: FrameType, event: str, argument: object) -> None:
            run.add(frame.f_code)

        threading.setprofile(see)
        sys.setprofile(see)
        try:
            return (yield)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
            names = sorted(_name(code) for code in run if code.co_filename == self._place)
            if self._processes > processes:
                names.append(ELSEWHERE)
            self._found[item.nodeid] = _cpu_seconds() - began, names

    def pytest_sessionfinish(self) -> None:
        self._plugin.answer = self._plugin.answer or json.dumps(self._found)


def _cpu_seconds() -> float:
    """Of this process and its children that have ended: the same on a machine that is busy."""
    now = os.times()
    return now.user + now.system + now.children_user + now.children_system


def _name(code: CodeType) -> str:
    return f"{code.co_name}:{code.co_firstlineno}"


class _Quick(_First):
    """Collects the tests, and runs them in a fork for each fault; tells of each what came of it.

    None for those that cannot be exchanged.
    """

    def __init__(self, place: Path, mutants: Sequence[Mutant]) -> None:
        super().__init__([])
        self._place, self._mutants = place, mutants
        self._ran: set[CodeType] = set()

    def pytest_sessionstart(self) -> None:
        sys.setprofile(lambda frame, event, argument: self._ran.add(frame.f_code))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        sys.setprofile(None)
        exchange = Exchange(self._place, self._ran)
        gc.freeze()
        catchers: list[str] = []
        noticed: list[bool | None] = []
        began, limit_seconds = time.monotonic(), 600.0
        for mutant in (None, *self._mutants):
            functions = exchange.functions(mutant.source) if mutant else []
            if mutant and not functions:
                noticed.append(None)
                continue
            with _planted(self._place, mutant.source if mutant else None):
                child, reading, writing = _fork()
                if child == 0:  # it runs the tests as if nothing had been, and ends in _run
                    self.faulty = frozenset(_name(function.__code__) for function, _ in functions)
                    for function, code in functions:
                        function.__code__ = code
                    self.catchers, self.answer_to = catchers, writing
                    if not mutant:
                        session.config.pluginmanager.register(_Ways(self._place, self))
                    self.pytest_collection_modifyitems(session.items)
                    return None
                code, said = _ended(child, reading, writing, limit_seconds)
            if mutant:
                noticed.append(_catches(code, said, catchers))
            elif code:
                raise pytest.UsageError("these fail without any fault")
            else:
                limit_seconds = 10.0 + 3.0 * (time.monotonic() - began)
                self.ways = json.loads(said)
        self.answer = json.dumps([noticed, limit_seconds, self.ways])
        return True


@contextlib.contextmanager
def _planted(place: Path, source: str | None) -> Iterator[None]:
    before, process = place.read_bytes(), os.getpid()
    if source is not None:
        place.write_text(source, encoding="utf-8")
    try:
        yield
    finally:
        if os.getpid() == process:  # and not a fork of it
            place.write_bytes(before)


def _forked(plugin: _First, tests: Sequence[str], limit_seconds: float) -> tuple[int, str]:
    """These tests in a process of their own: its exit code, and the answer of the plugin."""
    child, reading, writing = _fork()
    if child == 0:
        plugin.answer_to = writing
        _run(plugin, tests)
    return _ended(child, reading, writing, limit_seconds)


def _fork() -> tuple[int, int, int]:
    """A process that ends with this one; a pipe to read its answer from."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    return child, reading, writing


def _ended(child: int, reading: int, writing: int, limit_seconds: float) -> tuple[int, str]:
    os.close(writing)
    ready, _, _ = select.select([reading], [], [], limit_seconds)
    if not ready:
        os.killpg(child, signal.SIGKILL)
    with open(reading, encoding="utf-8") as pipe:
        answer = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), answer


def _catches(code: int, caught_by: str, catchers: list[str]) -> bool:
    """Whether a test failed, or did not come to an end."""
    if code in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise RuntimeError(f"no tests:\n{Path(SAID).read_text()}")
    if caught_by:
        catchers[:] = [caught_by, *(name for name in catchers if name != caught_by)][:20]
    return code != 0


def _run(plugin: _First, tests: Sequence[str]) -> NoReturn:
    """The tests, in the child; it ends with pytest's exit code."""
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        said = os.open(SAID, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(said, 1)
        os.dup2(said, 2)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        hypothesis.settings.load_profile("mutants")
        code = int(pytest.main([*OPTIONS, *tests], plugins=[plugin]))
        os.write(plugin.answer_to, plugin.answer.encode())
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
