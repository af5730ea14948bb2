"""Copies the files of a launch to this host, to the path that they have on the host that starts it.

The question has ``folder``, ``files`` (name: text) and the names of ``programs``. Without files the
folder is removed. An existing folder, on a disk that the hosts share, is left as it is.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time

OURS = "placed-by-cputune"
# Seconds for which ending ranks may still write into the folder while it is removed.
REMOVAL_SECONDS = 10.0


def remove(folder: str) -> None:
    """Remove a folder that was copied here, and its parents of ours if they are empty.

    The mark is removed last, because a rank that ends may remove the folder at the same time, and
    either may be interrupted.
    """
    try:
        names = os.listdir(folder)
        is_ours = OURS in names or not names
    except OSError:  # it is gone
        is_ours = False
    deadline = time.monotonic() + REMOVAL_SECONDS
    while is_ours and os.path.isdir(folder) and time.monotonic() < deadline:
        with contextlib.suppress(OSError):  # the other one removes it, or writes into it
            for name in os.listdir(folder):
                path = os.path.join(folder, name)
                if os.path.isdir(path):
                    shutil.rmtree(path, ignore_errors=True)
                elif name != OURS:  # the socket of a relay that was killed
                    os.unlink(path)
            if set(os.listdir(folder)) <= {OURS}:
                shutil.rmtree(folder)
        time.sleep(0.1)
    while os.path.basename(os.path.dirname(folder)).startswith("cputune-"):
        folder = os.path.dirname(folder)
        with contextlib.suppress(OSError):  # another launch is in it, or it is gone
            os.rmdir(folder)


def main() -> None:
    """Copy the files of a launch, or remove them."""
    task = json.loads(sys.argv[1])
    folder = task["folder"]
    if task["files"] is None:
        remove(folder)
    elif not os.path.isdir(folder):
        for name, text in dict(task["files"], **{OURS: ""}).items():
            path = os.path.join(folder, name)
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            mode = 0o600
            if name in task["programs"]:
                mode = 0o700
            os.chmod(path, mode)
        os.makedirs(os.path.join(folder, "scratch"), exist_ok=True)
    print(json.dumps({"placed": folder}))


if __name__ == "__main__":
    main()
