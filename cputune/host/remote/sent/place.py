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

OURS = "placed-by-cputune"


def main() -> None:
    """Put the files of a launch there, or remove them."""
    asked = json.loads(sys.argv[1])
    folder = asked["folder"]
    if asked["files"] is None:
        if os.path.exists(os.path.join(folder, OURS)):
            shutil.rmtree(folder, ignore_errors=True)
            while os.path.basename(os.path.dirname(folder)).startswith("cputune-"):
                folder = os.path.dirname(folder)
                with contextlib.suppress(OSError):  # another launch is in it
                    os.rmdir(folder)
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
