"""Compares the ranks while they train, and stops all of them if they differ.

After steps 1, 2, 4, ... and then every N steps each rank compares its weights, its learning rates
and how many samples it has taken with those of rank 0; and once more at the end, with the numbers
of steps. N is chosen such that comparing takes ``SHARE`` of the time. All ranks wait for each other
there, so each of them stops after the same step, and none while it saves.

The figures go through the store at which the process group met, never by a collective, because a
rank that has left its loop would not take part. A thread finds ranks that wait for each other in
different places: one has left the loop and the others are in the backward pass of a further step,
for example. Without the guard they would wait for half an hour.

Ranks that differ end with exit status ``EXIT_STATUS``. Nothing is written or removed.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from cputune.inside.applying.ending import GROUPS
from cputune.inside.applying.figures import (
    Trained,
    described,
    first_number,
    how_apart,
    rows_of,
)
from cputune.inside.applying.hooking import Hook, Original

# Of ranks that differ.
EXIT_STATUS = 5

# The most that comparing takes of the time, once it has found its pace.
SHARE = 0.0005

# How often the thread looks for ranks that wait for each other.
LOOK_SECONDS = 1.0

# A rank is stuck if it stays in one place for these seconds, and for this multiple of the
# longest backward pass before.
STUCK_SECONDS, SLOWER = 15.0, 5

# A rank whose thread is silent for this long has ended; the others go on, and fail by
# themselves.
GONE_SECONDS = 60.0

# How long the rank that keeps the store waits for the others to stop.
LAST_WORDS_SECONDS = 5.0

# Functions of torch.distributed in which a rank waits for others.
COLLECTIVES = (
    "all_gather",
    "all_gather_object",
    "all_reduce",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "reduce",
    "scatter",
)

HINT = (
    "a checkpoint of a later step may hold the weights of one rank alone; tune with the ranks of "
    "your own launch (--fix ranks=1), or train without this comparison (--no-guard)"
)


class Guard:
    """One in each rank; nothing of it runs before the first step of an optimizer."""

    name = "guard"

    def __init__(self) -> None:
        self._trained = Trained()
        self._beside = Trained()
        self._first: object = None
        self._wraps = False
        self._within = 0
        self._steps = self._compared = self._samples = 0
        self._next = 1
        self._since = 0.0
        self._cost = 0.0
        self._store: Any = None
        self._rank = self._world = 0
        self._off = False
        self._weights = True
        self._latest: Any = None
        self._mark = 0.0
        self._place: tuple[str, float] | None = None
        self._said_place = False
        self._longest = 0.0
        self._over = threading.Event()
        self._stopping = threading.Lock()

    def hooks(self) -> list[Hook]:
        """The steps of optimizers, and the functions in which a rank waits for others."""
        averaging = "torch.distributed.algorithms.model_averaging.averagers"
        return [
            ("torch.optim.optimizer", "", self._watch_optimizers),
            ("torch.nn.parallel.distributed", "DistributedDataParallel.__init__", self._wrap),
            ("torch.nn.parallel.distributed", "DistributedDataParallel.forward", self._forward),
            ("torch._tensor", "Tensor.backward", self._backward),
            ("transformers.trainer_callback", "CallbackHandler.on_train_end", self._train_end),
            ("torch.distributed.algorithms.join", "Join.__enter__", self._uneven),
            (averaging, "ModelAverager.__init__", self._averages_later),
            ("accelerate.local_sgd", "LocalSGD.__init__", self._averages_later),
            *((GROUPS, name, functools.partial(self._collective, name)) for name in COLLECTIVES),
        ]

    def report(self) -> dict[str, str]:
        """Nothing of a plan."""
        return {}

    # What trains

    def _watch_optimizers(self, module: Any) -> None:
        module.register_optimizer_step_pre_hook(self._before_step)
        module.register_optimizer_step_post_hook(lambda optimizer, *_: self._stepped(optimizer))

    def _wrap(self, original: Original, ddp: Any, module: Any, *args: Any, **more: Any) -> None:
        """Mark what DistributedDataParallel keeps equal, also what is frozen now."""
        original(ddp, module, *args, **more)
        self._wraps = True
        for parameter in module.parameters():
            parameter._cputune_wrapped = True

    def _forward(self, original: Original, ddp: Any, *args: Any, **more: Any) -> object:
        """Count samples, unless the loss is a mean over the tokens of all ranks."""
        trains = ddp.training and sys.modules["torch"].is_grad_enabled()
        if trains and "num_items_in_batch" not in more:
            self._samples += rows_of((args, more)) or 0
        return original(ddp, *args, **more)

    def _before_step(self, *_: object) -> None:
        self._within += 1

    def _stepped(self, optimizer: Any) -> None:
        """Count a step that all ranks take, once an optimizer around this one is done too.

        One rank may train something else with its own optimizer. Its steps do not count, and it is
        compared if all ranks have it.
        """
        self._within -= 1
        if self._within > 0 or self._off:
            return
        if self._wraps:
            groups = optimizer.param_groups
            if not any(hasattr(p, "_cputune_wrapped") for group in groups for p in group["params"]):
                self._beside.saw(optimizer)
                return
        else:
            self._first = self._first or optimizer
            if self._first is not optimizer:
                return
        self._trained.saw(optimizer)
        self._latest = optimizer
        self._mark = first_number(optimizer)
        self._steps += 1
        if self._steps == self._next:
            self._compare()

    def _train_end(self, original: Original, *args: object, **kwargs: object) -> object:
        if self._steps > self._compared and not self._off:
            self._compare()
        return original(*args, **kwargs)

    def _uneven(self, original: Original, *args: object, **kwargs: object) -> object:
        """Ranks with unlike numbers of batches, which torch lets wait for each other: no guard."""
        self._off = True
        return original(*args, **kwargs)

    def _averages_later(self, original: Original, *args: object, **kwargs: object) -> object:
        """Ranks that train separately on purpose and average their weights now and then."""
        self._weights = False
        return original(*args, **kwargs)

    # Where it waits

    @contextlib.contextmanager
    def _in_place(self, what: str) -> Iterator[None]:
        """Note where this rank is, for the thread; the outermost place counts."""
        if self._place is not None or threading.current_thread() is not threading.main_thread():
            yield
            return
        self._place = what, time.monotonic()
        try:
            yield
        finally:
            self._place = None

    def _backward(self, original: Original, *args: object, **kwargs: object) -> object:
        since = time.monotonic()
        with self._in_place(f"in the backward pass of step {self._steps + 1}"):
            done = original(*args, **kwargs)
        self._longest = max(self._longest, time.monotonic() - since)
        return done

    def _collective(self, name: str, original: Original, *args: object, **kwargs: object) -> object:
        with self._in_place(f"in {name} after step {self._steps}"):
            return original(*args, **kwargs)

    # What the ranks exchange

    def _compare(self) -> None:
        """Compare with rank 0; all ranks leave together, or none does."""
        started = time.monotonic()
        if self._store is None and not self._meet():
            self._off = True
            return
        step = self._steps
        try:
            figures = self._trained.figures(step, weights=self._weights)
            figures["beside"] = self._beside.figures(step, weights=self._weights)
            figures["samples"] = self._samples
            with self._in_place(f"in the comparison after step {step}"):
                following = self._exchange(step, figures, started)
        except RuntimeError as error:  # the store has gone, or a rank
            self._give_up(error)
            return
        self._next, self._compared = following, step
        self._trained.forget()
        self._beside.forget()
        self._since = time.monotonic()
        took = self._since - started
        self._cost = took if self._cost == 0.0 else (self._cost + took) / 2

    def _exchange(self, step: int, figures: dict[str, Any], started: float) -> int:
        """Returns the step after which the ranks are compared next."""
        store = self._store
        if self._rank == 0:
            figures["next"] = following = self._following(step, started)
            store.set(f"step {step}", json.dumps(figures))
        else:
            self._await(lambda: store.check([f"step {step}"]))
            first = json.loads(store.get(f"step {step}"))
            following = first["next"]
            self._judge(figures, first, self._trained)
            self._judge(figures["beside"], first["beside"], self._beside)
        store.add(f"step {step} compared", 1)
        self._await(lambda: store.add(f"step {step} compared", 0) >= self._world)
        if store.check(["apart"]):
            self._stop()
        if self._rank == 0 and self._compared:
            with contextlib.suppress(Exception):  # not every store can forget
                store.delete_key(f"step {self._compared}")
        return following

    def _judge(self, mine: dict[str, Any], first: dict[str, Any], trained: Trained) -> None:
        """Accuse the ranks if what this one trains differs from what rank 0 trains."""
        difference = how_apart(mine, first) if len(mine["rates"]) == len(first["rates"]) else None
        if difference is not None:
            ranks = f"rank 0 and rank {self._rank}"
            self._accuse(
                f"after step {mine['step']} {described(difference, trained.names(), ranks)}"
            )

    def _following(self, step: int, now: float) -> int:
        """The next step to compare after: twice as late, until the time is negligible."""
        if not self._compared:
            return 2 * step
        each = (now - self._since) / (step - self._compared)
        return step + min(step, int(self._cost / (SHARE * max(each, 1e-6))) + 1)

    def _await(self, ready: Callable[[], bool]) -> None:
        """Wait for the other ranks. Raises RuntimeError if one of them has gone."""
        pause, since = 0.0002, time.monotonic()
        beats: list[int] = []
        while not ready():
            time.sleep(pause)
            now = time.monotonic()
            pause = min(0.05 if now - since < LOOK_SECONDS else 0.5, 1.5 * pause)
            if now - since > LOOK_SECONDS and self._store.check(["apart"]):
                self._stop()
            if now - since > GONE_SECONDS:
                self._store.set("waiting", "1")
                counts = [self._store.add(f"beat {rank}", 0) for rank in range(self._world)]
                silent = [
                    r for r, beat in enumerate(beats) if beat == counts[r] and r != self._rank
                ]
                if silent:
                    raise RuntimeError(f"rank {silent[0]} has gone")
                beats, since = counts, now

    def _meet(self) -> bool:
        """Take the store of the process group; false without one, or with one rank."""
        ranks = sys.modules.get("torch.distributed")
        if ranks is None or not ranks.is_available() or not ranks.is_initialized():
            return False
        self._rank, self._world = ranks.get_rank(), ranks.get_world_size()
        groups = sys.modules[GROUPS]
        store = getattr(groups, "_get_default_store", lambda: None)()
        if self._world < 2 or store is None:
            return False
        self._store = groups.PrefixStore("cputune", store)
        self._since = time.monotonic()
        threading.Thread(target=self._look, name="guard", daemon=True).start()
        atexit.register(self._end)
        return True

    def finish(self) -> None:
        """Called when the script has ended well, before the ranks wait for each other."""
        if self._store is None or self._off:
            return
        self._place = f"at the end of its script after step {self._steps}", 0.0
        with contextlib.suppress(RuntimeError):
            self._store.set(f"end {self._rank}", str(self._steps))
            ends = [f"end {rank}" for rank in range(self._world)]
            self._await(lambda: self._store.check(ends))
            steps = [int(self._store.get(end)) for end in ends]
            if len(set(steps)) > 1:
                listed = ", ".join(f"rank {rank} {count}" for rank, count in enumerate(steps))
                self._accuse(f"they have taken unlike numbers of steps: {listed}")
            elif self._steps > self._compared:
                # One rank may have replaced its weights by an average, to save them.
                self._weights &= self._mark == first_number(self._latest)
                self._compare()
            self._store.add("ended", 1)
            self._await(lambda: self._store.add("ended", 0) >= self._world)
            if self._store.check(["apart"]):
                self._stop()
        self._over.set()

    # Ranks that wait for each other, and their end

    def _look(self) -> None:
        """Report the place where this rank waits; stop if the ranks wait in unlike places."""
        while not self._over.wait(LOOK_SECONDS):
            try:
                if self._place is not None and self._store.check(["apart"]):
                    self._stop()  # this rank waits for others, so it does not save
                if self._store.check(["waiting"]):
                    self._store.add(f"beat {self._rank}", 1)
                place = self._stuck()
                if place is not None or self._said_place:
                    self._store.set(f"place {self._rank}", place or "")
                    self._said_place = place is not None
                if place is not None:
                    self._compare_places()
            except RuntimeError:  # rank 0 has gone: what waits for it fails by itself
                return

    def _stuck(self) -> str | None:
        """Where this rank has been for longer than it may."""
        place = self._place
        if place is None:
            return None
        longest = max(STUCK_SECONDS, SLOWER * self._longest)
        return place[0] if time.monotonic() - place[1] > longest else None

    def _compare_places(self) -> None:
        keys = [f"place {rank}" for rank in range(self._world)]
        if not self._store.check(keys):
            return
        places = [self._store.get(key).decode() for key in keys]
        if all(places) and len(set(places)) > 1:
            listed = ", ".join(f"rank {rank} is {place}" for rank, place in enumerate(places))
            self._accuse(f"they wait for each other: {listed}")
            self._stop()

    def _accuse(self, difference: str) -> None:
        """Report what differs; of several ranks that find something the first one does."""
        if self._store.add("accused", 1) == 1:
            equal = f"they were equal after step {self._compared}"
            if not self._compared:
                equal = "they were never seen equal"
            sys.stderr.write(f"error: the ranks are apart: {difference}; {equal}\nhint: {HINT}\n")
            sys.stderr.flush()
        self._store.set("apart", difference)

    def _stop(self) -> NoReturn:
        """End this process. The rank that keeps the store lets the others read it."""
        with self._stopping, contextlib.suppress(RuntimeError):
            self._store.add("stopped", 1)
            until = time.monotonic() + LAST_WORDS_SECONDS
            while self._rank == 0 and time.monotonic() < until:
                if self._store.add("stopped", 0) >= self._world:
                    break
                time.sleep(0.05)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(EXIT_STATUS)

    def _end(self) -> None:
        """Python ends here. A rank that fails as others are stopped ends as they do."""
        failed = not self._over.is_set()
        self._over.set()  # or the thread is in the store as Python ends
        with contextlib.suppress(RuntimeError):
            if failed and self._store.check(["apart"]):
                self._stop()

    def _give_up(self, error: Exception) -> None:
        self._off = True
        self._over.set()
        sys.stderr.write(f"note: the ranks are not compared any more: {error}\n")
