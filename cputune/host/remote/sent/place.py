"""Puts the files of a launch on this host, at the path that they have where it is started.

The question has ``folder``, ``files`` (name: text) and those that are ``programs``; without files
the folder is removed. A folder that is there, on a disk that hosts share, stays as it is.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time

OURS = "placed-by-cputune"
REMOVAL_SECONDS = 10.0
"""So long ranks that are ending may still write into the folder while it is removed."""


def remove(folder: str) -> None:
    """Remove a folder that was put here, and those of ours above it that are empty then.

    The mark goes last: a rank that ends may remove the folder too, and either may be cut off.
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
                if name != OURS:
                    shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
            if set(os.listdir(folder)) <= {OURS}:
                shutil.rmtree(folder)
        time.sleep(0.1)
    while os.path.basename(os.path.dirname(folder)).startswith("cputune-"):
        folder = os.path.dirname(folder)
        with contextlib.suppress(OSError):  # another launch is in it, or it is gone
            os.rmdir(folder)


def main() -> None:
    """Put the files of a launch there, or remove them."""
    asked = json.loads(sys.argv[1])
    folder = asked["folder"]
    if asked["files"] is None:
        remove(folder)
    elif not os.path.isdir(folder):
        for name, text in {**asked["files"], OURS: ""}.items():
            path = os.path.join(folder, name)
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(path, 0o700 if name in asked["programs"] else 0o600)
        os.makedirs(os.path.join(folder, "scratch"), exist_ok=True)
    print(json.dumps({"placed": folder}))


if __name__ == "__main__":
    main()
