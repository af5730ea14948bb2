"""The picture of a machine: readable from 2 to 512 CPUs, and it shows who is where."""

from __future__ import annotations

import codecs
from pathlib import Path

import pytest
from hosts.builder import machine

from cputune.facts import Topology
from cputune.probing import probe
from cputune.report.machine import picture
from cputune.text import spelled


def topology_of(root: Path, **shape: object) -> Topology:
    return probe(machine(root, **shape)).topology  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shape", "most_lines"),
    [
        ({"sockets": 1, "cores": 2}, 3),
        ({"sockets": 2, "cores": 28, "smt": 2}, 5),
        ({"sockets": 2, "cores": 128, "smt": 2}, 9),
        ({"sockets": 2, "cores": 128, "smt": 2, "nodes": 8}, 17),
        ({"sockets": 8, "cores": 28, "smt": 2}, 17),
        ({"sockets": 2, "cores": 520}, 3),
    ],
)
def test_it_stays_small_and_within_80_columns(
    tmp_path: Path, shape: dict[str, object], most_lines: int
) -> None:
    lines = picture(topology_of(tmp_path, **shape))
    assert max(map(len, lines)) <= 80
    assert len(lines) <= most_lines
    assert all(line.strip() for line in lines)


def test_it_draws_every_core_once(tmp_path: Path) -> None:
    lines = picture(topology_of(tmp_path, sockets=2, cores=28, smt=2))
    assert lines[:2] == [
        "socket 0  node 0  28 cores  64 GiB  CPUs 0-27,56-83",
        "  ■■■■■■■■ ■■■■■■■■ ■■■■■■■■ ■■■■",
    ]
    assert lines[-1] == "■ allowed core (2 CPUs)"


def test_interleaved_numbers_are_written_short(tmp_path: Path) -> None:
    numbers = [*range(0, 80, 2), *range(1, 80, 2)]
    lines = picture(topology_of(tmp_path, sockets=2, cores=40, cpu_numbers=numbers))
    assert lines[0].endswith("CPUs 0,2…78")


def test_what_is_not_allowed_looks_different(tmp_path: Path) -> None:
    lines = picture(topology_of(tmp_path, cores=4, smt=2, status_allowed="0,1,5"))
    assert lines[1] == "  ◧■··"
    assert lines[2] == ("■ allowed core (2 CPUs)   ◧ only some of its CPUs allowed   · not allowed")


def test_slow_cores_of_a_hybrid_look_different(tmp_path: Path) -> None:
    lines = picture(topology_of(tmp_path, cores=8, e_cores=4, smt=2, like="alder-lake"))
    assert lines[1] == "  ■■■■□□□□"


def test_offline_cpus_are_named(tmp_path: Path) -> None:
    lines = picture(topology_of(tmp_path, cores=8, offline="6-7"))
    assert "offline: CPUs 6-7" in lines[-1]


def test_ranks_stand_on_their_cores(tmp_path: Path) -> None:
    bound = {"rank 0": range(1, 4), "rank 1": range(5, 8), "workers": (0, 4, 5)}
    lines = picture(topology_of(tmp_path, sockets=2, cores=4), bound=bound)
    assert [line for line in lines if line.startswith("  ")] == ["  2000", "  2+11"]
    legend = " ".join(lines[4:])
    for text in ("0 rank 0: CPUs 1-3", "1 rank 1: CPUs 5-7", "2 workers: CPUs 0,4-5", "+ shared"):
        assert text in legend


def test_a_terminal_without_unicode_gets_ascii(tmp_path: Path) -> None:
    codecs.register_error(spelled.__name__, spelled)
    text = "\n".join(picture(topology_of(tmp_path, cores=4, offline="3")))
    assert b"  ###\n" in text.encode("ascii", spelled.__name__)
