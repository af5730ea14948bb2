"""The line between ranks and whoever listens, and the meter that speaks on it."""

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rows import every_row

from cputune.inside import SCRATCH_VARIABLE, messages
from cputune.inside.messages import RANK_NAMES, Speaker
from cputune.inside.meter import Meter, samples_in
from cputune.ranks.listen import Inbox


@pytest.fixture
def post(tmp_path: Path) -> Iterator[Inbox]:
    post = Inbox(tmp_path)
    yield post
    post.close()


@pytest.fixture
def speaker(post: Inbox) -> Iterator[Speaker]:
    speaker = Speaker(post.address)
    yield speaker
    speaker.close()


def hear(post: Inbox, count: int) -> list[tuple[Any, dict[str, Any] | None]]:
    heard: list[tuple[Any, dict[str, Any] | None]] = []
    while len(heard) < count:
        heard += post.wait(10)
    return heard


class Shaped:
    def __init__(self, *shape: int) -> None:
        self.shape = shape


def test_a_rank_is_known_by_its_number(
    post: Inbox, speaker: Speaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        for name in RANK_NAMES:
            patch.delenv(name, raising=False)
        patch.setenv("PMI_RANK", "3")
        speaker.say({"event": "step", "number": 1, "seconds": 1.0, "samples": 4})
    (rank, hello), (again, step) = hear(post, 2)
    assert (rank, again, hello["pid"], step["number"]) == (3, 3, os.getpid(), 1)


def test_a_line_that_is_closed_is_reported(post: Inbox, speaker: Speaker) -> None:
    speaker.say({"event": "note", "text": "so long"})
    hear(post, 2)
    speaker.close()
    assert hear(post, 1)[0][1] is None


@pytest.mark.parametrize("nonsense", [b"\xff\xfe\n", b"[1, 2]\n", b"{\n"])
def test_who_talks_nonsense_is_hung_up_on(post: Inbox, nonsense: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.connect(post.address)
        stranger.sendall(nonsense)
        assert hear(post, 1) == [(None, None)]


def test_the_meter_tells_state_then_steps(post: Inbox, speaker: Speaker) -> None:
    meter = Meter(speaker)
    meter.begin("trainer")
    for loss in (2.0, 4.0):
        meter.micro_step(3, loss)
    meter.step(mean_loss=True)
    meter.micro_step(4, 1.5)
    meter.step(mean_loss=False)
    events = [event for _, event in hear(post, 5) if event is not None]
    assert [event["event"] for event in events] == ["hello", "note", "state", "step", "step"]
    state, first, second = events[2:]
    assert (state["framework"], state["samples"], state["world_size"]) == ("trainer", 6, 1)
    assert state["affinity"] == sorted(os.sched_getaffinity(0))
    assert (first["number"], first["samples"], first["loss"]) == (1, 6, 3.0)
    assert (second["number"], second["samples"], second["loss"]) == (2, 4, 1.5)
    assert second["seconds"] > 0


def test_paused_time_does_not_count_in_a_step(
    post: Inbox, speaker: Speaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cputune.inside import meter as module

    now = [100.0]
    with monkeypatch.context() as patch:
        patch.setattr(module.time, "perf_counter", lambda: now[0])
        patch.delitem(sys.modules, "torch", raising=False)  # nothing is measured by this clock
        meter = Meter(speaker)
        meter.begin("accelerate")
        now[0] += 1.0
        since = now[0]
        now[0] += 50.0
        meter.resume(since)
        meter.step(mean_loss=True)
    assert hear(post, 4)[-1][1]["seconds"] == pytest.approx(1.0)  # type: ignore[index]


@every_row(
    ("batch", "count"),
    [
        ({"scale": Shaped(), "x": Shaped(2, 2)}, 2),
        ([{"prompt": "w1"}, {"prompt": "w2"}, {"prompt": "w3"}], 3),  # GRPO
    ],
)
def test_samples_are_counted_in_any_batch(batch: object, count: int) -> None:
    assert samples_in(batch) == count


@pytest.mark.parametrize("is_placed", [True, False])
def test_a_rank_that_has_lost_its_listener_takes_what_was_placed_for_it_along(
    is_placed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cputune-launch" / "cputune-files"
    (folder / "scratch").mkdir(parents=True)
    if is_placed:
        (folder / messages.PLACED).touch()
    monkeypatch.setenv(SCRATCH_VARIABLE, str(folder / "scratch"))
    monkeypatch.setattr(os, "unlink", denied)  # a file that somebody else may not take away
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit, match="75"):
        messages.leave()
    assert folder.exists()
    monkeypatch.undo()
    monkeypatch.setenv(SCRATCH_VARIABLE, str(folder / "scratch"))
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit, match="75"):
        messages.leave()
    assert folder.exists() != is_placed
    assert folder.parent.exists() != is_placed


def denied(*words: object, **named: object) -> None:
    raise PermissionError(1, "not permitted")
