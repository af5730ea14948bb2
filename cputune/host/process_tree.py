"""Examines a running process and its descendants: threads, CPUs, libraries, memory, waiting.

Everything is read from /proc, twice for what changes.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cputune.host.base import Command, Host
from cputune.inside.stacks import STACK_FILE, STACK_SIGNAL
from cputune.text import cpulist

# Seconds between the two samples of each thread.
SAMPLE_SECONDS = 1.0
# A thread that used this share of a CPU between the samples is running.
BUSY_SHARE = 0.5
# A process that used less is waiting.
IDLE_SHARE = 0.02
# A process that used less may look for an answer in turns. Assumed.
POLLING_SHARE = 0.25
# USER_HZ, in which /proc counts CPU time on every architecture of torch.
TICKS_PER_SECOND = 100
# Page size of x86-64 and of most arm64 kernels.
PAGE_BYTES = 4096
# Time limit of py-spy for the stacks of one process.
STACK_SECONDS = 10.0

# Seconds in which a process must write its stack after a signal.
WRITE_SECONDS = 2.0

_OPENMP = re.compile(r"/lib(?:gomp|iomp5|omp)[^/]*\.so[^/]*$")
_ALLOCATOR = re.compile(r"/lib(?:tcmalloc|jemalloc|mimalloc)[^/]*\.so[^/]*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """A thread. ``share`` of a CPU is what it used between two samples, ``waits_in`` a kernel
    function.

    ``ready``: it was running, or ready to run, in one of the samples; ``starved``: in both of them.
    """

    id: int
    name: str
    share: float
    ready: bool = False
    starved: bool = False
    waits_in: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A running process.

    ``openmp`` and ``allocators`` are the paths of mapped libraries. ``memory_bytes`` is its memory
    on each NUMA node, empty if not known. ``catches`` are the signals that it handles. ``stopped``:
    a signal or a debugger holds it.
    """

    pid: int
    parent: int
    name: str
    argv: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    cpus: tuple[int, ...] = ()
    threads: tuple[Thread, ...] = ()
    torch: bool = False
    openmp: tuple[str, ...] = ()
    allocators: tuple[str, ...] = ()
    memory_bytes: Mapping[int, int] = field(default_factory=dict)
    catches: frozenset[int] = frozenset()
    stopped: bool = False

    @property
    def share(self) -> float:
        """CPUs that all threads used together."""
        return sum(thread.share for thread in self.threads)

    @property
    def running(self) -> int:
        """Number of running threads."""
        return sum(thread.share >= BUSY_SHARE for thread in self.threads)

    @property
    def waits(self) -> bool:
        """Whether it computes nothing and is not ready to; a thread may look for an answer."""
        return self.share <= IDLE_SHARE and not any(thread.starved for thread in self.threads)

    @property
    def polls(self) -> bool:
        """Whether it computes nothing but looks again and again, as a parent of a pool does."""
        return self.share <= POLLING_SHARE and not self.running

    @property
    def rank(self) -> str:
        """The rank from its launcher, empty if it has none."""
        names = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
        for name in names:
            if name in self.environment:
                return self.environment[name]
        return ""


def look_at_job(host: Host, pid: int) -> tuple[Running, ...]:
    """The process and its descendants that still run after a second, parents first.

    Raises ProcessLookupError, and PermissionError if it belongs to another user.
    """
    if not host.exists(f"/proc/{pid}"):
        raise ProcessLookupError(pid)
    host.read_text(f"/proc/{pid}/environ")
    return look_at(host, [pid] + list(_below(host, pid)))


def look_at(host: Host, family: Sequence[int]) -> tuple[Running, ...]:
    """Examine these processes. Those that have ended after a second are left out."""
    before = {each: _ticks(host, each) for each in family}
    begun = time.monotonic()
    time.sleep(SAMPLE_SECONDS)
    running = []
    for each in family:
        after, seconds = _ticks(host, each), time.monotonic() - begun
        try:
            running.append(_running(host, each, before[each], after, seconds))
        except (OSError, ValueError):
            continue  # it has ended, or belongs to another user
    return tuple(running)


def _below(host: Host, pid: int) -> Iterator[int]:
    for thread in _names(host, f"/proc/{pid}/task"):
        for child in _text(host, f"/proc/{pid}/task/{thread}/children").split():
            if child.isdigit():
                yield int(child)
                yield from _below(host, int(child))


# Name, state and CPU time in ticks of a thread.
ThreadSample = tuple[str, str, int]


