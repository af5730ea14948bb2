"""The door to the machine: live and recorded hosts, children, whole files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from in_process import ran

from cputune import CannotError, RecordedHost, UsageError, probe
from cputune.host import Command, LiveHost, write_atomically, write_tree
from cputune.host.children import end, in_session
from cputune.host.probing.recording import record
from cputune.host.probing.scrub import HOST_NAME


def test_a_command_runs_with_the_environment_it_was_given(tmp_path: Path) -> None:
    code = "import os, sys; print(os.environ['WORD'], os.getcwd()); sys.exit('end')"
    command = Command(
        argv=(sys.executable, "-c", code), environment={"WORD": "given"}, cwd=str(tmp_path)
    )

    completed = LiveHost().run(command)

    assert completed.returncode == 1
    assert completed.stdout.split() == ["given", str(tmp_path)]
    assert completed.stderr == "end\n"


def test_a_child_that_leaves_a_process_holding_its_output_is_not_waited_for() -> None:
    code = (
        "import subprocess, sys; print('said', flush=True);"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'],"
        " start_new_session=True)"
    )
    started = time.monotonic()

    completed = LiveHost().run(Command(argv=(sys.executable, "-c", code), timeout_seconds=3.0))

    assert completed.returncode == 0
    assert time.monotonic() - started < 45  # the process that stays sleeps longer


def test_what_ignores_the_first_signals_is_killed() -> None:
    code = (
        "import signal, time; signal.signal(2, signal.SIG_IGN); signal.signal(15, signal.SIG_IGN);"
        "print(1, flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        (sys.executable, "-c", code), stdout=subprocess.PIPE, start_new_session=True
    ) as child:
        child.stdout.readline()
        end(lambda: in_session(child.pid), grace_seconds=0.2)

    assert child.returncode == -9


@pytest.mark.skipif(LiveHost().cpuid(7, 0) is None, reason="root on x86 alone can ask CPUID")
def test_cpuid_agrees_with_the_kernel() -> None:
    flags = Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split()
    basic, extended = LiveHost().cpuid(7, 0), LiveHost().cpuid(7, 1)

    for register, bit, flag in (
        (basic[1], 5, "avx2"),
        (basic[1], 16, "avx512f"),
        (basic[2], 11, "avx512_vnni"),
        (basic[3], 24, "amx_tile"),
        (extended[0], 4, "avx_vnni"),
        (extended[0], 5, "avx512_bf16"),
    ):
        assert bool(register >> bit & 1) == (flag in flags), flag


def test_the_live_host_sees_an_affinity_that_is_narrow() -> None:
    cpu = min(os.sched_getaffinity(0))
    code = (
        f"import os; os.sched_setaffinity(0, [{cpu}]); import cputune, json;"
        "print(json.dumps(cputune.probe().topology.allowed))"
    )

    child = ran((sys.executable, "-c", code), check=True)

    assert json.loads(child.stdout) == [cpu]


def test_probing_imports_nothing_that_it_judges() -> None:
    code = (
        "import sys, cputune; cputune.probe();"
        "print(*{'torch', 'transformers', 'accelerate', 'numpy', 'cpuinfo', 'click'}"
        " & set(sys.modules))"
    )

    child = ran((sys.executable, "-c", code), check=True)

    assert child.stdout.split() == []


@pytest.mark.parametrize("path", ["/../secret", "/proc/../../secret", "../secret", "/proc/\0"])
def test_no_path_leads_out_of_a_recording(tmp_path: Path, path: str) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "root/proc").mkdir(parents=True)
    host = RecordedHost(tmp_path / "root")

    assert not host.exists(path)
    with pytest.raises(OSError):
        host.read_text(path)


@pytest.mark.parametrize("levels", [1_500, 100_000])
def test_paths_deeper_than_any_are_no_file(tmp_path: Path, levels: int) -> None:
    host = RecordedHost(tmp_path)

    assert not host.exists("/a" * levels)
    with pytest.raises(OSError):
        host.list_dir("/a" * levels)


def test_links_that_go_in_circles_are_no_file(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/a").symlink_to("b")
    (tmp_path / "proc/b").symlink_to("a")
    host = RecordedHost(tmp_path)

    assert not host.exists("/proc/a")
    with pytest.raises(OSError):
        host.read_text("/proc/a")


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    write_atomically(path, "one\n")

    with pytest.raises(UsageError) as caught:
        write_atomically(path, "two\n")
    assert "--force" in (caught.value.hint or "")
    assert path.read_text() == "one\n"

    write_atomically(path, "two\n", force=True)
    assert path.read_text() == "two\n"
    with pytest.raises(CannotError):
        write_atomically(tmp_path / "no" / "out.json", "")
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.json"]


def test_an_interrupt_leaves_no_half_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "out.json", "{}")
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_writer_has_left_goes_when_the_file_is_written_again(tmp_path: Path) -> None:
    left, fresh, other = (tmp_path / f".a.json.{end}" for end in ("abcdefgh", "12345678", "other"))
    for file in (left, fresh, other):
        file.write_text("half of it")
    for file in (left, other):
        os.utime(file, (0, 0))
    write_atomically(tmp_path / "a.json", "{}")
    assert sorted(p.name for p in tmp_path.iterdir()) == [fresh.name, other.name, "a.json"]


def test_a_tree_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(CannotError):
        write_tree(tmp_path / "t", {"a": "", "a/b": "a file is no directory"})
    assert list(tmp_path.iterdir()) == []

    write_tree(tmp_path / "x/t", {"a/b": "1"})
    assert (tmp_path / "x/t/a/b").read_text() == "1"


@pytest.mark.skipif(sys.platform != "linux", reason="sysctls are files on Linux alone")
def test_the_live_machine_s_sysctls_are_read(tmp_path: Path) -> None:
    """The kernel answers ENOMEM to a read of 4 MiB or more; recordings hold plain files."""
    name = os.uname().nodename
    facts = probe(LiveHost())
    record(LiveHost(), tmp_path / "recording")

    assert LiveHost().read_text("/proc/sys/kernel/hostname").strip() == name
    assert facts.settings.kernel == os.uname().release
    assert facts.network.hostname_addresses is not None
    balancing = Path("/proc/sys/kernel/numa_balancing")
    assert (facts.settings.numa_balancing is not None) == balancing.exists()
    kept = RecordedHost(tmp_path / "recording").read_text("/proc/sys/kernel/hostname")
    assert kept.strip() == HOST_NAME
    assert LiveHost().disk_bytes(f"{tmp_path}/none") == (None, None)


def test_a_busy_neighbour_is_seen_with_its_share() -> None:
    code = "print(1, flush=True)\nwhile True: pass"
    host = LiveHost()
    with subprocess.Popen((sys.executable, "-c", code), stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        host.processes()
        found = {process.pid: process for process in host.processes()}
        child.kill()

    assert (found[child.pid].cpu_share or 0) > 0.05
    assert os.getpid() not in found
