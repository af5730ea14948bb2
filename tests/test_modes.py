"""Who may read what is written, and that a link planted there leads nowhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from emitters.emit_machines import one_socket
from golden_texts import Golden

from cputune import CputuneError
from cputune.cli import cli
from cputune.host.files import write_atomically
from cputune.tuner.storage import StudyStorage


@pytest.fixture(params=[0o022, 0o077], ids=["umask 022", "umask 077"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_what_is_written_has_the_modes_of_the_table(umask: int, workdir: Path) -> None:
    one_socket().result.save("cputune.json")
    words = ["emit", "--other-machine", "--format", "pytorchjob", "-o", "launch"]
    assert CliRunner().invoke(cli, words).exit_code == 0
    StudyStorage(workdir / "open.db", resume=False).close()
    StudyStorage(workdir / "private.db", resume=False, private=True).close()

    assert mode(workdir / "launch" / "pytorchjob.yaml") == 0o644 & ~umask
    assert mode(workdir / "launch" / "pytorchjob.kubectl.sh") == 0o755 & ~umask
    assert mode(workdir / "open.db") == 0o644 & ~umask
    assert mode(workdir / "private.db") == 0o600


@pytest.mark.parametrize("there", [True, False], ids=["to a file", "to nothing yet"])
def test_a_planted_link_is_replaced_and_not_followed(
    tmp_path: Path, there: bool, golden: Golden
) -> None:
    victim = tmp_path / "victim"
    if there:
        victim.write_text("precious")
    for name in ("cputune.json", "cputune.db"):
        (tmp_path / name).symlink_to(victim)

    write_atomically(tmp_path / "cputune.json", "{}", force=True)
    if there:
        with golden.raises(CputuneError):
            StudyStorage(tmp_path / "cputune.db", resume=False)
        assert victim.read_text() == "precious"
    else:
        StudyStorage(tmp_path / "cputune.db", resume=False).close()
        assert not victim.exists()
