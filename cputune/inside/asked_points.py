"""When a model is asked: after these updates, and as a pass over the data begins."""

from __future__ import annotations

import time

# Updates before each point. A script that alternates (every second, third or fourth step)
# differs at some of them; a change after a warm-up is looked for up to the last.
EARLY = (0, 1, 2, 5, 11, 24, 53)

# Used if the questions of the first point took longer than ``QUICK_SECONDS``.
FEWER = (0, 1, 5, 24)

# Further points, if they come within ``LATER_SECONDS``; and each new pass over the data.
LATER = (107, 211)

POINTS = (*EARLY, *LATER)

# Points of a recipe, whose script is known.
OF_RECIPES = (0, 3)

# CPU time of this thread.
QUICK_SECONDS = 1.0
LATER_SECONDS = 10.0

# Passes over the data at whose beginning the model is checked once more.
PASSES = 4

# For all questions together.
MOST_SECONDS = 60.0

# From the first point on; the answers contain the last update that was checked.
LONGEST_SECONDS = 120.0


class Points:
    """The points of one training.

    Attributes:
        number: of the points that have begun.
        updates: that the training has taken.
        are_over: no point follows.
    """

    def __init__(self, *, of_script: bool) -> None:
        self.number = self.updates = 0
        self.are_over = False
        self._of_script = of_script
        self._points: tuple[int, ...] = POINTS if of_script else OF_RECIPES
        self._passes = 0
        self._new_pass = False
        self._began: float | None = None
        self._began_own = 0.0
        self._since = self._since_own = 0.0
        self._left = MOST_SECONDS

    @property
    def name(self) -> str:
        """Of the point that is asked now."""
        return f"after {self.updates} updates" if self.updates else "at the first step"

    @property
    def has_time(self) -> bool:
        """Whether a further question may be asked at this point."""
        return time.perf_counter() - self._since <= self._left

    def begin_pass(self) -> None:
        """A new pass over the data may begin a new stage of training."""
        if self._of_script and self.number:
            self._passes += 1
            self._new_pass = self._passes <= PASSES

    def due(self, updates: int) -> bool:
        """Whether the training has come to a point, after this number of updates."""
        if self.are_over:
            return False
        self.updates = updates
        if self._began is not None:
            is_early = self._points[self.number] <= EARLY[-1]
            is_long = time.perf_counter() - self._began > LONGEST_SECONDS
            is_late = not is_early and time.thread_time() - self._began_own > LATER_SECONDS
            self.are_over = is_long or is_late
        return not self.are_over and (self._new_pass or updates >= self._points[self.number])

    def begin(self) -> None:
        """Begin to ask."""
        self.number += not self._new_pass
        self._new_pass = False
        self._since, self._since_own = time.perf_counter(), time.thread_time()
        if self._began is None:
            self._began, self._began_own = self._since, self._since_own

    def end(self) -> None:
        """All questions of this point were asked, or its time is over."""
        self._left -= time.perf_counter() - self._since
        is_slow = time.thread_time() - self._since_own > QUICK_SECONDS
        if self.number == 1 and is_slow and self._points is POINTS:
            self._points = FEWER
        self.are_over = self.number == len(self._points) or self._left <= 0
