"""Data for the scripts; the whole matrix takes half an hour: only ``make test-scripts`` runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "matrix" not in config.option.markexpr:
        for item in items:
            if item.get_closest_marker("matrix"):
                item.add_marker(pytest.mark.skip(reason="`make test-scripts` runs the matrix"))


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny models and data on disk; made by a child, which loads what they need."""
    directory = tmp_path_factory.mktemp("place")
    script = Path(__file__).parent / "local.py"
    subprocess.run([sys.executable, str(script), str(directory)], check=True)
    return directory