def _ticks(host: Host, pid: int) -> dict[int, ThreadSample]:
    samples = {}
    for name in _names(host, f"/proc/{pid}/task"):
        head, _, rest = _text(host, f"/proc/{pid}/task/{name}/stat").rpartition(")")
        parts = rest.split()
        # Of the fields after the name, 11 and 12 are the times in user and kernel mode (proc(5)).
        if len(parts) > 12 and name.isdigit():
            ticks = int(parts[11]) + int(parts[12])
            samples[int(name)] = (head.partition("(")[2], parts[0], ticks)
    return samples


def _running(
    host: Host,
    pid: int,
    before: Mapping[int, ThreadSample],
    after: Mapping[int, ThreadSample],
    seconds: float,
) -> Running:
    status = host.read_text(f"/proc/{pid}/status")
    parent = re.search(r"(?m)^PPid:\s*(\d+)", status)
    allowed = re.search(r"(?m)^Cpus_allowed_list:\s*(\S+)", status)
    name = re.search(r"(?m)^Name:\s*(.+)", status)
    caught = re.search(r"(?m)^SigCgt:\s*([0-9a-f]+)", status)
    mask = 0
    if caught:
        mask = int(caught[1], 16)
    threads = []
    for thread, (called, state, ticks) in after.items():
        _, state_before, ticks_before = before.get(thread, (called, state, ticks))
        used = ticks - ticks_before
        share = used / TICKS_PER_SECOND / seconds
        waits = ""  # wchan is 0 for a thread that does not wait
        if share < BUSY_SHARE:
            waits = _text(host, f"/proc/{pid}/task/{thread}/wchan")
        threads.append(
            Thread(
                id=thread,
                name=called,
                share=share,
                ready="R" in (state, state_before),
                starved=state == state_before == "R",
                waits_in=waits.strip("0"),
            )
        )
    paths = set(re.findall(r"(?m)\s(/\S+)$", _text(host, f"/proc/{pid}/maps")))
    parent_pid, short_name = 0, ""
    cpus: tuple[int, ...] = ()
    if parent:
        parent_pid = int(parent[1])
    if name:
        short_name = name[1].strip()
    if allowed:
        cpus = cpulist.parse(allowed[1])
    stopped = after.get(pid, ("", "", 0))[1] in ("T", "t")
    return Running(
        pid=pid,
        parent=parent_pid,
        name=short_name,
        argv=tuple(_text(host, f"/proc/{pid}/cmdline").rstrip("\0").split("\0")),
        environment=_environment(_text(host, f"/proc/{pid}/environ")),
        cpus=cpus,
        threads=tuple(threads),
        torch=any("/libtorch_cpu" in path for path in paths),
        openmp=tuple(sorted(path for path in paths if _OPENMP.search(path))),
        allocators=tuple(sorted(path for path in paths if _ALLOCATOR.search(path))),
        memory_bytes=_memory(_text(host, f"/proc/{pid}/numa_maps")),
        catches=frozenset(number + 1 for number in range(64) if mask >> number & 1),
        stopped=stopped,
    )


def _environment(text: str) -> dict[str, str]:
    variables = {}
    for part in text.split("\0"):
        name, equals, value = part.partition("=")
        if equals:
            variables[name] = value
    return variables


def _memory(text: str) -> dict[int, int]:
    """Bytes on each NUMA node, from numa_maps (N0=12 counts pages of kernelpagesize_kB)."""
    sizes: dict[int, int] = {}
    for line in text.splitlines():
        size = re.search(r"kernelpagesize_kB=(\d+)", line)
        page = PAGE_BYTES
        if size:
            page = int(size[1]) * 1024
        for node, pages in re.findall(r"\bN(\d+)=(\d+)", line):
            sizes[int(node)] = sizes.get(int(node), 0) + int(pages) * page
    return sizes


def python_stack(host: Host, process: Running) -> tuple[tuple[str, ...], str]:
    """Python's frames of the main thread, the innermost first, or why they are not known.

    py-spy reads them. If it cannot, and the process has a handler of faulthandler, its signal is
    sent, which neither stops nor changes the process.
    """
    frames, reason = _by_spy(host, process.pid)
    if frames:
        return frames, ""
    number = _stack_signal(host, process)
    if number is None or not host.live:
        return (), reason
    frames = _by_signal(host, process.pid, number)
    if frames:
        return frames, ""
    name = f"signal {number}"
    if number in set(signal.Signals):
        name = signal.Signals(number).name
    return (), f"it was asked by {name}, and wrote no stack to a file"


def _by_spy(host: Host, pid: int) -> tuple[tuple[str, ...], str]:
    program = host.which("py-spy")
    if program is None:
        return (), "py-spy is not installed (pip install py-spy)"
    argv = (program, "dump", "--nonblocking", "--json", "--pid", str(pid))
    try:
        done = host.run(Command(argv=argv, timeout_seconds=STACK_SECONDS))
        threads = json.loads(done.stdout)
    except (OSError, ValueError):
        return (), "py-spy could not read it: run the doctor as the same user, or as root"
    if not isinstance(threads, list):
        return (), "py-spy found no Python in it"
    of_main = sorted(threads, key=lambda thread: thread.get("thread_name") != "MainThread")
    frames = []
    if of_main:
        frames = of_main[0].get("frames", [])
    return tuple(_frame(frame) for frame in frames), ""


