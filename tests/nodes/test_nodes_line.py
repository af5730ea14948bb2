"""A line to an agent that runs as a local child: questions, children, channels, and every end."""

from __future__ import annotations

import ast
import base64
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nodes.fakes import FakeReach

from cputune.errors import Unreachable
from cputune.host import Command
from cputune.nodes import relay, wire
from cputune.nodes.children import below
from cputune.nodes.line import Line
from cputune.nodes.named import Node
from cputune.nodes.sent import sent_source

NODE = Node(name="node1")


@pytest.fixture
def line() -> Iterator[Line]:
    with Line.open(FakeReach(), NODE) as opened:
        yield opened


def _alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def _soon(true: Callable[[], bool]) -> bool:
    until = time.monotonic() + 30
    while not true() and time.monotonic() < until:
        time.sleep(0.02)
    return true()


def test_what_is_sent_is_python_3_7() -> None:
    ast.parse(sent_source(), feature_version=(3, 7))
    later = ("removeprefix", "removesuffix", "waitstatus_to_exitcode", "pidfd_open", "cached_prop")
    assert not [name for name in later if f".{name}(" in sent_source()]
    assert not [text for text in ("import cputune", "from cputune") if text in sent_source()]


def test_questions_are_answered_and_errors_travel(line: Line) -> None:
    assert line.ask("read", path="/proc/self/stat").split()[0] == str(line.hello["pid"])
    with pytest.raises(FileNotFoundError):
        line.ask("read", path="/nowhere")
    cpus, nothing = line.many([{"do": "names", "path": "/proc/self"}, {"do": "read", "path": "/"}])
    assert "stat" in cpus
    assert isinstance(nothing, OSError)
    with pytest.raises(RuntimeError, match="KeyError"):
        line.ask("nothing of the kind")
    assert line.ask("exists", path="/proc")  # the line went on


def test_a_command_is_run_beside_other_questions(line: Line) -> None:
    code = "import sys; print(5); print(6, file=sys.stderr); sys.exit(3)"
    done = line.run(Command(argv=(sys.executable, "-c", code)))
    assert (done.returncode, done.stdout, done.stderr) == (3, "5\n", "6\n")
    late = line.run(Command(argv=("sh", "-c", "sleep 60 & sleep 60"), timeout_seconds=0.2))
    assert late.returncode is None
    with pytest.raises(FileNotFoundError):
        line.run(Command(argv=("/no/such/program",)))


def test_a_channel_carries_bytes_both_ways_and_closes_by_halves(line: Line) -> None:
    code = (
        "import socket, sys\n"
        "end = socket.socket(fileno=int(sys.argv[1]))\n"
        "heard = b''\n"
        "while piece := end.recv(1 << 16): heard += piece\n"
        "end.sendall(heard[::-1])\n"
        "print('heard', len(heard), flush=True)\n"
    )
    child = line.spawn([sys.executable, "-c", code, "{channel}"], channel=True, log="echo")
    assert child.socket is not None
    sent = os.urandom(3 << 20)
    child.socket.sendall(sent)
    child.socket.shutdown(socket.SHUT_WR)
    assert _all_of(child.socket) == sent[::-1]
    child.socket.close()
    assert child.wait(30) == 0
    assert line.tail("echo") == f"heard {len(sent)}\n"


def test_connections_over_there_become_connections_here(line: Line, tmp_path: Path) -> None:
    ours = socket.socket(socket.AF_UNIX)
    ours.bind(str(tmp_path / "post"))
    ours.listen()
    place = line.listen("ranks", to=str(tmp_path / "post"))
    rank = socket.socket(socket.AF_UNIX)
    rank.connect(place)
    rank.sendall(b"hello\n")
    heard, _ = ours.accept()
    heard.settimeout(30)
    assert heard.recv(100) == b"hello\n"
    heard.sendall(b"turn\n")
    assert rank.recv(100) == b"turn\n"
    rank.close()
    assert heard.recv(100) == b""
    for end in (heard, ours):
        end.close()


def test_files_are_put_and_go_with_the_line() -> None:
    with Line.open(FakeReach(), NODE) as line:
        folder = Path(line.put({"inside/meter.py": b"x = 1\n"}))
        assert (folder / "inside/meter.py").read_bytes() == b"x = 1\n"
    assert not folder.exists()


def test_what_was_started_is_stopped_continued_and_killed(line: Line) -> None:
    child = line.spawn(["sh", "-c", "sleep 300 & sleep 300"])
    assert _soon(lambda: len(below(child.pid)) == 2)
    line.signal(child.pid, signal.SIGSTOP, itself=True)
    assert _soon(lambda: " T " in Path(f"/proc/{child.pid}/stat").read_text())
    line.signal(child.pid, signal.SIGCONT, itself=True)
    assert child.returncode is None
    line.kill(child.pid)
    assert child.wait(30) == -signal.SIGKILL


