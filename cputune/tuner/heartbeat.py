"""The sign of life of the trials that a tuner has begun in a shared study."""

from __future__ import annotations

import math
import threading
import time
from contextlib import suppress

from optuna.storages import RDBStorage

from cputune.tuner.database import BEAT_SECONDS, FAILURES


class Heartbeat:
    """Beats for each trial in ``trials`` (Optuna's ids), from a thread of its own, until stopped.

    Optuna's own thread runs only inside ``Study.optimize``, which would call us.
    """

    def __init__(self, storage: RDBStorage) -> None:
        self._storage = storage
        self._stop = threading.Event()
        self._missed_at = -math.inf
        self.trials: set[int] = set()
        self._thread = threading.Thread(target=self._beat, name="cputune-heartbeat", daemon=True)
        self._thread.start()

    def begin(self, trial: int) -> None:
        """The first beat of a trial; those that follow come by themselves."""
        self.trials.add(trial)
        self._storage.record_heartbeat(trial)

    def end(self, trial: int) -> None:
        """It has ended; nothing more is to be said of it."""
        self.trials.discard(trial)

    @property
    def is_sure(self) -> bool:
        """Whether others' silence means something: where we were not heard, they were not."""
        return time.monotonic() - self._missed_at > 2 * BEAT_SECONDS

    def missed(self) -> None:
        """The server did not answer just now."""
        self._missed_at = time.monotonic()

    def stop(self) -> None:
        """End the thread; it may wait for a server that does not answer."""
        self._stop.set()
        self._thread.join(timeout=1)

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            for trial in tuple(self.trials):
                try:
                    self._storage.record_heartbeat(trial)
                except FAILURES:
                    self.missed()
        with suppress(*FAILURES):
            self._storage.remove_session()  # of this thread