_REGISTERS = re.compile(r"faulthandler\s*\.\s*register\(\s*(?:signum\s*=\s*)?(?:signal\.)?(SIG\w+)")


def _stack_signal(host: Host, process: Running) -> int | None:
    """The signal with which faulthandler of a process writes its stack, or None.

    Other handlers of SIGUSR1 requeue a job, or end it.
    """
    if STACK_SIGNAL in process.catches:
        files = _open_files(host, process.pid)
        if any(path.endswith(f"/{STACK_FILE}") for path in files):
            return STACK_SIGNAL
    for word in process.argv:
        if not word.endswith(".py"):
            continue
        folder = host.real_path(f"/proc/{process.pid}/cwd")
        text = _text(host, os.path.join(folder, word))
        for name in _REGISTERS.findall(text):
            number = getattr(signal, name, None)
            if number in process.catches:
                return int(number)
    return None


def _by_signal(host: Host, pid: int, number: int) -> tuple[str, ...]:
    """The stack that a process writes to one of its open files after this signal."""
    before = {path: _size(path) for path in _open_files(host, pid)}
    try:
        os.kill(pid, number)
    except OSError:
        return ()
    until = time.monotonic() + WRITE_SECONDS
    while time.monotonic() < until:
        time.sleep(0.05)
        for path, size in before.items():
            written = _written_since(path, size)
            if "(most recent call first)" in written and written.endswith("\n"):
                return _frames_of(written)
    return ()


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:  # it was removed
        return 0


def _written_since(path: str, size: int) -> str:
    """What a file has beyond this size, of its first megabyte; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(size)
            return file.read(1 << 20).decode(errors="replace")
    except OSError:
        return ""


def _open_files(host: Host, pid: int) -> list[str]:
    """Regular files that a process has open and that we can read."""
    paths: dict[str, None] = {}
    for number in _names(host, f"/proc/{pid}/fd"):
        path = host.real_path(f"/proc/{pid}/fd/{number}")
        if os.path.isfile(path):
            paths[path] = None
    return list(paths)


def _frames_of(written: str) -> tuple[str, ...]:
    """The frames of the thread that got the signal, in faulthandler's form."""
    head = re.search(r"(?:Current thread [^\n]*|Stack )\(most recent call first\):\n", written)
    lines = ""
    if head:
        lines = written[head.end() :]
    traces = re.findall(r"(?m)\A(?:  File .*\n)+", lines)
    if traces:
        frames = re.findall(r'  File "([^"]*)", line (\d+) in (.*)', traces[0])
    else:
        frames = []
    return tuple(_frame({"filename": f, "line": n, "name": name}) for f, n, name in frames)


def _frame(frame: Mapping[str, object]) -> str:
    """``all_reduce (torch/distributed/distributed_c10d.py:3252)``."""
    file = str(frame.get("filename", "")).rpartition("site-packages/")[2]
    file = re.sub(r"^.*/lib/python3[.\d]*/", "", file)
    return f"{frame.get('name')} ({file}:{frame.get('line')})"


def peers_of(host: Host, pid: int) -> tuple[str, ...]:
    """Addresses and ports (``10.0.0.7:443``) of its established TCP connections. IPv4 only."""
    inodes = set()
    for number in _names(host, f"/proc/{pid}/fd"):
        socket = re.fullmatch(r"socket:\[(\d+)\]", _link(host, f"/proc/{pid}/fd/{number}"))
        if socket:
            inodes.add(socket[1])
    peers = []
    for line in _text(host, f"/proc/{pid}/net/tcp").splitlines()[1:]:
        parts = line.split()
        # 01 is an established connection, 02 one that is being opened (net/tcp_states.h).
        if len(parts) > 9 and parts[3] in ("01", "02") and parts[9] in inodes:
            address, _, port = parts[2].partition(":")
            # The kernel prints the four bytes of an address in the order of the processor.
            octets = bytes.fromhex(address)[::-1]
            peers.append(f"{'.'.join(map(str, octets))}:{int(port, 16)}")
    return tuple(dict.fromkeys(peers))


def _link(host: Host, path: str) -> str:
    return host.real_path(path).rpartition("/")[2]


def _text(host: Host, path: str) -> str:
    try:
        return host.read_text(path)
    except (OSError, ValueError):
        return ""


def _names(host: Host, path: str) -> tuple[str, ...]:
    try:
        return host.list_dir(path)
    except (OSError, ValueError):
        return ()
