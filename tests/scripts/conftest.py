"""Data for the scripts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny models and data on disk; made by a child, which loads what they need."""
    directory = tmp_path_factory.mktemp("place")
    script = Path(__file__).parent / "local.py"
    subprocess.run([sys.executable, str(script), str(directory)], check=True)
    return directory
