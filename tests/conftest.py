"""What every test shares: an environment that is as it was afterwards."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

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


@pytest.fixture(autouse=True)
def _environment_unchanged() -> Iterator[None]:
    before = dict(os.environ)
    affinity = os.sched_getaffinity(0)
    directory = os.getcwd()
    handlers = {number: signal.getsignal(number) for number in _INTERRUPTING}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)  # an interrupted tune passes over later ones for good
    now = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
    before.pop("PYTEST_CURRENT_TEST", None)
    assert now == before, "a test changed the environment"
    assert os.sched_getaffinity(0) == affinity, "a test changed the affinity"
    assert os.getcwd() == directory, "a test changed the working directory"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write tests/golden/ anew from what is emitted"
    )
