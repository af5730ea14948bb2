"""Kernel knobs, shared memory, who computes, GPUs, capabilities, names, dead preloads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hosts.builder import machine

from cputune import HostFacts, probe
from cputune.host.facts import Frequency

CPU = "sys/devices/system/cpu"


def test_the_governor_of_every_cpu_is_read_not_that_of_the_first(tmp_path: Path) -> None:
    files = {
        f"{CPU}/cpufreq/policy{cpu}/scaling_governor": "powersave" if cpu > 1 else "performance"
        for cpu in range(4)
    }

    settings = probe(machine(tmp_path, cores=4, files=files)).settings

    assert settings.governor == "performance,powersave"
    assert settings.frequencies == (
        Frequency(cpus=(0, 1), governor="performance"),
        Frequency(cpus=(2, 3), governor="powersave"),
    )


def facts(root: Path, *, files: dict[str, str] | None = None, **record: Any) -> HostFacts:
    return probe(machine(root, cores=4, files=files, record=record))


def test_dead_preloads_are_those_known_not_to_be_there(tmp_path: Path) -> None:
    entries = ("/gone.so", "/there.so", "/never/looked/at.so", "libplain.so", "/usr/$LIB/x.so")
    more = ("libtcmalloc.so.4", "libjemalloc.so.2", "${CONDA_PREFIX}/lib/libjemalloc.so")
    found = facts(
        tmp_path,
        environment={"LD_PRELOAD": ":".join((*entries, *more))},
        paths={"/gone.so": False, "/there.so": True, "/usr/$LIB/x.so": False},
        directories={"/usr/lib64": ["libjemalloc.so.2"]},
    )
    assert found.preload_missing == ("/gone.so", "libtcmalloc.so.4", more[-1])
