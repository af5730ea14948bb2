"""What a model is asked, what becomes of padding and of the scale of losses, where torch is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.torch
@pytest.mark.timeout(600)
def test_nothing_changes_but_what_is_computed_in_vain() -> None:
    names = ("equivalence_cases.py", "padding_cases.py", "scale_cases.py")
    cases = [str(Path(__file__).with_name(name)) for name in names]  # one process imports torch
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "--noconftest", *cases),
            *("-p", "no:cacheprovider", "-p", "no:randomly", "-o", "filterwarnings="),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # tiny models: threads would only wait
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
