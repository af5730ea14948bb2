"""What a launch finds around it: of a folder of packages that is not what its metadata says."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from cputune.host.interpreter import Interpreter
from cputune.host.surroundings import look_around

Make = Callable[[Path], object]


def put(site: Path, name: str, version: str | None, *, said: str | None = None) -> None:
    """A package that says ``version`` itself, with metadata that say ``said``."""
    (site / name).mkdir(parents=True)
    (site / name / "__init__.py").write_text(f'__version__ = "{version}"\n' if version else "")
    if said:
        info = site / f"{name}-{said}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {name}\nVersion: {said}\n")


def namespace(site: Path) -> None:
    put(site, "accelerate", "1.15.0", said="1.15.0")
    (site / "accelerate" / "__init__.py").unlink()


def hook(name: str, text: str) -> Make:
    def make(site: Path) -> None:
        site.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)

    return make


def editable(site: Path) -> None:
    """Metadata here, the source elsewhere: as `pip install -e` leaves it."""
    put(site.parent / "src", "accelerate", "1.15.0")
    put(site, "accelerate", "1.15.0", said="1.15.0")
    (site / "accelerate" / "__init__.py").unlink()
    (site / "accelerate").rmdir()
    hook("__editable__.accelerate-1.15.0.pth", f"{site.parent}/src\n")(site)


def look(site: Path, **variables: str):
    prefix = str(site.parents[2])
    python = Interpreter(executable="/x", version="3.11.7", prefix=prefix, paths=(str(site),))
    cwd = site.parents[3] / "work"
    cwd.mkdir(exist_ok=True)
    return look_around(python, {"HOME": str(cwd), **variables}, str(cwd))


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return tmp_path / "venv" / "lib" / "python3.11" / "site-packages"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda s: put(s, "accelerate", "1.15.0", said="1.15.0"), []),
        (lambda s: put(s, "torch", "2.13.0+cpu", said="2.13.0"), []),
        (
            lambda s: put(s, "accelerate", "1.15.0", said="0.20.0"),
            ["says 1.15.0, its metadata 0.20.0"],
        ),
        (lambda s: put(s, "torch", "2.13.0"), ["no metadata 2.13.0"]),
        (namespace, ["no __init__.py"]),
        (editable, []),
        (hook("torch", "a program of this name"), []),
    ],
    ids=["whole", "local version", "lies", "none", "namespace", "editable", "no folder"],
)
def test_what_is_not_as_its_metadata_says(make: Make, said: list[str], site: Path) -> None:
    make(site)
    site.mkdir(parents=True, exist_ok=True)
    assert [stray.how for stray in look(site).strays] == said


def test_a_port_that_somebody_listens_on_is_taken(site: Path) -> None:
    site.mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert look(site, MASTER_PORT=str(port)).ports_taken == ("MASTER_PORT",)
    assert look(site, MASTER_PORT=str(port)).ports_taken == ()


def test_a_master_without_an_address_is_named(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.mkdir(parents=True)
    getent = tmp_path / "getent"
    getent.write_text("#!/bin/sh\nexit 2\n")  # getent(1): the key is not in the database
    getent.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert look(site, MASTER_ADDR="node-1").names_nothing == ("MASTER_ADDR",)
    for there in ("localhost", "127.0.0.1", "::1", ""):
        assert look(site, MASTER_ADDR=there).names_nothing == ()
    getent.write_text("#!/bin/sh\nexit 0\n")
    assert look(site, MASTER_ADDR="node-1").names_nothing == ()


@pytest.mark.parametrize("folder", ["", "/nowhere", "/dev/null", "a\nb"])
def test_folders_that_cannot_be_listed_shadow_nothing(folder: str, site: Path) -> None:
    site.mkdir(parents=True)
    found = look(site, PYTHONPATH=folder, LD_LIBRARY_PATH=folder, HF_HOME=folder)
    assert found.strays == ()
