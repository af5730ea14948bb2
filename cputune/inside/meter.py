"""Times optimizer steps, counts their samples, and tells both to whoever listens."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Any, NoReturn

from cputune.inside import PROFILE_VARIABLE, state
from cputune.inside.clock import Delay
from cputune.inside.messages import Framework, RankState
from cputune.inside.speak import Speaker
from cputune.inside.where_time_goes import Look


class Meter:
    """One per rank. The hooks say what the script does, the meter says how long it took.

    Attributes:
        facts: what the hooks learn of the script for the state of this rank.
        parses_arguments: whether HfArgumentParser is at work just now.
        waited: seconds of this step in which the script waited for a batch.
        compiled: seconds of this step in which torch.compile compiled.
        items_counted: whether a loss of this step was divided by the items of all its batches.
    """

    def __init__(self, speaker: Speaker) -> None:
        self.speaker = speaker
        self.framework: Framework | None = None
        self.seen: set[str] = set()
        self.facts: RankState = {}
        self.flags: set[str] = set()
        self.steps = 0
        self.backwards = 0
        self.waited = 0.0
        self.compiled = 0.0
        self._samples = 0
        self._losses: list[Any] = []
        self._delay: Delay | None = None
        self._mark = 0.0
        self._paused = 0.0
        self._dtype = state.DtypeProbe()
        profiled = int(os.environ.get(PROFILE_VARIABLE) or 0)
        self._look = Look(profiled) if profiled else None

    def begin(self, framework: Framework) -> None:
        """Training starts now. Called again before the first step, the clock starts again."""
        if self.steps == 0:
            if self._delay is None:
                self._delay = Delay()
                self.speaker.say({"event": "note", "text": "training starts"})
            self.framework = framework
            self._start_lap()

    def watch(self, model: Any) -> None:
        """Find out in which precision this model's products really run."""
        if self.steps == 0:
            self._dtype.attach(model)
            self.facts["model"] = state.model(model)

    def see_batch(self, batch: Any) -> int:
        """How many samples a batch holds; of the first one also how long they are."""
        if self.steps == 0 and (length := length_in(batch)) is not None:
            self.facts["sequence_length"] = length
        return samples_in(batch)

    def micro_step(self, samples: int, loss: Any) -> None:
        """A batch went forward and backward; ``loss`` is a number or a tensor of one."""
        self.backwards += 1
        self._samples += samples
        if loss is not None:
            self._losses.append(loss)

    def pause(self) -> float:
        """Something begins that is no part of a training step. Returns its beginning."""
        return time.perf_counter()

    def resume(self, since: float) -> None:
        """It is over; its time is taken out of the step."""
        self._paused += time.perf_counter() - since

    def step(self, *, mean_loss: bool, optimizer: Any = None) -> None:
        """The optimizer has stepped. ``mean_loss``: average its batches' losses, else add."""
        seconds = time.perf_counter() - self._mark - self._paused
        if self._delay is None:
            return
        delayed = self._delay.lap()
        losses = [number for number in map(_number, self._losses) if number is not None]
        loss = sum(losses) if losses else None
        if loss is not None and mean_loss:
            loss /= len(losses)
        self.steps += 1
        if self.steps == 1:
            if optimizer is not None:
                self.facts["optimizer"] = state.optimizer(optimizer)
            self.speaker.say(
                {
                    "event": "state",
                    **state.read(),
                    "dtype": self._dtype.detach(keep=self.compiled > 0),
                    "compiled": self.compiled > 0,
                    "framework": self.framework,
                    "samples": self._samples,
                    **self.facts,
                }
            )
        self.speaker.say(
            {
                "event": "step",
                "number": self.steps,
                "seconds": seconds,
                "samples": self._samples,
                "loss": loss,
                "delayed": delayed,
                "waited": self.waited,
                "compiled": self.compiled,
            }
        )
        self._samples = 0
        self._losses = []
        if self._look is not None:
            seen = self._look.after(self.steps, sys.modules["torch"], self._dtype.dtype)
            if seen is not None:
                self.speaker.say(seen)
        self.speaker.await_turn()
        self._start_lap()

    def _start_lap(self) -> None:
        self._paused = self.waited = self.compiled = 0.0
        if self._delay is not None:
            self._delay.lap()
        self._mark = time.perf_counter()

    def refuse(self, reason: str, *, hopeless: bool = False) -> NoReturn:
        """The script cannot be run as the plan asks: say why, and end this process.

        ``hopeless``: nor as any other plan asks.
        """
        self.speaker.say({"event": "refused", "reason": reason, "hopeless": hopeless})
        self.leave(3)

    def end(self) -> None:
        """The script, or its training, is over."""
        self.speaker.say({"event": "end", "seen": sorted(self.seen), "steps": self.steps})

    def leave(self, status: int) -> NoReturn:
        """End this process now: nothing that a script does after its training is wanted."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def samples_in(batch: Any) -> int:
    """How many samples a batch holds: the first dimension of its first tensor."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 0
    parts = batch.values() if isinstance(batch, Mapping) else batch
    if isinstance(parts, (str, bytes)) or not hasattr(parts, "__iter__"):
        return 0
    for part in parts:
        count = samples_in(part)
        if count:
            return count
    return 0


def length_in(batch: Any) -> int | None:
    """Tokens of a sample in a batch of tokens; None for another batch."""
    tokens: Any = batch.get("input_ids") if isinstance(batch, Mapping) else None
    shape: Any = getattr(tokens, "shape", ())
    return int(shape[-1]) if len(shape) > 1 else None


def samples_of(data: Any) -> int | None:
    """How many samples a data set has; None where it is a stream, or does not say."""
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return None


def _number(loss: Any) -> float | None:
    try:
        return float(loss)
    except (TypeError, ValueError, RuntimeError):
        return None
