"""Start a launcher with the words that were typed; its ranks are this file, and end at once.

    python launched.py '{"words": ["torchrun", "--numa-binding", "node"], "seconds": 20}'

``words`` are those before the script. Prints a line of JSON: {"code": 1, "output": …}, with the end
of what the launcher and its ranks wrote; ``code`` is null if it had not ended after these seconds.
Temporary files are in a folder that is removed.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile

OUTPUT_CHARACTERS = 20_000  # of the end, with the failure
GRACE_SECONDS = 3  # after SIGTERM, in which torchrun ends its ranks


def launch(words: list[str], seconds: float) -> None:
    """Start the launcher, and end it in time with all that it started."""
    with tempfile.TemporaryDirectory(prefix="cputune-launcher-") as folder:
        variables = {**os.environ, "TMPDIR": folder, "AS_RANK": "1"}
        child = subprocess.Popen(
            [*words, __file__],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = child.communicate(timeout=seconds)
            code: int | None = child.returncode
        except subprocess.TimeoutExpired:
            output, code = ended(child), None
    print(json.dumps({"code": code, "output": output[-OUTPUT_CHARACTERS:]}))


def ended(child: "subprocess.Popen[str]") -> str:
    """End a launcher that is late: it ends its ranks at SIGTERM. What it has written."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.communicate(timeout=GRACE_SECONDS)[0]
    return ""


def main() -> None:
    if "AS_RANK" in os.environ:
        return
    task = json.loads(sys.argv[1])
    launch(task["words"], task["seconds"])


if __name__ == "__main__":
    main()
