"""The clock sees what others did to this process, and nothing else."""

import io

import pytest

from cputune.inside import meter as clock


class FakeProc:
    """``/proc/stat``, ``schedstat`` of one thread, and this process's CPU time."""

    def __init__(self) -> None:
        self.delay_seconds = self.own_seconds = self.busy_seconds = self.steal_seconds = 0.0
        self.now = 0.0
        self.runs = {"1": 0.0}

    def stat(self) -> str:
        ticks = round(self.busy_seconds / clock.TICK_SECONDS)
        stolen = round(self.steal_seconds / clock.TICK_SECONDS)
        return (
            f"cpu  9 9 9 9 9 9 9 9 0 0\n"
            f"cpu0 {ticks} 0 0 777 5 0 0 {stolen} 0 0\n"
            f"cpu1 99999 0 0 777 5 0 0 99 0 0\n"
            "intr 1 2 3\n"
        )


@pytest.fixture
def proc(monkeypatch: pytest.MonkeyPatch) -> FakeProc:
    fake = FakeProc()
    monkeypatch.setattr(clock.os, "sched_getaffinity", lambda pid: {0})
    monkeypatch.setattr(clock.time, "process_time", lambda: fake.own_seconds)
    monkeypatch.setattr(clock, "_children", dict)
    monkeypatch.setattr(clock, "_siblings", lambda cpus: {})
    monkeypatch.setattr(clock, "open", lambda *a, **k: io.StringIO(fake.stat()), raising=False)
    monkeypatch.setattr(clock.time, "monotonic", lambda: fake.now)
    monkeypatch.setattr(clock, "_threads", lambda: (dict(fake.runs), {"1": fake.delay_seconds}))
    yield fake
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("seconds", "delayed"),
    [
        ({"delay_seconds": 0.48, "own_seconds": 0.5, "busy_seconds": 1.0}, 0.48),  # a neighbour
        ({"delay_seconds": 0.3, "own_seconds": 1.0, "busy_seconds": 1.0}, clock.TICK_SECONDS),
        ({"delay_seconds": 0.0004, "busy_seconds": 0.01}, 0.0),  # what telling a step costs
        # our own CPU time is counted finer than that of all: others took nothing
        ({"delay_seconds": 0.3, "own_seconds": 1.5, "busy_seconds": 1.0}, clock.TICK_SECONDS),
        ({"steal_seconds": 0.25}, 0.25),  # by a hypervisor
    ],
)
def test_what_others_take_is_a_delay_and_own_threads_are_not(
    proc: FakeProc, seconds: dict[str, float], delayed: float
) -> None:
    delay = clock.Delay()
    vars(proc).update(seconds, now=1.0)
    assert delay.lap() == pytest.approx(delayed)


def steps_of_4_ms(proc: FakeProc, count: int, **growth: float) -> list[float]:
    """What laps say of steps in each of which so much was counted; /proc/stat counts in ticks."""
    delay, said = clock.Delay(), []
    for _ in range(count):
        proc.now += 0.004
        for name, seconds in growth.items():
            if name in ("1", "2"):
                proc.runs[name] = proc.runs.get(name, 0.0) + seconds
            else:
                setattr(proc, name, getattr(proc, name) + seconds)
        said.append(delay.lap())
    return said


def test_threads_of_a_rank_on_one_core_do_not_disturb_its_short_steps(proc: FakeProc) -> None:
    own = {"own_seconds": 0.004, "busy_seconds": 0.004, "1": 0.002, "2": 0.002}
    assert not any(steps_of_4_ms(proc, 100, delay_seconds=0.002, **own))


def test_a_neighbour_disturbs_short_steps_from_the_first_one_on(proc: FakeProc) -> None:
    own = {"own_seconds": 0.002, "busy_seconds": 0.004, "1": 0.0018, "2": 0.0002}
    assert min(steps_of_4_ms(proc, 100, delay_seconds=0.002, **own)) > 0.1 * 0.004


def test_a_neighbour_of_many_threads_is_seen_once_ticks_tell(proc: FakeProc) -> None:
    own = {"own_seconds": 0.002, "busy_seconds": 0.004, "1": 0.001, "2": 0.004}
    said = steps_of_4_ms(proc, 200, delay_seconds=0.002, **own)
    assert not any(said[:20])
    assert min(said[130:]) > 0.1 * 0.004


def test_own_threads_on_one_core_beside_a_process_that_takes_little(proc: FakeProc) -> None:
    own = {"own_seconds": 0.00384, "busy_seconds": 0.004, "1": 0.002, "2": 0.00184}
    delays = steps_of_4_ms(proc, 400, delay_seconds=0.002, **own)
    assert max(delays[130:]) <= 0.1 * 0.004


def test_what_ran_while_a_rank_stood_still_is_no_delay(proc: FakeProc) -> None:
    delay = clock.Delay()
    for _ in range(40):
        proc.now += 0.5
        proc.busy_seconds += 0.5  # the turn of its rival
        delay.forget()
        proc.now, proc.busy_seconds = proc.now + 0.02, proc.busy_seconds + 0.02
        proc.own_seconds, proc.delay_seconds = proc.own_seconds + 0.02, proc.delay_seconds + 0.01
        proc.runs = {thread: proc.runs.get(thread, 0.0) + 0.01 for thread in ("1", "2")}
        assert delay.lap() <= 0.1 * 0.02 + 1e-9


def test_without_proc_stat_the_threads_delay_stands(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*args: object, **kwargs: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(clock, "open", missing, raising=False)
    delay = clock.Delay()
    proc.delay_seconds = 0.3
    assert delay.lap() == pytest.approx(0.3)


def test_the_live_machine_is_read() -> None:
    delay = clock.Delay()
    assert all(clock._threads())
    assert delay.lap() >= 0.0


def test_children_are_no_others() -> None:
    import subprocess

    with subprocess.Popen(["sleep", "60"]) as child:
        assert child.pid in clock._children()
        child.kill()


def test_other_ranks_on_the_same_cpus_are_no_others() -> None:
    import subprocess
    import sys

    rank = (
        "import os; from cputune.inside import meter;"
        "cpus = {f'cpu{cpu}' for cpu in os.sched_getaffinity(0)};"
        "print(*meter._siblings(cpus), *meter._siblings({'cpu-1'}), sep=',')"
    )
    launcher = (
        "import subprocess, sys; other = subprocess.Popen(['sleep', '60']);"
        f"seen = subprocess.check_output([sys.executable, '-c', {rank!r}], text=True);"
        "other.kill(); print(seen.strip() == str(other.pid))"
    )
    assert subprocess.check_output([sys.executable, "-c", launcher], text=True) == "True\n"
