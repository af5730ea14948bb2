"""Every error that cputune raises on purpose.

- ``CputuneError``: a message, a hint (what to do next) and the exit code of the CLI
    - ``UsageError``: the call itself is wrong (exit 2)
        - ``RecipeError``: a recipe that does not exist or does not validate
        - ``ArgumentsError``: a function does not take this argument (a ``TypeError``, too)
    - ``CannotError``: the call is right, but the work failed (exit 3)
        - ``HostError``: the machine, or its recording, cannot be read
        - ``ResultError``: a result file cannot be read or used
        - ``MissingPackageError``: an optional package is not installed
        - ``Unreachable``: a named host does not answer
    - ``NoValidTrialError``: tuning ended without a valid trial (exit 4)
        - ``NotMeasurableError``: other processes kept the machine too busy to measure (exit 4)
    - ``Interrupted``: stopped by Ctrl-C or another signal; the study is kept (exit 130)
"""

from __future__ import annotations


class CputuneError(Exception):
    """An error with a hint.

    ``str(error)`` is one line that says what is wrong. ``hint`` is one line that says what to do,
    or None. ``details`` are further lines that show the cause, such as the last output of a script.
    """

    exit_code: int = 3

    def __init__(
        self, message: str, *, hint: str | None = None, details: str | None = None
    ) -> None:
        super().__init__(message)
        self.hint = hint
        self.details = details

    @property
    def __notes__(self) -> list[str]:
        """What Python 3.11 and later print below the message."""
        if self.hint is None:
            return []
        return [f"hint: {self.hint}"]

    def _render_traceback_(self) -> list[str]:
        """What IPython and Jupyter print instead of a traceback through our modules."""
        lines = [f"{type(self).__name__}: {self}"]
        for line in (self.details or "").splitlines():
            lines.append(f"  {line}")
        return lines + self.__notes__


class UsageError(CputuneError):
    """The call itself is wrong."""

    exit_code = 2


class RecipeError(UsageError):
    """The recipe does not exist, or its file does not validate."""


class ArgumentsError(UsageError, TypeError):
    """A function was called with an argument that it does not take, or without one it needs."""


class CannotError(CputuneError):
    """The call is right, but the work could not be done."""

    exit_code = 3


class HostError(CannotError):
    """The machine or its recording cannot be read."""


class ResultError(CannotError):
    """A result file is damaged, too new, or from another machine."""


class MissingPackageError(CannotError):
    """The call needs an optional package that is not installed."""


class Unreachable(CannotError):  # noqa: N818 - the public name describes the host
    """A named host could not be reached, was lost later, or what was started there failed.

    ``started``: the host was reached, and the program of cputune failed on it.
    """

    def __init__(
        self, name: str, reason: str, started: bool = False, *, hint: str | None = None
    ) -> None:
        problem = f"{name} cannot be reached"
        if started:
            problem = f"{name} was reached, but could not be examined"
        super().__init__(f"{problem}: {reason}", hint=hint)
        self.name, self.reason, self.started = name, reason, started

    def __reduce__(self) -> tuple[type[Unreachable], tuple[str, str, bool], dict[str, object]]:
        return Unreachable, (self.name, self.reason, self.started), dict(vars(self))


class NoValidTrialError(CputuneError):
    """A study ended without one trial that gave a usable number."""

    exit_code = 4


class NotMeasurableError(NoValidTrialError):
    """Other processes used this machine all the time, so no ratio can be given.

    Attributes:
        result: the ``Result`` so far. None if no trial gave a number.
    """

    result: object = None


class Interrupted(CputuneError):  # noqa: N818 - stopping on request is not an error
    """Stopped by Ctrl-C or a signal. The measurements are kept.

    Attributes:
        result: the ``Result`` so far. None if no trial gave a number.
    """

    result: object = None

    exit_code = 130
