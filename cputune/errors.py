"""Every error that cputune raises on purpose.

- ``CputuneError``: a message, a hint (what to do next) and the exit code of the CLI
    - ``UsageError``: the call itself is wrong (exit 2)
        - ``RecipeError``: a recipe that does not exist or does not validate
    - ``CannotError``: the call is fine, the work could not be done (exit 3)
        - ``HostError``: the machine, or its recording, cannot be read
        - ``ResultError``: a result file that cannot be read, or is not for us
        - ``MissingPackageError``: an optional package is needed for this
        - ``Unreachable``: a host that was named does not answer, or does so no longer
    - ``NoValidTrialError``: tuning ended without one valid trial (exit 4)
        - ``NotMeasurableError``: others computed here, so that nothing can be said (exit 4)
    - ``Interrupted``: Ctrl-C or another signal stopped it, the study is kept (exit 130)
"""

from __future__ import annotations


class CputuneError(Exception):
    """An error with a hint.

    ``str(error)`` is one line that says what is wrong; ``hint`` is one line that
    says what to do about it, or None where there is nothing to say. ``details`` are further
    lines that show the cause: the last words of a script.
    """

    exit_code: int = 3

    def __init__(
        self, message: str, *, hint: str | None = None, details: str | None = None
    ) -> None:
        super().__init__(message)
        self.hint = hint
        self.details = details


class UsageError(CputuneError):
    """What was asked for does not make sense as asked."""

    exit_code = 2


class RecipeError(UsageError):
    """No such recipe, or a recipe file that does not validate."""


class CannotError(CputuneError):
    """The call is right, but it could not be done."""

    exit_code = 3


class HostError(CannotError):
    """The machine (or its recording) cannot be read."""


class ResultError(CannotError):
    """A result file that is damaged, too new, or of another machine."""


class MissingPackageError(CannotError):
    """An optional package is needed for what was asked."""


class Unreachable(CannotError):  # noqa: N818 - it is what became of a host
    """A host that was named could not be reached, or was lost later."""

    def __init__(self, name: str, reason: str, *, hint: str | None = None) -> None:
        super().__init__(f"{name} cannot be reached: {reason}", hint=hint)
        self.name, self.reason = name, reason

    def __reduce__(self) -> tuple[type[Unreachable], tuple[str, str], dict[str, object]]:
        return Unreachable, (self.name, self.reason), dict(vars(self))


class NoValidTrialError(CputuneError):
    """A study ended, and not one trial gave a number that can be believed."""

    exit_code = 4


class NotMeasurableError(NoValidTrialError):
    """Others computed on this machine all the time: no number is true, so none is said.

    Attributes:
        result: what was found, a ``Result``; None where no trial gave a number.
    """

    result: object = None


class Interrupted(CputuneError):  # noqa: N818 - it is no error of anybody's
    """Stopped by Ctrl-C or a signal; what was measured is kept.

    Attributes:
        result: what was found, a ``Result``; None where no trial gave a number.
    """

    result: object = None

    exit_code = 130
