"""Trees that are empty, cut off, or full of garbage: never an exception, never a guess."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from golden_texts import Golden
from hosts.builder import Cgroup, machine
from rows import every_row

from cputune import HostError, probe
from cputune.report.machine_text import host_document

GARBAGE = [b"", b"\n", b"\0" * 64, b"\xff\xfe\x00garbage\x80"]
GARBAGE += [b"-1", b"0-", b"9" * 5000, b"a:b\n" * 9]


@every_row("garbage", GARBAGE)
def test_every_file_may_hold_garbage(tmp_path: Path, garbage: bytes) -> None:
    host = machine(
        tmp_path, sockets=2, cores=2, smt=2, cgroup=Cgroup(path="/a", quota=2), record={}
    )
    for directory, _, names in os.walk(tmp_path):
        for name in names:
            Path(directory, name).write_bytes(garbage)

    document = host_document(probe(host))

    assert document["cpu"]["isa"] == []
    json.dumps(document, allow_nan=False)


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    host = machine(tmp_path, cores=2, files={"proc/cpuinfo": None})
    os.mkfifo(tmp_path / "proc/cpuinfo")

    facts = probe(host)

    assert "not a regular file" in (facts.why_unknown("cpu.vendor") or "")


def test_a_link_out_of_the_tree_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("vendor_id : Stolen\n")
    root = tmp_path / "tree"
    host = machine(root, cores=2, files={"proc/cpuinfo": None})
    (root / "proc/cpuinfo").symlink_to(secret)
    (root / "sys/fs").symlink_to("/sys/fs")

    facts = probe(host)

    assert facts.cpu.vendor is None
    assert facts.limits.cgroup_version is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", '{"schema": "cputune.record/9"}', "\0", "[" * 100_000),
        *('{"packages": 5', '{"packages": 5}', '{"pacakges": []}', '{"affinity": "0-"}'),
        '{"processes": [{"pid": -1}]}',
    ],
)
def test_a_damaged_record_is_refused(tmp_path: Path, text: str, golden: Golden) -> None:
    """Before, some of it was silence: "Python 3.11.7, no torch", exit 0."""
    with golden.raises(HostError):
        machine(tmp_path, cores=2, files={"record.json": text})
