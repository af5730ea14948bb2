"""How a database that does not answer is waited for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from cputune.hidden import without_password
from cputune.tuner.book import LostDatabase
from cputune.tuner.database import FAILURES, reason

PATIENCE_SECONDS = 60
"""How long a server that went away is asked again, before the search ends without it."""

AGAIN_SECONDS = 1.0

Answer = TypeVar("Answer")


class Patience:
    """Asks a database until it answers, or the patience or the time given is at its end.

    ``say`` tells once what is waited for, ``missed`` hears of every answer that did not come.
    """

    def __init__(
        self,
        address: str,
        *,
        say: Callable[[str], None],
        missed: Callable[[], None],
        out_of_time: Callable[[], bool],
    ) -> None:
        self._address = address
        self._say = say
        self._missed = missed
        self._out_of_time = out_of_time

    def __call__(self, ask: Callable[[], Answer]) -> Answer:
        """What the database answers. Raises LostDatabase."""
        until = time.monotonic() + PATIENCE_SECONDS
        said = False
        while True:
            try:
                return ask()
            except FAILURES as error:
                self._missed()
                if time.monotonic() > until or self._out_of_time():
                    raise LostDatabase(
                        self.gone(error), hint="the same command goes on when it does"
                    ) from None
                if not said:
                    self._say(f"{self.gone(error)}; it is asked again for {PATIENCE_SECONDS} s")
                said = True
                time.sleep(AGAIN_SECONDS)

    def gone(self, error: Exception) -> str:
        """That it does not answer, in words and without a password."""
        where = without_password(self._address)
        return f"{where} does not answer ({reason(error, self._address)})"
