"""What becomes of padding, in a process that has torch (``padding_cases.py``)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.torch
def test_padding_is_cut_where_nothing_changes_and_nowhere_else() -> None:
    cases = Path(__file__).with_name("padding_cases.py")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "--noconftest", str(cases)),
            *("-p", "no:cacheprovider", "-p", "no:randomly", "-o", "filterwarnings="),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # tiny models: threads would only wait
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
