"""The pictures of docs/report.md: the page of a study on a simulated machine, in Chromium.

    PYTHONPATH=tests:benchmarks python docs/screenshots.py

Not part of ``make doc``: the bytes of a screenshot hang on the browser and its fonts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from report.result_cases import profiled

from cputune.report.page import page

HERE = Path(__file__).parent / "screenshots"
SIZES = {"report-desktop.png": (1000, 1090), "report-phone.png": (390, 1000)}
FRAME = (
    '<!doctype html><body style="margin:0"><iframe src="page.html" '
    'style="width:{}px;height:{}px;border:0"></iframe>'
)
"""A window has a least width that a phone is narrower than; a frame has none."""


def main() -> None:
    """Take each picture."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("no chromium on PATH (Debian: apt-get install chromium)")
    HERE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "page.html").write_text(page(profiled()), encoding="utf-8")
        for name, (width, height) in SIZES.items():
            (place / "frame.html").write_text(FRAME.format(width, height), encoding="utf-8")
            argv = [chromium, "--headless=new", "--disable-gpu", "--hide-scrollbars"]
            argv += [f"--user-data-dir={place / 'profile'}", "--virtual-time-budget=30000"]
            argv += [f"--window-size={width},{height}", f"--screenshot={HERE / name}"]
            argv += ["--no-sandbox"] if os.geteuid() == 0 else []
            subprocess.run([*argv, f"file://{place / 'frame.html'}"], check=True, timeout=120)


if __name__ == "__main__":
    main()
