"""Machines that ``cputune doctor --record`` recorded, one archive each, beside what lscpu said.

They are guests of ``make test-vm``, recorded in states that are hard to build by hand
truthfully. ``python -m pytest -m vm --update-golden`` records them anew.
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from cputune import RecordedHost

DIRECTORY = Path(__file__).parent / "recorded"
NAMES = ("whole", "cpus-offline", "smt-off", "container")


def open_recording(name: str, directory: Path) -> RecordedHost:
    """Unpack a recording below a directory and return the host that replays it."""
    with tarfile.open(DIRECTORY / f"{name}.tar.xz") as archive:
        unpack(archive, directory)
    return RecordedHost(directory)


def unpack(archive: tarfile.TarFile, directory: Path) -> None:
    """Unpack; a file's place and kind are all that counts."""
    for member in archive.getmembers():
        target = directory / member.name
        if member.isdir():
            target.mkdir(parents=True, exist_ok=True)
        else:
            file = archive.extractfile(member)
            assert file is not None, f"{member.name} is no file"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read())


def lscpu_of(name: str) -> str:
    """What lscpu said in the guest when it was recorded."""
    return (DIRECTORY / f"{name}.lscpu").read_text(encoding="utf-8")


def keep(name: str, tree: Path, lscpu: str) -> None:
    """Write a recording; the same tree gives the same archive."""
    DIRECTORY.mkdir(exist_ok=True)
    (DIRECTORY / f"{name}.lscpu").write_text(lscpu, encoding="utf-8")
    with tarfile.open(DIRECTORY / f"{name}.tar.xz", "w:xz") as archive:
        for path in sorted(tree.rglob("*")):
            member = tarfile.TarInfo(str(path.relative_to(tree)))
            if path.is_dir():
                member.type, member.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(member)
            else:
                content = path.read_bytes()
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
