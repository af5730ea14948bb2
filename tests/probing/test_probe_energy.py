"""The counters of energy, as Linux shows them."""

from __future__ import annotations

import pytest
from hosts.builder import FakeTree

from cputune.host import Host
from cputune.probing.energy import ZONES, EnergyCounters


def counters(tree: FakeTree, zone: str, name: str, microjoules: int) -> None:
    for file, content in (
        ("name", name),
        ("max_energy_range_uj", "262143328850"),
        ("energy_uj", str(microjoules)),
    ):
        tree.write(f"{ZONES}/{zone}/{file}", f"{content}\n")


COUNTED = {
    "intel-rapl:0": "package-0",
    "intel-rapl:0:0": "core",
    "intel-rapl:0:1": "dram",
    "intel-rapl:1": "psys",
    "intel-rapl-mmio:0": "package-0",
}


def test_packages_and_their_memory_are_added_up_and_nothing_is_counted_twice() -> None:
    tree = FakeTree()
    for zone, name in COUNTED.items():
        counters(tree, zone, name, 1_000_000)
    tree.write(f"{ZONES}/intel-rapl/enabled", "1\n")
    energy = EnergyCounters(tree)
    assert energy.unknown is None
    for zone, name in COUNTED.items():
        counters(tree, zone, name, 3_500_000)
    assert energy.joules() == pytest.approx(5.0)


def test_a_counter_that_begins_anew_goes_on() -> None:
    tree = FakeTree()
    counters(tree, "intel-rapl:0", "package-0", 262_143_000_000)
    energy = EnergyCounters(tree)
    counters(tree, "intel-rapl:0", "package-0", 1_671_150)
    assert energy.joules() == pytest.approx(2.0)


class FakeForbidden(FakeTree):
    def read_text(self, path: str) -> str:
        if path.endswith("energy_uj"):
            raise PermissionError(path)
        return super().read_text(path)


def test_why_it_cannot_be_read_is_said() -> None:
    assert "no RAPL" in str(EnergyCounters(Host()).unknown)
    empty, forbidden = FakeTree(), FakeForbidden()
    empty.write(f"{ZONES}/dtpm/uevent", "")
    assert "no RAPL" in str(EnergyCounters(empty).unknown)
    counters(forbidden, "intel-rapl:0", "package-0", 1)
    energy = EnergyCounters(forbidden)
    assert "root alone" in str(energy.unknown)
