"""The seam between ``verify`` and the consumers: what each of them is given and gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cputune.host import Host
from cputune.plan import Plan
from cputune.result import Throughput
from cputune.verifier.records import NOT_CHECKED, Outcome, Ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Artefact:
    """A file that ``emit`` wrote, with its text as it was read."""

    path: Path
    format: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a launch is held against.

    Attributes:
        plan: the plan that the artefact must reproduce; None where no result file is known.
        samples_per_second: the tuned figure; None where nothing was measured.
        global_batch_size: samples per optimizer step over all ranks, where that is fixed.
        sequence_length: tokens of a sample; None where that is not promised.
        words: the command line of a rank (``promised_words`` of the emitters); None as above.
        environment: the variables of every rank; None where no plan is known.
        steps: optimizer steps that a launch is run for, warm-up included.
        timeout_seconds: how long one launch may take before it is ended.
        run: whether launches are run at all, or documents only read.
        hosts: of a launch on several nodes, in the order of its plan.
        ssh: the words that reach a host.
        submit: whether a batch job may be handed to a cluster that has other machines.
    """

    plan: Plan | None = None
    samples_per_second: Throughput | None = None
    global_batch_size: int | None = None
    sequence_length: int | None = None
    words: tuple[str | None, ...] | None = None
    environment: Mapping[str, str] | None = None
    steps: int = 12
    timeout_seconds: float = 300.0
    run: bool = True
    hosts: tuple[str, ...] = ()
    ssh: tuple[str, ...] = ("ssh",)
    submit: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one consumer says to one artefact."""

    checks: tuple[Outcome, ...] = ()
    throughput: Ratio | None = None


class Consumer(Protocol):
    """Somebody who takes artefacts of some formats."""

    @property
    def formats(self) -> Sequence[str]:
        """The formats that it takes."""
        ...

    def answer(self, artefact: Artefact, expected: Expected, host: Host) -> Answer:
        """Hand the artefact over and say what came of it. Never raises for a bad artefact."""
        ...


def not_installed(name: str, consumer: str, install: str) -> Outcome:
    """The check that could not be made for want of its consumer."""
    return Outcome(
        name=name,
        state=NOT_CHECKED,
        consumer=consumer,
        summary=f"{consumer} is not installed, so this was not looked at",
        remedy=install,
    )
