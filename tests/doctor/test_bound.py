"""What variables say about CPUs, ranks and threads, as their programs read it."""

from __future__ import annotations

from dataclasses import replace

from clean_machine import CLEAN
from rows import every_row

from cputune import HostFacts
from cputune.doctor.variables import (
    pin_domains,
)


def env(**variables: str) -> HostFacts:
    return replace(CLEAN, environment=variables)


@every_row(
    ("text", "domains"),
    [
        ("[0x3,0xc]", ((0, 1), (2, 3))),
        ("[0x3,", None),
        ("-0x3]", None),
        ("[zz]", None),
        ("socket", None),
    ],
)
def test_masks_of_intel_mpi(text: str, domains: tuple[tuple[int, ...], ...] | None) -> None:
    assert pin_domains(env(I_MPI_PIN_DOMAIN=text)) == domains
