"""Times optimizer steps, counts their samples, and reports both.

The kernel counts for each thread how long it was runnable without running: the second field of
``/proc/PID/task/TID/schedstat``, in nanoseconds (Documentation/scheduler/sched-stats.rst). A thread
may wait for other processes, or for another thread of its own process. Where a rank has one core,
the threads of gloo or oneCCL and the computing thread wait for each other, a tenth of each step. A
wait for other processes is the machine's fault, a wait for own threads the plan's.

So a wait counts at most as much as the CPU time that other processes took on the CPUs of this one:
what ``/proc/stat`` counts for these CPUs, less our own. It counts in ticks, so of short steps it is
read over several; before there are enough, a wait counts less what our other threads computed
meanwhile. The time that a hypervisor took away (``steal``) is added, since threads do not see it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Set
from typing import TYPE_CHECKING, Any, NoReturn

from cputune.inside import CHILD_VARIABLE, SCRATCH_VARIABLE, state
from cputune.inside.applying.figures import Figures, Trained
from cputune.inside.applying.hooking import Hook, Original
from cputune.inside.applying.parts import did, the_parts
from cputune.inside.applying.trimming import counted, tensors_of
from cputune.inside.cutting import rows_in
from cputune.inside.equivalence_check import Asker
from cputune.inside.first_steps import FirstSteps
from cputune.inside.messages import Framework, RankState, Speaker
from cputune.inside.observations import bf16_time, mask_seconds
from cputune.inside.where_time_goes import StepProfiler

if TYPE_CHECKING:
    from torch.nn import Module


# After which steps ranks are compared: the early ones, and multiples.
EARLY_STEPS, LATER_STEPS = (1, 2, 4), 8


class Meter:
    """One per rank. The hooks say what the script does, the meter says how long it took.

    Attributes:
        facts: what the hooks learn of the script for the state of this rank.
        asker: asks the model, where this process is there for that.
        scratch: a folder of the trial's own; what the script would write goes to ``output`` there.
        weights: what the optimizers train, which is compared between ranks.
        waited: seconds of this step in which the script waited for a batch.
        shortened: what a batch is cut to where the script's own hooks see it before.
    """

    def __init__(self, speaker: Speaker) -> None:
        self.speaker = speaker
        self.asker = Asker(speaker.say)
        self.first = FirstSteps(self.asker)
        self.weights = Trained()
        self.framework: Framework | None = None
        self.seen: set[str] = set()
        self.facts: RankState = {}
        self._did: dict[str, list[str]] | None = None
        self.flags: set[str] = set()
        self.scratch = os.environ.get(SCRATCH_VARIABLE, "/tmp")
        self.output = os.path.join(self.scratch, "output")
        self.steps = 0
        self.backwards = 0
        self.waited = 0.0
        self.shortened: Callable[[Any], object] = lambda batch: batch
        self._samples = self._size = self._all_samples = 0
        self._losses: list[Any] = []
        self._tokens = [0, 0, 0]
        self._delay: Delay | None = None
        self._mark = 0.0
        self._paused = 0.0
        self._dtype = state.DtypeProbe()
        self._pid = os.getpid()
        self._is_child = CHILD_VARIABLE in os.environ
        self._look: StepProfiler | None = None

    def hooks(self) -> list[Hook]:
        """What is hooked in torch, whatever trains with it."""
        batches = "torch.utils.data.dataloader", "_BaseDataLoaderIter.__next__"
        return [(*batches, self._next_batch), *self.first.hooks()]

    def _next_batch(self, original: Original, iterator: Any) -> object:
        """Note how long the script waits for each batch, whichever code iterates the loader."""
        began = time.perf_counter()
        try:
            batch = original(iterator)
        finally:
            self.waited += time.perf_counter() - began
            self.facts["loader_workers"] = iterator._num_workers
            self.facts["drawn"] = how_drawn(iterator)
        self.first.fetched(iterator)
        return batch

    def begin(self, framework: Framework) -> None:
        """Start the clock, as training starts; before the first step it may be started again."""
        if self.steps == 0:
            if self._delay is None:
                self._delay = Delay()
                self.speaker.say({"event": "note", "text": "training starts"})
            self.framework = framework
            self.first.begin()
            self._start_lap()

    def watch(self, model: Module) -> bool:
        """Find out in which precision products really run, if a layer of this model shows it."""
        return self.steps == 0 and self._dtype.attach(model)

    def see_batch(self, batch: object) -> int:
        """Count the samples of a batch; of the first batch also note how long they are."""
        since = time.perf_counter()
        if self.steps == 0:
            if (length := length_in(batch)) is not None:
                self.facts["sequence_length"] = length
            self._tokens = [a + b for a, b in zip(self._tokens, counted(batch), strict=True)]
        samples = samples_in(batch)
        self.first.batch(batch, samples)
        self.resume(since)
        return samples

    def micro_step(self, samples: int, loss: object, batch: object = None) -> None:
        """Note that a batch went forward and backward; ``loss`` is a number or a tensor of one.

        ``batch`` is None for a further loss of the same one.
        """
        if self.backwards == 0:
            self.refuse_a_child()
        self.backwards += 1
        self.first.trained()
        self._samples += samples
        self._all_samples += samples
        since = time.perf_counter()
        self._size += size_of(self.shortened(batch))
        self.resume(since)
        if loss is not None:
            self._losses.append(loss)

    def resume(self, since: float) -> None:
        """Take the time since ``began`` out of the step: it does not belong to training."""
        self._paused += time.perf_counter() - since

    def forget_delays(self) -> None:
        """What delayed this step so far does not belong to training either."""
        if self._delay is not None:
            self._delay.forget()

    def _say_applied(self) -> None:
        """Report what the parts of a plan have changed, if that is more than was reported."""
        changed = did()
        if changed is not None and changed != self._did:
            self._did = {part: list(what) for part, what in changed.items()}
            self.speaker.say({"event": "applied", "did": self._did})

    def step(self, *, mean_loss: bool, optimizer: object = None) -> None:
        """Report a step of the optimizer. ``mean_loss``: average its batches' losses, else add."""
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
                if (model := state.model(optimizer)) is not None:
                    self.facts["model"] = model
            padded, tokens, kept = self._tokens
            if tokens:
                self.facts["padding_share"] = round(padded / tokens, 4)
                self.facts["columns_left"] = round(kept / tokens, 4)
            self.facts["gradient_bytes"], self.facts["touched_bytes"] = self.first.sent
            self._observe(seconds)
            self.speaker.say(
                {
                    "event": "state",
                    **state.read(),
                    "dtype": self._dtype.detach(),
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
                "size": self._size,
                "trained": self.first.step(optimizer),
                "figures": self._figures(),
            }
        )
        self._say_applied()
        self._samples = self._size = 0
        self._losses = []
        if self._look is not None:
            profiled = self._look.after(self.steps, sys.modules["torch"], self._dtype.dtype)
            if profiled is not None:
                self.speaker.say(profiled)
        self.speaker.await_turn()
        if self.speaker.to_profile:
            self._look = StepProfiler(self.speaker.to_profile, settled=self.steps + 1)
            self.speaker.to_profile = 0
        self._start_lap()

    def _observe(self, step_seconds: float) -> None:
        """Try what torch does on these cores, unless a plan has replaced it."""
        torch = sys.modules.get("torch")
        if torch is None or the_parts():
            return
        self.facts["bf16_time"] = bf16_time(torch)
        elements = self.first.mask_elements
        if elements:
            self.facts["masks"] = {
                "elements": elements,
                "seconds": elements * mask_seconds(torch),
                "step_seconds": step_seconds,
                "attention": self.first.attention_drops,
            }

    def _figures(self) -> Figures | None:
        """Of some steps what the ranks compare."""
        is_compared = self.steps in EARLY_STEPS or self.steps % LATER_STEPS == 0
        ranks = sys.modules.get("torch.distributed")
        if not is_compared or ranks is None or not ranks.is_available():
            return None
        if not ranks.is_initialized() or ranks.get_world_size() == 1:
            return None
        figures = self.weights.figures(self.steps)
        return {**figures, "names": self.weights.names(), "samples": self._all_samples}

    def _start_lap(self) -> None:
        self._paused = self.waited = 0.0
        self.forget_delays()
        self._mark = time.perf_counter()

    def see_loader(self, loader: object) -> None:
        """Note the loader that is trained on: its data set, and its batch if it shows it."""
        self.facts["dataset_samples"] = samples_of(getattr(loader, "dataset", None))
        batch = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
        dispatch = the_parts().get("dispatch")
        if dispatch is not None and dispatch.each:
            batch = dispatch.each
        if isinstance(batch, int):
            self.facts["batch"] = batch

    def refuse(self, reason: str, *, hopeless: bool = False) -> NoReturn:
        """Report why the script cannot be run as the plan asks, and end this process.

        ``hopeless``: it cannot be run with any plan.
        """
        self.speaker.say({"event": "refused", "reason": reason, "hopeless": hopeless})
        self.leave(3)

    def refuse_a_child(self) -> None:
        """End a process that trains, and that the script has started itself.

        What a plan sets is set in the script; its children would train without it.
        """
        if self._is_child:
            command = " ".join(getattr(sys, "orig_argv", sys.argv))[:160]
        elif self._pid != os.getpid():
            command = "a fork of the script"
        else:
            return
        self.refuse(
            f"it trains in a process that it starts itself ({command}), which no plan reaches: "
            "tune the command that it starts, and start several ranks with torchrun",
            hopeless=True,
        )

    def end(self) -> None:
        """Report that the script, or its training, is over."""
        self.asker.finish()
        self.speaker.say({"event": "end", "seen": sorted(self.seen), "steps": self.steps})

    def leave(self, status: int) -> NoReturn:
        """End this process now: what a script does after its training is not needed."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def samples_in(batch: object) -> int:
    """How many samples a batch holds: its rows.

    A batch without tensors is a list of rows: prompts, from which a trainer of TRL generates.
    """
    count = rows_in(batch)
    rows = isinstance(batch, list) and all(isinstance(row, Mapping) for row in batch)
    return len(batch) if rows and not count else count  # type: ignore[arg-type]


def size_of(batch: object) -> int:
    """How many numbers a batch holds, in all its tensors."""
    return sum(int(tensor.numel()) for tensor in tensors_of(batch) if hasattr(tensor, "numel"))


def length_in(batch: object) -> int | None:
    """Tokens of a sample in a batch of tokens; None for another batch."""
    tokens: Any = batch.get("input_ids") if isinstance(batch, Mapping) else None
    shape: Any = getattr(tokens, "shape", ())
    return int(shape[-1]) if len(shape) > 1 else None


def samples_of(data: Any) -> int | None:
    """How many samples a data set has, or several by name together; None where it is not known."""
    try:
        return sum(map(len, data.values())) if isinstance(data, Mapping) else len(data)
    except (TypeError, NotImplementedError):
        return None


def how_drawn(iterator: Any) -> str:
    """How the loader of an iterator takes its samples (``RankState.drawn``)."""
    sampler = iterator._index_sampler
    for inner in ("batch_sampler", "sampler", "sampler"):  # of accelerate, of torch
        sampler = getattr(sampler, inner, None) or sampler
    name = type(sampler).__name__
    if name == "_InfiniteConstantSampler":
        return "a stream"
    return "at random" if name in ("RandomSampler", "SeedableRandomSampler") else name


def _number(loss: Any) -> float | None:
    try:
        return float(loss)
    except (TypeError, ValueError, RuntimeError):
        return None


# The unit of /proc/stat (USER_HZ): it cannot speak for less.
TICK_SECONDS = 0.01

# A shorter wait is none: to report a step wakes its reader, which takes a CPU for 0.05
# to 0.4 ms (read on two cores: most of a step of half a millisecond). A process that computes
# keeps its CPU for 3 ms at least (the kernel's base slice).
LEAST_SECONDS = 0.001


# Over half a second /proc/stat is right to a fiftieth. A step counts as delayed if it waits for a
# tenth of its time: over a window of ten ticks the rounding alone would be that tenth.
WINDOW_SECONDS = 50 * TICK_SECONDS


class Delay:
    """Measures, lap by lap, how long the most delayed thread waited because of other processes."""

    def __init__(self) -> None:
        cpus = set(os.sched_getaffinity(0))
        for thread in os.listdir("/proc/self/task"):  # oneCCL's workers have CPUs of their own
            with contextlib.suppress(OSError):
                cpus |= os.sched_getaffinity(int(thread))
        self._cpus = {f"cpu{cpu}" for cpu in cpus}
        self._before = _Counters(self._cpus)
        self._laps: deque[tuple[float, float]] = deque()

    def forget(self) -> None:
        """Begin a lap now: what was since the last one is none."""
        self._before = _Counters(self._cpus)

    def lap(self) -> float:
        """Seconds since the last lap; 0.0 where the kernel keeps no such account."""
        now, before = _Counters(self._cpus), self._before
        self._before = now
        waited = max(_growth(now.waits, before.waits), default=0.0)
        if now.busy:
            waited = min(waited, self._by_others(now, before))
        stolen = max(_growth(now.stolen, before.stolen), default=0.0)
        return max(
            waited if waited >= LEAST_SECONDS else 0.0, stolen if stolen > TICK_SECONDS else 0.0
        )

    def _by_others(self, now: _Counters, before: _Counters) -> float:
        """How many seconds other processes can have kept a thread of ours waiting in this lap."""
        lap = now.at - before.at
        others = sum(_growth(now.busy, before.busy)) - sum(_growth(now.own, before.own))
        self._laps.append((lap, others))
        while sum(seconds for seconds, _ in self._laps) - self._laps[0][0] >= WINDOW_SECONDS:
            self._laps.popleft()
        window = sum(seconds for seconds, _ in self._laps)
        if window >= WINDOW_SECONDS:
            taken = max(0.0, sum(of_lap for _, of_lap in self._laps))
            return (taken + TICK_SECONDS) * lap / window
        ran = dict(zip(now.runs, _growth(now.runs, before.runs), strict=True))
        waits = dict(zip(now.waits, _growth(now.waits, before.waits), strict=True))
        together = sum(ran.values())
        alone = (wait - (together - ran[name]) / len(now.busy) for name, wait in waits.items())
        return max(alone, default=0.0)


class _Counters:
    """What the kernel has counted so far, in seconds.

    Attributes:
        at: when.
        runs, waits: of each of our threads, while it ran and while it could have run.
        own: CPU time of this process, of its children (the workers of a data loader), and of the
            other ranks of its launch on the same CPUs, by process. What they take is the plan's.
        busy, stolen: of each CPU of ours; empty where none is shown.
    """

    def __init__(self, cpus: Set[str]) -> None:
        self.at = time.monotonic()
        self.runs, self.waits = _threads()
        self.own = {0: time.process_time(), **_children(), **_siblings(cpus)}
        self.busy: dict[str, float] = {}
        self.stolen: dict[str, float] = {}
        with contextlib.suppress(OSError), open("/proc/stat", encoding="ascii") as file:
            for line in file:
                name, *fields = line.split()
                if name in cpus:
                    ticks = list(map(int, fields))
                    # user nice system idle iowait irq softirq steal
                    self.busy[name] = (sum(ticks[:3]) + sum(ticks[5:7])) * TICK_SECONDS
                    self.stolen[name] = ticks[7] * TICK_SECONDS
                elif not name.startswith("cpu"):
                    break


def _growth(now: Mapping[Any, float], before: Mapping[Any, float]) -> list[float]:
    return [value - before.get(name, 0.0) for name, value in now.items()]


def _threads() -> tuple[dict[str, float], dict[str, float]]:
    """Seconds for which each thread of ours ran, and waited for a CPU."""
    runs, waits = {}, {}
    for thread in os.listdir("/proc/self/task"):
        path = f"/proc/self/task/{thread}/schedstat"
        with contextlib.suppress(OSError, ValueError), open(path, "rb") as file:
            ran, waited, *_ = file.read().split()
            runs[thread], waits[thread] = int(ran) / 1e9, int(waited) / 1e9
    return runs, waits


def _children() -> dict[int, float]:
    """CPU time of our own children, by process."""
    return {child: _cpu_seconds(child) for child in _children_of(os.getpid())}


def _siblings(cpus: Set[str]) -> dict[int, float]:
    """CPU time of the other ranks that our launcher has started on no other CPUs than ours."""
    launcher = os.getppid()
    seconds: dict[int, float] = {}
    if launcher == 1:  # what init adopted is no rank of ours
        return seconds
    for sibling in _children_of(launcher):
        if sibling == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if {f"cpu{cpu}" for cpu in os.sched_getaffinity(sibling)} <= cpus:
                seconds[sibling] = _cpu_seconds(sibling)
    return seconds


def _children_of(process: int) -> Iterable[int]:
    path = f"/proc/{process}/task/{process}/children"
    with contextlib.suppress(OSError), open(path, encoding="ascii") as file:
        return [int(child) for child in file.read().split()]
    return ()


def _cpu_seconds(process: int) -> float:
    """CPU time of a process so far, in seconds; 0.0 if it has ended."""
    path = f"/proc/{process}/stat"
    with contextlib.suppress(OSError, IndexError), open(path, "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) * TICK_SECONDS
    return 0.0