@pytest.mark.parametrize("way", ["close", "kill the agent", "kill the near side"])
def test_nothing_stays_whatever_happens(way: str, tmp_path: Path) -> None:
    told = tmp_path / "told"
    code = (
        "import sys, time\n"
        f"sys.path.append({str(Path(__file__).parents[1])!r})\n"
        "from nodes.fakes import FakeReach\n"
        "from cputune.nodes.line import Line\n"
        "from cputune.nodes.named import Node\n"
        "line = Line.open(FakeReach(), Node(name='node1'))\n"
        # one below it has left its session, as daemons do
        "child = line.spawn(['sh', '-c', 'setsid sleep 300 & sleep 300'])\n"
        f"words = '%d %d %s' % (line.hello['pid'], child.pid, line.folder)\n"
        f"open({str(told)!r}, 'w').write(words + '\\n')\n"
        "sys.stdin.readline()\n"
        "line.close()\n"
    )
    near = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        assert _soon(lambda: told.exists() and told.read_text().endswith("\n"))
        agent, child, folder = told.read_text().split()
        assert _soon(lambda: len(below(int(child))) == 2)
        started = [int(child), *below(int(child))]
        if way == "kill the agent":
            os.kill(int(agent), signal.SIGTERM)
        elif way == "kill the near side":
            near.kill()
        else:
            assert near.stdin is not None
            near.stdin.write(b"\n")
            near.stdin.flush()
        assert _soon(lambda: not any(map(_alive, [int(agent), *started])))
        assert _soon(lambda: not Path(folder).exists())
    finally:
        near.kill()
        near.communicate()


def test_an_agent_that_hears_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "BEAT_SECONDS", 1e6)
    monkeypatch.setattr(relay, "SILENCE_SECONDS", 1e6)
    silent = sent_source().replace("SILENCE_SECONDS = 20.0", "SILENCE_SECONDS = 0.3")
    monkeypatch.setattr(relay, "sent_line", lambda: _packed(silent))
    with Line.open(FakeReach(), NODE) as line:
        child = line.spawn(["sleep", "300"])
        assert _soon(lambda: line.lost is not None)
        assert _soon(lambda: not _alive(child.pid) and not Path(line.folder).exists())


def test_a_far_side_that_falls_silent_is_lost_and_everybody_hears_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay, "BEAT_SECONDS", 0.1)
    monkeypatch.setattr(relay, "SILENCE_SECONDS", 1.0)
    line = Line.open(FakeReach(), NODE)
    heard: list[str] = []
    line.on_lost = heard.append
    child = line.spawn(["sleep", "300"], channel=True)
    os.kill(line.hello["pid"], signal.SIGSTOP)
    try:
        with pytest.raises(Unreachable, match="no sign of life"):
            line.ask("clock")
        assert _soon(lambda: bool(heard))
        assert child.socket is not None
        assert child.socket.recv(1) == b""
        child.socket.close()
        with pytest.raises(Unreachable):
            child.wait(1)
    finally:
        os.kill(line.hello["pid"], signal.SIGCONT)
        line.close()
    assert _soon(lambda: not _alive(child.pid))


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        ("yes garbage", "says something else"),
        ("echo 'cputune-agent/1 {'", "no message"),
        ("echo 'cputune-agent/1 {\"pid\": 1}'; head -c 100000000 /dev/zero", "longer than"),
        ("echo refused >&2; exit 255", "it ended with 255: refused"),
        ("sleep 60", "no answer in 1 s"),
    ],
)
def test_whatever_else_answers_is_named(
    says: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "LONGEST_LINE", 1 << 20)
    reach = FakeReach(instead={"node1": ("sh", "-c", says)})
    seconds = 1.0 if "no answer" in reason else 30.0
    with pytest.raises(Unreachable, match=reason), Line.open(reach, NODE, seconds=seconds) as line:
        line.ask("clock")


def test_an_answer_of_100_megabytes_is_refused(line: Line) -> None:
    bomb = base64.b64encode(zlib.compress(b" " * 100_000_000))
    folder = line.put({"bomb": b'{"z": "' + bomb + b'"}\n'})
    says = f"echo 'cputune-agent/1 {{\"pid\": 1}}'; cat {folder}/bomb; cat >/dev/null"
    reach = FakeReach(instead={"node2": ("sh", "-c", says)})
    node = Node(name="node2")
    with pytest.raises(Unreachable, match="no message"), Line.open(reach, node) as other:
        other.ask("clock")


def test_what_a_login_shell_prints_first_is_passed_over() -> None:
    class Talkative(FakeReach):
        def argv(self, node: Node, program: object) -> tuple[str, ...]:
            return ("sh", "-c", 'echo Welcome; printf "> "; exec "$@"', "sh", *program)  # type: ignore[misc]

    with Line.open(Talkative(), NODE) as line:
        assert line.ask("exists", path="/")


def test_without_python_or_with_one_too_old_it_is_said() -> None:
    from cputune.nodes.reach import Ssh
    from cputune.nodes.sent import TOO_OLD

    node = Node(name="node1")
    assert Ssh().explain(node, 127, "")[0] == "there is no python3"
    assert Ssh().explain(node, 1, f"{TOO_OLD} 3.6\n")[0] == "its Python is 3.6"
    with pytest.raises(Unreachable, match="127"):
        Line.open(FakeReach(), node, pythons=("/no/python",))


def _packed(source: str) -> bytes:
    return base64.b64encode(zlib.compress(source.encode())) + b"\n"


def _all_of(end: socket.socket) -> bytes:
    end.settimeout(60)
    heard = b""
    while piece := end.recv(1 << 20):
        heard += piece
    return heard
