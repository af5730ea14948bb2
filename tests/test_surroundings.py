"""What a launch finds around it: modules that hide others, folders, a port that is taken."""

from __future__ import annotations

import errno
import io
import json
import os
import socket
import sys
from pathlib import Path

import pytest
from in_process import ran

from cputune.host import Surroundings, surroundings
from cputune.host.interpreter import Interpreter
from cputune.host.surroundings import Around, look_around


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The packages of an environment, torch and numpy among them."""
    site = tmp_path / "venv" / "lib" / "python3.11" / "site-packages"
    for name in ("torch", "numpy"):
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").touch()
    return site


def look(site: Path, launch: Around | None = None, **variables: str) -> Surroundings:
    prefix = str(site.parents[2])
    python = Interpreter(executable="/x", version="3.11.7", prefix=prefix, paths=(str(site),))
    cwd = site.parents[3] / "work"
    cwd.mkdir(exist_ok=True)
    return look_around(python, {"HOME": str(cwd), **variables}, launch or Around(folder=str(cwd)))


def test_what_is_imported_instead_of_a_library(site: Path) -> None:
    work, mine = site.parents[3] / "work", site.parents[3] / "mine"
    (mine / "numpy").mkdir(parents=True)
    work.mkdir()
    for file in ("numpy/__init__.py", "train.py", "trl.py"):
        (mine / file).touch()
    for file in ("torch.py", "logging.py"):
        (work / file).touch()
    strays = look(site, PYTHONPATH=str(mine)).strays
    # trl is not installed, so that nothing is hidden by one's own
    assert [(one.name, one.path, one.how) for one in strays] == [
        ("logging", f"{work}/logging.py", "the folder of the script"),
        ("torch", f"{work}/torch.py", "the folder of the script"),
        ("numpy", f"{mine}/numpy/__init__.py", "PYTHONPATH"),
    ]


def test_folders_are_looked_at_if_they_would_be_made(site: Path) -> None:
    new = site / "not" / "yet"
    place = look(site, HF_HOME=str(new)).place("HF_HOME")
    assert (place.exists, place.writable, place.path) == (False, True, str(new))
    assert place.free_bytes > 0
    unusable = look(site, TMPDIR="/proc").place("TMPDIR")
    assert not unusable.writable


def test_a_port_that_somebody_listens_on_is_taken(site: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert look(site, MASTER_PORT=str(port)).ports_taken == (port,)
        assert look(site, Around(port=str(port)), MASTER_PORT="1").ports_taken == (port,)
    for free in (str(port), "", "99999", "x"):
        assert look(site, MASTER_PORT=free).ports_taken == ()


def test_the_weights_of_a_launch_are_counted_where_they_lie(site: Path) -> None:
    hub, folder = site.parents[3] / "hub", site.parents[3] / "mine"
    snapshot = hub / "models--google--tiny" / "snapshots" / "abc"
    for there, name in ((snapshot, "model.safetensors"), (folder, "pytorch_model.bin")):
        there.mkdir(parents=True)
        (there / name).write_bytes(b"x" * 1000)
    (snapshot / "pytorch_model.bin").write_bytes(b"x" * 1000)  # the same weights once more
    for model in ("google/tiny", str(folder)):
        assert look(site, Around(model=model), HF_HUB_CACHE=str(hub)).model_bytes == 1000
    for model in ("", "google/other", "/nowhere"):
        assert look(site, Around(model=model), HF_HUB_CACHE=str(hub)).model_bytes is None


def test_what_a_launch_writes_is_looked_at(site: Path) -> None:
    place = look(site, Around(output=str(site / "out"))).place("--output_dir")
    assert place.writable
    assert place.free_files is None or place.free_files > 0


def test_a_module_that_hides_pythons_own_is_reported_and_not_imported_by_us(tmp_path: Path) -> None:
    hidden = ("json", "logging", "random", "typing")
    for name in hidden:
        (tmp_path / f"{name}.py").write_text("raise SystemExit(1)")
    program = Path(sys.executable).with_name("cputune")
    variables = {**os.environ, "PYTHONPATH": f"{tmp_path}/."}
    done = ran([program, "doctor", "--json", "--fail-on", "never"], env=variables, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = [row for row in json.loads(done.stdout)["findings"] if row["code"] == "module-shadowed"]
    assert [row["evidence"].split()[1] for row in found] == [*hidden]


@pytest.mark.parametrize(
    ("address", "known", "unknown"),
    [
        ("node1", False, True),
        ("node1.example.com", False, True),
        ("node1", True, False),
        ("10.0.0.7", False, False),
        ("2001:db8::7", False, False),
        ("", False, False),
    ],
)
def test_a_name_of_rank_0_that_has_no_address(
    site: Path, monkeypatch: pytest.MonkeyPatch, address: str, known: bool, unknown: bool
) -> None:
    def resolve(name: str, port: object) -> list[object]:
        if not known:
            raise OSError(-2, "Name or service not known")
        return [(2, 1, 6, "", (name, 0))]

    def connect(*_: object) -> None:
        raise ConnectionRefusedError

    monkeypatch.setattr("socket.getaddrinfo", resolve)
    monkeypatch.setattr(socket.socket, "connect", connect)
    assert look(site, MASTER_ADDR=address).address_unknown is unknown


@pytest.mark.parametrize(
    ("contained", "parents", "started_with", "left"),
    [
        (False, ("bash", "sshd"), "PMI_RANK=0", True),
        (False, ("bash", "mpirun"), "PMI_RANK=0", False),
        (False, ("bash", "mpirun"), "HOME=/", True),
        (False, ("hydra_pmi_proxy",), "", False),
        (True, ("bash",), "PMI_RANK=0", False),
        (True, ("bash",), "HOME=/", True),
        (True, ("bash",), "", False),
        (True, ("python",), "HOME=/", False),
    ],
)
def test_variables_of_an_mpi_whose_launcher_is_not_above(
    site: Path,
    monkeypatch: pytest.MonkeyPatch,
    contained: bool,
    parents: tuple[str, ...],
    started_with: str,
    left: bool,
) -> None:
    chain = dict(enumerate((*parents, "systemd"), start=70))

    def read(path: str, **_: object) -> io.StringIO:
        pid = int(path.split("/")[2])
        if path.endswith("/environ"):
            return io.StringIO(started_with)
        above = 0 if chain[pid] == "systemd" else pid + 1
        return io.StringIO(f"{pid} ({chain[pid]}) S {above} 1 1")

    monkeypatch.setattr("os.getppid", lambda: 70)
    monkeypatch.setattr(surroundings, "_in_container", lambda: contained)
    monkeypatch.setattr(surroundings, "open", read, raising=False)
    assert look(site, PMI_RANK="0").mpi_left_over is left
    assert look(site).mpi_left_over is False


@pytest.mark.parametrize(
    ("address", "error", "problem"),
    [
        ("10.0.0.7", OSError(errno.EHOSTUNREACH, "No route to host"), "No route to host"),
        ("10.0.0.7", OSError(errno.ENETUNREACH, "Network is unreachable"), "unreachable"),
        ("10.0.0.7", TimeoutError("timed out"), "no answer within 1 s at port 4711"),
        ("10.0.0.7", ConnectionRefusedError(errno.ECONNREFUSED, "refused"), ""),
        ("10.0.0.7", OSError(errno.EMFILE, "Too many open files"), ""),
        ("127.0.0.1", OSError(errno.ENETUNREACH, "Network is unreachable"), ""),
        ("", OSError(errno.ENETUNREACH, "Network is unreachable"), ""),
    ],
)
def test_the_address_of_rank_0_is_tried(
    site: Path, monkeypatch: pytest.MonkeyPatch, address: str, error: OSError, problem: str
) -> None:
    def connect(*_: object) -> None:
        raise error

    monkeypatch.setattr(socket.socket, "connect", connect)
    by_option = look(site, Around(address=address, port="4711")).unreachable
    by_variable = look(site, MASTER_ADDR=address, MASTER_PORT="4711").unreachable
    assert by_option == by_variable
    if problem:
        assert by_option.startswith(f"{address}: ")
        assert problem in by_option
    else:
        assert by_option == ""


def test_a_machine_without_loopback(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert look(site).loopback_fails == ""

    def bind(*_: object) -> None:
        raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")

    monkeypatch.setattr(socket.socket, "bind", bind)
    assert look(site).loopback_fails == "Cannot assign requested address"
