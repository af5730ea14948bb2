"""Who computes beside us while a machine is looked at."""

from __future__ import annotations

import pytest
from golden_texts import Golden

from cputune.host import Host, Process
from cputune.host.probing.load import look_around

QUIET_PRESSURE = "some avg10=0.40 avg60=0.10 avg300=0.00 total=1"


class FakeHost(Host):
    """A machine that is looked at twice: what runs there, and the ticks of its CPUs."""

    def __init__(
        self,
        *processes: tuple[str, float],
        steal: int = 0,
        pressure: str | None = QUIET_PRESSURE,
        stat: bool = True,
    ) -> None:
        self._processes = tuple(
            Process(pid=number, name=name, cpu_share=share)
            for number, (name, share) in enumerate(processes, 100)
        )
        self._steals = [steal, 0]
        self._pressure = pressure
        self._stat = stat

    def read_text(self, path: str) -> str:
        if path == "/proc/stat" and self._stat:
            steal = self._steals.pop() if len(self._steals) > 1 else self._steals[0]
            return f"cpu  100 0 0 {1000 + (100 - steal if steal else 0)} 0 0 0 {steal} 0 0\n"
        if path == "/proc/pressure/cpu" and self._pressure:
            return self._pressure
        raise FileNotFoundError(path)

    def processes(self) -> tuple[Process, ...]:
        return self._processes


def neighbours(host: FakeHost) -> tuple[str, ...]:
    return look_around(host, pause=lambda seconds: None)


def test_other_virtual_machines_are_seen_as_steal(golden: Golden) -> None:
    golden(neighbours(FakeHost(steal=20)))


@pytest.mark.parametrize(("percent", "seen"), [(60, True), (3, False)])
def test_other_containers_are_seen_as_pressure(percent: int, seen: bool) -> None:
    found = neighbours(FakeHost(pressure=f"some avg10={percent}.00 avg60=1.00 total=1"))
    assert found == ((f"other containers (CPU pressure {percent} %)",) if seen else ())


def test_what_cannot_be_read_is_no_one() -> None:
    assert neighbours(FakeHost(pressure=None, stat=False)) == ()
