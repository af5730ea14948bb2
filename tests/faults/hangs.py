"""Never makes a step, and does not let itself be interrupted; it leaves children of its own."""

import pathlib
import signal
import subprocess
import sys
import time

for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
child = subprocess.Popen(
    [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
)
pathlib.Path(sys.argv[1]).write_text(str(child.pid))
time.sleep(600)
