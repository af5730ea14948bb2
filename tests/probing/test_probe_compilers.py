"""The C++ compiler that torch.compile would call."""

from __future__ import annotations

from pathlib import Path

import pytest

from cputune.host import LiveHost
from cputune.probing import probe


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH that holds nothing yet."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    return tmp_path


def program(folder: Path, name: str) -> str:
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def test_it_is_gpp_as_torch_has_it(tools: Path) -> None:
    assert probe(LiveHost()).cxx is None
    assert probe(LiveHost()).why_unknown("cxx") == "there is no g++ on PATH"
    program(tools, "clang++")
    assert probe(LiveHost()).cxx is None, "torch does not look for it by itself"
    path = program(tools, "g++")
    assert probe(LiveHost()).cxx == path


def test_it_is_another_where_cxx_names_it(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = program(tools, "clang++")
    monkeypatch.setenv("CXX", "clang++")
    assert probe(LiveHost()).cxx == path
    monkeypatch.setenv("CXX", "icpx")
    assert probe(LiveHost()).why_unknown("cxx") == "there is no icpx on PATH"
