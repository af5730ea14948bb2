"""A rank that needs no torch: it says what one would say, a step each few milliseconds.

``light.py SECONDS`` makes steps that last so long.

It goes wrong where FAULT says how: the rank that is the FAULT_AT-th (from 0) to begin does
so at its third step; who began is counted in the file FAULT_BOOK, and FAULT_BOOK.struck is
written just before. Ranks of the equivalence check do not count: a study goes on without its
answers. The text says ``environ``, so that ranks are plain new processes and nobody imports
torch for them.
"""

import contextlib
import ctypes
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time

from cputune.inside import ASK_VARIABLE, state
from cputune.inside.messages import Speaker

WORLD = int(os.environ.get("WORLD_SIZE", "1"))
THREADS = int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1))
DTYPES = {"bf16": "bfloat16", "fp16": "float16"}
SAMPLES = 8 // WORLD
SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 0.01 / min(THREADS * WORLD, 2)

speaker = Speaker()


def is_struck():
    """Whether this is the rank that goes wrong."""
    if not os.environ.get("FAULT") or os.environ.get(ASK_VARIABLE):
        return False
    with pathlib.Path(os.environ["FAULT_BOOK"]).open("ab") as book:
        book.write(b"x")
        book.flush()
        return book.tell() == 1 + int(os.environ["FAULT_AT"])


def out_of_memory():
    held = []
    while True:
        held.append(bytearray(b"x") * (16 << 20))


def out_of_address_space():
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    out_of_memory()


def flood():
    for _ in range(1024):
        os.write(1, b"all work and no play\n" * ((1 << 20) // 21))


def deaf():
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN)


def daemons():
    for _ in range(3):
        argv = [sys.executable, "-c", "import time; time.sleep(600)"]
        subprocess.Popen(argv, start_new_session=True)


def send(data):
    speaker._socket.sendall(data)


FAULTS = {
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "segfault": lambda: ctypes.string_at(0),
    "memory": out_of_memory,
    "address space": out_of_address_space,
    "hangs": lambda: time.sleep(3600),
    "flood": flood,
    "deaf": deaf,
    "daemons": daemons,
    "closes": lambda: (speaker.close(), time.sleep(3600)),
    "rubbish": lambda: (send(b"\xff\xfe{[" * 4096 + b"\n"), time.sleep(3600)),
    "endless": lambda: [send(b"9" * (1 << 16)) for _ in range(128)],
    "untrue": lambda: send(b'{"event": "step", "number": "many", "seconds": []}\n'),
    "forges": lambda: send(b'{"event": "note", "text": "\\u001b[2J\\ntrial 99: 1 samples/s"}\n'),
}

struck = is_struck()
speaker.say(
    {
        "event": "state",
        **state.read(),
        "world_size": WORLD,
        "backend": "gloo" if WORLD > 1 else None,
        "threads": THREADS,
        "dtype": DTYPES.get(os.environ.get("ACCELERATE_MIXED_PRECISION", ""), "float32"),
        "optimizer": {"class": "AdamW", "fused": True, "foreach": False},
        "ipex": False,
        "framework": "accelerate",
        "samples": SAMPLES,
    }
)
number = 0
while True:
    number += 1
    if struck and number == 3:
        pathlib.Path(os.environ["FAULT_BOOK"] + ".struck").touch()
        FAULTS[os.environ["FAULT"]]()
    time.sleep(SECONDS)
    speaker.say(
        {
            "event": "step",
            "number": number,
            "seconds": SECONDS,
            "samples": SAMPLES,
            "loss": 1.0,
            "delayed": 0.0,
        }
    )
    speaker.await_turn()
