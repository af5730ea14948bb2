"""Machines that differ in nothing but what is installed on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from clean_machine import topology
from unknown_machine import UNKNOWN

from cputune import HostFacts
from cputune.host.facts import Package

TODAY = {"torch": "2.13.0", "transformers": "5.23.0", "accelerate": "1.15.0", "numpy": "2.4.6"}
IPEX_ERA = {
    "torch": "2.8.0",
    "intel_extension_for_pytorch": "2.8.0",
    "transformers": "4.55.4",
    "accelerate": "1.7.0",
    "numpy": "2.2.6",
}


def machine(
    packages: Mapping[str, str | None],
    *,
    python: str | None = "3.11.9",
    environment: Mapping[str, str] | None = None,
    accelerators: tuple[str, ...] | None = (),
    isa: tuple[str, ...] = ("amx_bf16", "avx512_bf16", "avx512f"),
    cores: int = 4,
    location: str | None = "/venv/site-packages",
) -> HostFacts:
    return replace(
        UNKNOWN,
        cpu=replace(UNKNOWN.cpu, vendor="GenuineIntel", architecture="x86_64", isa=isa),
        topology=topology(sockets=1, cores=cores, smt=1, numa_nodes=()),
        python=python,
        packages=tuple(
            Package(name=name, version=version, location=location)
            for name, version in packages.items()
        ),
        environment=dict(environment or {}),
        accelerators=accelerators,
    )
