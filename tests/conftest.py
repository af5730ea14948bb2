"""What every test shares: an environment that is as it was afterwards."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from golden_texts import Golden, path_of
from in_process import Ended, Run

if TYPE_CHECKING:
    from cputune import Result

_INTERRUPTING = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)

# Whoever starts the suite in the background (nohup, a CI runner) may have these ignored, and
# every process of a test would inherit that.
for _number in (signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Whoever runs the suite may have a configuration of their own. A test of files lets them in.
os.environ["CPUTUNE_CONFIG"] = "none"
# No result of a test is kept in their history: below a file no folder can be made.
os.environ["XDG_STATE_HOME"] = "/dev/null/state"
# xdist tells its workers 80 columns, where no terminal tells any.
os.environ.pop("COLUMNS", None)


@pytest.fixture(autouse=True)
def _environment_unchanged() -> Iterator[None]:
    before = dict(os.environ)
    affinity = os.sched_getaffinity(0)
    directory = os.getcwd()
    handlers = {number: signal.getsignal(number) for number in _INTERRUPTING}
    yield
    sys.modules.pop("cputune_applied", None)  # parts of a plan that a test has set
    for number, handler in handlers.items():
        signal.signal(number, handler)  # an interrupted tune passes over later ones for good
    now = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
    before.pop("PYTEST_CURRENT_TEST", None)
    assert now == before, "a test changed the environment"
    assert os.sched_getaffinity(0) == affinity, "a test changed the affinity"
    assert os.getcwd() == directory, "a test changed the working directory"


@pytest.fixture(scope="session")
def result() -> Result:
    """Of a study of all plans of a small machine that makes steps without noise."""
    from tuner.fakes import SMALL, VARIED, FakeRunner, truthful

    import cputune

    runner = FakeRunner(truthful())
    tuned = cputune.tune(SMALL.workload, facts=SMALL.facts, runner=runner, knobs=VARIED)
    return replace(tuned, asked={})  # nobody narrowed it: a new knob only makes no more plans


@pytest.fixture
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Golden:
    """Compare a text that users read with the one that was reviewed (golden_texts.py)."""
    # by the names, not by the nodeid: xdist appends "@group" to that
    chain = request.node.listchain()
    within = chain[chain.index(request.node.getparent(pytest.Module)) + 1 :]
    test = "::".join(node.name for node in within)
    project = str(Path(__file__).parents[1])
    hidden = {str(tmp_path): "TMP", sys.executable: "PYTHON", project: "PROJECT"}
    hidden[datetime.now(timezone.utc).date().isoformat()] = "DATE"
    update = request.config.getoption("--update-golden")
    return Golden(path_of(request.path), test, hidden, update)


@pytest.fixture
def cputune(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command in this process; no traceback is in what it says."""
    from cputune.cli import main

    monkeypatch.setenv("PIP_NO_INDEX", "1")  # no test asks an index what it has today

    def run(*words: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["cputune", *words])
        # click names the program after it: `python -m pytest` would be part of what is said
        monkeypatch.setattr(sys.modules["__main__"], "__package__", None, raising=False)
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return Ended(int(ended.value.code or 0), out, err)

    return run


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the test, in which it runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where results are kept; without it none is."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


_LAUNCHES = ("torch", "consumer")
_ASKED_FOR = {
    # what runs a test only where it is asked for: by `-m` with the marker's name, or one of these
    "matrix": ("matrix",),  # make test-scripts
    "fixes": ("fixes",),  # make test-fixes
    "thorough": ("consumer", "thorough"),  # make test-consumers
    "nodes": ("nodes",),  # make test-nodes
    "vm": ("vm",),  # make test-vm
    "ipex": ("ipex",),  # make test-ipex
}


SLOW = """
test_docs_commands test_wheel figures/test_figures nodes/test_probed
cli/test_cli_completion cli/test_cli_help cli/test_cli_next_step cli/test_cli_progress
cli/test_cli_run cli/test_cli_signals cli/test_cli_tune cli/test_streams
doctor/test_advice doctor/test_checkfile_emitted doctor/test_fixes_fit doctor/test_doctor_typed
doctor/hosts/test_hosts_reached
emitters/test_damaged_results emitters/test_emit_cli emitters/test_emit_contract emitters/test_sizes
emitters/test_launch_scripts
ranks/test_hopeless ranks/test_launched ranks/test_living ranks/test_runner
report/test_notebook report/test_report_page verifier/test_verify_documents
tuner/test_stores tuner/test_tune_storage tuner/test_tune_study tuner/test_tune_time
"""
"""Files that take some ten seconds each: `make test-fast` leaves them out."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what has a target of its own; what starts ranks is one group, begun first.

    Two launches at once would only share the cores.
    """
    left = {
        marker
        for marker, names in _ASKED_FOR.items()
        if not any(name in config.option.markexpr for name in names)
    }
    out = [item for item in items if any(item.get_closest_marker(marker) for marker in left)]
    config.hook.pytest_deselected(items=out)
    kept = set(items) - set(out)
    items[:] = [item for item in items if item in kept]
    slow = {Path(__file__).parent / f"{name}.py" for name in SLOW.split()}
    for item in items:
        if any(item.get_closest_marker(name) for name in _LAUNCHES):
            item.add_marker(pytest.mark.xdist_group("launches"))
        if item.path in slow:
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/ anew")
