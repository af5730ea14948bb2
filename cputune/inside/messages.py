"""What a rank reports: JSON objects, one per line, distinguished by ``event``.

The other way there is only ``TurnMessage``, to ranks that take turns with others. Both ends use
these types: the rank (``Speaker``, over a socket that is opened when it is first needed) and the
process that receives (``cputune.ranks``).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import threading
from collections.abc import Iterator
from typing import Any, BinaryIO, Literal, NoReturn, TypeAlias, TypedDict

from cputune.inside import SCRATCH_VARIABLE, SOCKET_VARIABLE, TURNS_VARIABLE

# What a script trains with; "pytorch" is its own loop over torch alone.
Framework: TypeAlias = Literal["trainer", "accelerate", "pytorch"]


class Hello(TypedDict):
    """The first line of every rank."""

    event: Literal["hello"]
    rank: int
    local_rank: int
    pid: int


class Note(TypedDict):
    """How far the rank has come, in words."""

    event: Literal["note"]
    text: str


class MaskState(TypedDict):
    """Masks of dropout as a rank sees them (``RankState``)."""

    elements: int
    seconds: float
    step_seconds: float
    attention: bool


class RankState(TypedDict, total=False):
    """What a rank really runs with, read once, when its first step is over. None: not known.

    Attributes:
        host: the name of its machine.
        threads: of torch.
        dtype: of the result of the first layer that multiplies matrices.
        mapped: files of allocators and OpenMP runtimes that are mapped into the process.
        environment: variables that native libraries have read, by name.
        ccl_workers: the CPU of each worker thread of oneCCL; ccl_workers_unknown: why they
            cannot be distinguished from other threads.
        peak_bytes: the most memory that it has held so far, files of libraries included.
        ipex: whether ``intel_extension_for_pytorch.optimize`` was called.
        executable: path of the interpreter.
        sequence_length: tokens of a sample of the first batch, for batches of tokens.
        samples: of the first optimizer step, of this rank.
        batch: samples of one forward pass, by the framework.
        accumulation: forward passes of one optimizer step, by the framework.
        parses_arguments: whether the script reads TrainingArguments from its command line.
        optimizer: its class, and which of torch's implementations it uses.
        mapped_blocks: blocks that glibc's malloc has mapped by themselves.
        huge_pages_bytes: memory in transparent huge pages.
        products_rounded: whether oneDNN rounds the factors of fp32 matmuls to bf16
            (``torch.set_float32_matmul_precision("medium")``).
        dropout: how masks were drawn so far: "bytes", or as torch does.
        masks: elements of the masks of dropout of the first step, the seconds in which torch draws
            them, seconds of that step, and whether attention drew some; missing if a plan draws
            them.
        bf16_time: how many times as long a product of matrices in bf16 takes as in fp32.
        epochs: how often the script goes through its data.
        steps_to_end: optimizer steps of the whole training of the script.
        padding: of columns that are padding in a whole batch: "cut", "may be cut", or "full" and
            why they stay; padding_unknown: why that was not found out.
        order: "length" if samples of a step have similar lengths, else why not.
        padding_share: share of padding in the tokens of the first step.
        columns_left: share of them that is left if such columns are cut.
        padding_mend: the option by which the script pads less.
        drawn: how the last loader takes its samples: "at random", "a stream", or the class of
            its sampler.
        loader_workers: processes that prepare the batches of that loader.
        gradients: "sparse" if rows that no rank has touched are not sent, else why all are.
        gradient_precision: "bf16" if gradients are sent in it, else why they are not.
        gradient_bytes: of all gradients together.
        touched_bytes: of them, without rows of large gradients that are zero in the first step.
        dataset_samples: samples of the data set; None for a stream.
        model: how many numbers in how many tensors are trained, and a digest of their shapes.
        command: the words that its interpreter was started with.
        applied: what the parts of a plan have changed in the script, by part; missing if none
            was set.
    """

    applied: dict[str, list[str]]
    pid: int
    host: str
    rank: int
    local_rank: int
    world_size: int
    backend: str | None
    threads: int | None
    affinity: list[int]
    dtype: str | None
    allocator: str
    openmp: str | None
    preload: list[str]
    mapped: list[str]
    environment: dict[str, str]
    ccl_workers: list[int] | None
    ccl_workers_unknown: str
    peak_bytes: int
    versions: dict[str, str]
    python: str
    executable: str
    sequence_length: int
    framework: Framework | None
    samples: int
    ipex: bool
    batch: int
    accumulation: int
    parses_arguments: bool
    optimizer: dict[str, Any]
    mapped_blocks: int | None
    huge_pages_bytes: int | None
    products_rounded: bool
    dropout: str
    masks: MaskState
    bf16_time: float
    epochs: float
    steps_to_end: int
    padding: str
    padding_unknown: str
    order: str
    padding_share: float
    columns_left: float
    padding_mend: str
    drawn: str
    loader_workers: int
    gradients: str
    gradient_precision: str
    gradient_bytes: int
    touched_bytes: int
    dataset_samples: int | None
    model: str
    command: list[str]


class StateMessage(RankState, TypedDict):
    """The state of a rank, sent before its first step."""

    event: Literal["state"]


class TrainedStep(TypedDict, total=False):
    """What a rank trains in a step (see ``first_steps``); fields from ``gradient`` on: first step.

    ``rates``: learning rates by group. ``samples``: a digest of their numbers, ``contents`` of
    their content; None if it cannot be computed. ``steps``: to the end of the training;
    ``epoch_steps``: of a pass over the data. ``shuffled``: the plan takes the samples in its own
    order. ``dropout``: layers would have dropped something. ``parameters``: numbers that are
    trained. ``last``: samples of the last step of an epoch. ``masked``: a plan's masks of dropout
    were drawn. ``next_draw``: a digest of what torch draws next.
    """

    rates: list[float]
    samples: int | None
    contents: int | None
    gradient: float | None
    dropout: bool
    drawn: bool
    masked: bool
    next_draw: str
    optimizer: dict[str, Any]
    unused: bool
    parameters: int
    last: int
    loader: int
    shuffled: bool
    steps: int
    epoch_steps: int


class StepMessage(TypedDict):
    """One optimizer step of this rank; ``number`` counts from 1.

    ``delayed`` is how many seconds its most delayed thread waited for a CPU because of other
    processes. ``waited`` is how long the script waited for a batch. ``size`` is how many numbers
    its batches had when they were trained on. ``trained`` is there in the first steps. ``figures``
    are there in some steps of several ranks (``applying.figures``), with ``names`` of parameters.
    """

    event: Literal["step"]
    number: int
    seconds: float
    samples: int
    loss: float | None
    delayed: float
    waited: float
    size: int
    trained: TrainedStep | None
    figures: dict[str, Any] | None


class Applied(TypedDict):
    """What the parts of a plan have changed in the script so far (``applying.shared.Setting.did``).

    Sent after the first step, also if nothing was changed, and when it grows.
    """

    event: Literal["applied"]
    did: dict[str, list[str]]


class Profiled(TypedDict):
    """Where the time of some steps of this rank went: shares by kind.

    ``reduce_seconds`` is how long its gradients were on their way in all of them. ``gflops`` are
    those of its matmuls over the whole time, None if a library does not report its own;
    ``limit_gflops`` what its cores reach in a matmul alone, of this ``dtype``.
    """

    event: Literal["profile"]
    steps: int
    seconds: float
    shares: dict[str, float]
    reduce_seconds: float
    gflops: float | None
    limit_gflops: float | None
    dtype: str | None


class ModelAnswer(TypedDict, total=False):
    """The answer of a model to a question at a point of its training (``equivalence_check``).

    ``loss``, ``gradient`` (its norm): of both trainings. ``apart``: the norm of the difference of
    both gradients, over that of the larger one. ``why``: why there is no answer; empty if there is
    nothing to check. The last message has no question, but the number of ``updates``, and whether
    samples are ``drawn`` anew.
    """

    event: Literal["answer"]
    question: str
    point: str
    loss: list[float]
    gradient: list[float]
    apart: float
    why: str
    updates: int
    drawn: bool


class Refused(TypedDict):
    """The script cannot run as the plan asks, or (``hopeless``) with any plan; the rank ends."""

    event: Literal["refused"]
    reason: str
    hopeless: bool


class Raised(TypedDict):
    """The script raised: the name of the exception, and its text."""

    event: Literal["error"]
    kind: str
    text: str


# What accelerate and torchrun raise if one of their ranks has failed.
OF_LAUNCHERS = ("CalledProcessError", "ChildFailedError")


class Ended(TypedDict):
    """The script came to its end; ``seen`` contains "Trainer" and "Accelerator" if it used them."""

    event: Literal["end"]
    seen: list[str]
    steps: int


RankMessage: TypeAlias = (
    Hello
    | Note
    | StateMessage
    | StepMessage
    | Applied
    | Profiled
    | ModelAnswer
    | Refused
    | Raised
    | Ended
)


class TurnMessage(TypedDict, total=False):
    """To a rank that takes turns: how many steps it may take before it waits again.

    ``profile``: how many of these steps are profiled, after the first one.
    """

    steps: int
    profile: int


def is_message(value: object) -> bool:
    """Whether a value read from the line can be a message."""
    return isinstance(value, dict) and isinstance(value.get("event"), str)


RANK_NAMES = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")
LOCAL_RANK_NAMES = (
    "LOCAL_RANK",
    "MPI_LOCALRANKID",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "SLURM_LOCALID",
)

# How an address begins that is relayed: ``relay:PATH``. On the host of the tuner this is the path
# of its socket, on another one that of ``remote/sent/hold.py``, with the name of the host.
RELAY = "relay:"

# The exit status of a rank whose reports reach nobody: EX_TEMPFAIL of sysexits.h.
NOT_HEARD = 75

# For the relay of a host to begin: a busy host needs long for a login.
RELAY_SECONDS = 60.0


def number_from(names: tuple[str, ...]) -> int:
    """The number in the first of these variables that has one, or 0.

    The order is accelerate's: a RANK in the environment comes before MPI's variables.
    """
    for name in names:
        value = os.environ.get(name, "")
        if value.isdigit():
            return int(value)
    return 0


class Speaker:
    """Sends messages about this rank, if a process receives them."""

    def __init__(self, path: str | None = None) -> None:
        self.path = path if path is not None else os.environ.get(SOCKET_VARIABLE, "")
        self._socket: socket.socket | None = None
        self._heard: BinaryIO | None = None
        self._pid = 0
        self._in_turns = os.environ.get(TURNS_VARIABLE) == "1"
        self._steps_left = 0
        self.to_profile = 0

    def say(self, message: RankMessage) -> None:
        """Send one message. If the receiver is gone, this process ends."""
        if not self.path:
            return
        try:
            if self._socket is None or self._pid != os.getpid():
                self._connect()
            assert self._socket is not None
            self._socket.sendall(_line(message))
        except OSError:
            leave()

    def await_turn(self) -> None:
        """If steps are taken in turns, wait until this rank may take another.

        Called between two steps, so that a stopped rank delays no other and its pause is in no
        step. ``to_profile`` is then how many steps of the turn are profiled. If the receiver is
        gone, this process ends.
        """
        if not (self.path and self._in_turns):
            return
        while self._steps_left == 0:
            assert self._heard is not None, "a rank speaks before it waits"
            try:
                line = self._heard.readline()
            except OSError:
                line = b""
            if not line:
                leave()
            turn: TurnMessage = json.loads(line)
            self._steps_left, self.to_profile = turn["steps"], turn.get("profile", 0)
        self._steps_left -= 1

    def close(self) -> None:
        """Close the connection; the next message opens it again."""
        if self._socket is not None and self._heard is not None:
            self._heard.close()
            self._socket.close()
            self._socket = None

    def _connect(self) -> None:
        connection = connected(self.path)
        self._socket, self._pid = connection, os.getpid()
        self._heard = connection.makefile("rb")
        hello: Hello = {
            "event": "hello",
            "rank": number_from(RANK_NAMES),
            "local_rank": number_from(LOCAL_RANK_NAMES),
            "pid": os.getpid(),
        }
        connection.sendall(_line(hello))
        if self.path.startswith(RELAY):
            threading.Thread(target=self._end_with, args=(connection,), daemon=True).start()

    def _end_with(self, connection: socket.socket) -> None:
        """End this process where the listener on another host goes away, whatever it waits for.

        Where ranks run on one machine, who started them ends them. The thread sleeps in the kernel.
        """
        import shutil  # noqa: F401  (for ``leave``, which has little time)

        look = select.poll()
        look.register(connection, select.POLLRDHUP)
        look.poll()
        if self._socket is connection:
            leave()


# Beside the files of a launch that were put on this host (``remote/sent/place.py``).
PLACED = "placed-by-cputune"


_LEAVING = threading.Lock()


def leave() -> NoReturn:
    """End this process, whose receiver is gone.

    The files of the launch on this host are removed too: the process that started it may have been
    killed. The first thread that notices it does this; the others wait for their end.
    """
    import shutil
    from pathlib import Path

    with _LEAVING:
        folder = Path(os.environ.get(SCRATCH_VARIABLE, "")).parent
        if (folder / PLACED).exists():
            with contextlib.suppress(OSError):  # another rank removes it too, or is still in it
                for entry in folder.iterdir():
                    if entry.name != PLACED:
                        shutil.rmtree(entry, ignore_errors=True)
                if {entry.name for entry in folder.iterdir()} <= {PLACED}:
                    shutil.rmtree(folder)
            with contextlib.suppress(OSError):  # files of another launch are in the folder above
                while (folder := folder.parent).name.startswith("cputune-"):
                    folder.rmdir()
        os._exit(NOT_HEARD)


def connected(address: str) -> socket.socket:
    """A connection to a receiver: a Unix socket's path, or ``relay:PATH``. Raises OSError."""
    if address.startswith(RELAY):
        return _relayed(address[len(RELAY) :])
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with short_path(address) as path:
        connection.connect(path)
    return connection


def _relayed(path: str) -> socket.socket:
    """A connection to the relay of this host, or to the tuner itself. Raises OSError."""
    import time

    until = time.monotonic() + RELAY_SECONDS
    while True:
        for place in (f"{path}.{os.uname().nodename}", path):
            try:
                return connected(place)
            except OSError:
                if time.monotonic() > until:
                    raise
        time.sleep(0.1)


@contextlib.contextmanager
def short_path(path: str) -> Iterator[str]:
    """The path of a Unix socket, by its folder's descriptor: at most 108 bytes (unix(7))."""
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)


def _line(message: RankMessage) -> bytes:
    return json.dumps(message).encode() + b"\n"
