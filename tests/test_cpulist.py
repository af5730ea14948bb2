"""CPU sets as text: what is written is read back, and nothing else is read."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from rows import every_row

from cputune.text import cpulist

cpu_sets = st.frozensets(st.integers(0, 600), max_size=200)


@given(cpu_sets, st.integers(0, 4))
def test_the_kernel_s_groups_of_32_bits_are_read(cpus: frozenset[int], empty_groups: int) -> None:
    value = sum(1 << cpu for cpu in cpus)
    groups = [f"{value >> shift & 0xFFFFFFFF:08x}" for shift in range(0, 640, 32)]
    text = ",".join(["00000000"] * empty_groups + groups[::-1]) + "\n"

    assert cpulist.parse_mask(text) == tuple(sorted(cpus))
    assert cpulist.parse_mask(text.strip().lstrip("0,") or "0") == tuple(sorted(cpus))


@every_row(
    "text",
    ["x", "3-1", "99999999999"],
)
def test_what_is_no_list(text: str) -> None:
    with pytest.raises(ValueError):
        cpulist.parse(text)


@every_row(
    "text",
    [
        "0x",
        "123456789,0",
    ],
)
def test_what_is_no_mask(text: str) -> None:
    with pytest.raises(ValueError):
        cpulist.parse_mask(text)


def test_damage_does_not_take_for_ever() -> None:
    with pytest.raises(ValueError):
        cpulist.parse(",".join(["0-65535"] * 100_000))
    with pytest.raises(ValueError):
        cpulist.parse_mask("f" * 1_000_000)


@every_row(
    ("text", "cpus"),
    [
        ("", ()),
        ("\n", ()),
        ("0-3,8\n", (0, 1, 2, 3, 8)),
        ("8,0-1", (0, 1, 8)),
        (" 1 , 2 ", (1, 2)),
        ("3\0", (3,)),
    ],
)
def test_lists(text: str, cpus: tuple[int, ...]) -> None:
    assert cpulist.parse(text) == cpus


@given(cpu_sets)
def test_a_mask_is_read_back(cpus: frozenset[int]) -> None:
    assert cpulist.parse_mask(hex(sum(1 << cpu for cpu in cpus))) == tuple(sorted(cpus))
