import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from golden_texts import Golden

from cputune.host import Command
from cputune.host.children import end, marked
from cputune.inside import rank
from cputune.ranks.job import observe

SPEAK = """
import os, sys, time
from cputune.inside.messages import Speaker
speaker = Speaker()
rank = int(os.environ["RANK"])
speaker.say({"event": "state", "rank": rank, "world_size": 2, "threads": 1})
for number in range(int(sys.argv[1])):
    speaker.say({"event": "step", "number": number + 1, "seconds": 0.01, "samples": 4})
"""


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / f"script-{len(list(tmp_path.iterdir()))}.py"
        path.write_text(textwrap.dedent(text))
        return str(path)

    return write


def command(*argv, **variables):
    return Command(argv=(sys.executable, *argv), environment={**os.environ, **variables})


def ranks(path, count, *, made=(4, 4)):
    return [command(path, str(made[rank]), RANK=str(rank)) for rank in range(count)]


def is_alive(pid):
    try:
        stat = Path("/proc", str(pid), "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_every_rank_is_heard_one_that_comes_later_too(script):
    later = SPEAK.replace("for number", "time.sleep(rank)\nfor number")
    path = script(later + "time.sleep(60)")
    seen = observe(ranks(path, 2), ranks=2, steps=3, timeout_seconds=30)
    assert seen.enough
    assert [rank.number for rank in seen.ranks] == [0, 1]
    assert all(len(rank.steps) >= 3 and rank.state["threads"] == 1 for rank in seen.ranks)
    assert seen.returncode is None
    assert seen.seconds < 30


def test_a_launch_that_ends_early_tells_how(script, golden: Golden):
    path = script(SPEAK + "print('out of luck'); sys.exit(7)")
    seen = observe(ranks(path, 2), ranks=2, steps=100, timeout_seconds=30)
    assert not seen.enough
    assert not seen.timed_out
    assert seen.returncode == 7
    golden(seen.output)
    assert [len(rank.steps) for rank in seen.ranks] == [4, 4]


def test_what_a_rank_said_last_is_its_trouble(script, golden: Golden):
    path = script(
        """
        from cputune.inside.messages import Speaker
        Speaker().say({"event": "error", "kind": "ValueError", "text": "no such model"})
        """
    )
    seen = observe([command(path)], ranks=1, steps=3, timeout_seconds=30)
    golden(seen.ranks[0].trouble)


def test_silence_ends_at_the_time_limit(script):
    path = script("import time; time.sleep(60)")
    seen = observe([command(path)], ranks=1, steps=3, timeout_seconds=0.5)
    assert seen.timed_out
    assert seen.ranks == ()


def test_a_program_that_does_not_exist_is_said(script):
    missing = Command(argv=("/no/such/launcher",))
    seen = observe([missing], ranks=1, steps=3, timeout_seconds=5)
    assert seen.returncode == 127
    assert "/no/such/launcher" in seen.output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_the_observer(number, script, tmp_path):
    pids = tmp_path / "pids"
    child = script(
        f"""
        import os, signal, subprocess, sys, time
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if len(sys.argv) < 2:
            subprocess.Popen([sys.executable, __file__, "again"], start_new_session=True)
        with open({str(pids)!r}, "a") as file:
            print(os.getpid(), file=file)
        time.sleep(60)
        """
    )
    watching = script(
        f"""
        import sys
        from cputune.host import Command
        from cputune.ranks.job import observe
        observe(
            [Command(argv=(sys.executable, {child!r}))], ranks=1, steps=3, timeout_seconds=60
        )
        """
    )
    (tmp_path / "short").mkdir()
    observer = subprocess.Popen(
        [sys.executable, watching],
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path / "short")},
    )
    _wait(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    observer.send_signal(number)
    assert observer.wait(timeout=60) != 0
    started = [int(pid) for pid in pids.read_text().split()]
    _wait(lambda: not any(is_alive(pid) for pid in started))
    _wait(lambda: not list((tmp_path / "short").iterdir()))


def _wait(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.05)


def test_only_marked_processes_are_found(script):
    path = script("import time; time.sleep(60)")
    environment = {**os.environ, "CPUTUNE_TEST_MARK": "mine"}
    child = subprocess.Popen([sys.executable, path], env=environment)
    try:
        _wait(lambda: marked("CPUTUNE_TEST_MARK", "mine"))
        assert not marked("CPUTUNE_TEST_MARK", "min")
        end(lambda: marked("CPUTUNE_TEST_MARK", "mine"), grace_seconds=1)
        assert child.wait(timeout=60) != 0  # Python that is only starting ends with 1
    finally:
        child.kill()
        child.wait()


DROPS = """
import os, torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
layers = torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1)
model = DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
mine = slice(int(os.environ["RANK"]), None, 2)
data = TensorDataset(torch.randn(32, 4)[mine], torch.randn(32, 1)[mine])
for inputs, outputs in DataLoader(data, batch_size=2):
    ((model(inputs) - outputs) ** 2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.torch
@pytest.mark.parametrize(
    ("options", "alike"),
    [
        (("--draw", "apart"), False),
        pytest.param(("--compare", "no"), True, marks=pytest.mark.matrix),
    ],
)
def test_ranks_that_draw_apart_do_so_while_they_are_observed(script, options, alike):
    """rank.py sets it in the first forward, after which the observation restores the generators."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    argv = [*launcher, rank.__file__, *options, "--", script(DROPS)]
    seen = observe([command(*argv)], ranks=2, steps=3, timeout_seconds=240)
    assert seen.enough, seen.output
    assert seen.training.dropout
    assert seen.training.draws_alike is alike
