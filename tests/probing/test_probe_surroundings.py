"""GPUs, names, dead preloads, read from machines built by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hosts.builder import machine

from cputune.facts import HostFacts
from cputune.probing import probe

NO_DRIVERS = dict.fromkeys(("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/kfd", "/dev/dxg"), False)


def facts(root: Path, *, files: dict[str, str] | None = None, **record: Any) -> HostFacts:
    return probe(machine(root, cores=4, files=files, record=record))


def test_no_driver_is_no_gpu_and_no_answer_is_unknown(tmp_path: Path) -> None:
    assert facts(tmp_path / "a", paths=NO_DRIVERS).accelerators == ()
    assert facts(tmp_path / "b", paths={"/dev/kfd": True}).accelerators == ("amd",)
    silent = facts(tmp_path / "c")
    assert silent.accelerators is None
    assert silent.why_unknown("accelerators")


@pytest.mark.parametrize(
    ("mask", "held"), [("000001ffffffffff", True), ("00000000a80425fb", False)]
)
def test_sys_nice_is_a_bit_of_the_capabilities(tmp_path: Path, mask: str, held: bool) -> None:
    found = facts(tmp_path, files={"/proc/self/status": f"Name:\tx\nCapEff:\t{mask}\n"})
    assert found.sys_nice is held


def test_the_own_name_is_looked_up_in_etc_hosts(tmp_path: Path) -> None:
    hosts = "127.0.0.1 localhost\n127.0.1.1 box box.local # Debian\n10.0.0.7 boxer\n"
    files = {"/proc/sys/kernel/hostname": "box\n", "/etc/hosts": hosts}
    assert facts(tmp_path, files=files).network.hostname_addresses == ("127.0.1.1",)


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
