"""The document that tune writes and emit reads: ``cputune.json``, schema ``cputune.result/4``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol

from msgspec import Meta

from cputune.errors import CannotError, ResultError
from cputune.host import read_document, write_atomically
from cputune.plans.knobs import changed
from cputune.plans.knobs.record import Keeps, Kind, LeftOut
from cputune.plans.plan import Plan
from cputune.plans.untried import UntriedGain
from cputune.plans.workload import Workload
from cputune.records.claims import Claim, Outcome, Speedup, outcome_of
from cputune.records.earlier import Earlier
from cputune.records.next_command import NextStep
from cputune.records.steps import FailureKind
from cputune.records.written_files import write_own
from cputune.text.documents import Amount, Count, for_people, parse, plain, record_of
from cputune.text.plain import figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

# Width of a figure in inches: that of the page's text at 96 pixels per inch.
WIDTH = 8.6

SCHEMA_NAME = "cputune.result"
# Raised when an older cputune would misread the document.
SCHEMA_VERSION = 4

# Largest result file that is read. 10,000 trials of 8 ranks need about 60 MiB.
MOST_BYTES = 256 << 20

# The kernel's limit is IFNAMSIZ.
InterfaceName = Annotated[str, Meta(max_length=15)]

# RFC 1035: at most 253 characters.
HostName = Annotated[str, Meta(max_length=253)]

Note = Annotated[str, Meta(max_length=2048)]

# How a trial ended: measured, stopped because it had clearly lost, or without a number.
State = Literal["completed", "pruned", "failed"]

# What proposed a plan: your current launch, the vendors' guides, the CPU topology, Optuna.
Origin = Literal["baseline", "earlier", "guide", "topology", "sampler"]

# The baseline, or a plan that may be recommended.
Role = Literal["baseline", "candidate"]

COMPLETED: State = "completed"
PRUNED: State = "pruned"
FAILED: State = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Samples per second of the whole job: geometric mean and 95 % interval.

    Over the steps of a trial or the rounds of a comparison, without warm-up and outliers
    (``cputune.tuner.gains.throughput``).
    """

    centre: Amount
    low: Amount
    high: Amount

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"the interval ends at {self.high}, below its start {self.low}")


# Why a ratio in a file is ignored.
UNPAIRED = "the file has no pairs of these two plans"

# Start of the reason of a trial that the time limit stopped.
TIME_UP = "the time limit was reached"


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """What one change gains, on the steps from the baseline to the best plan.

    ``speedup`` is over the plan before this step. Knobs that no measured plan changes alone are one
    step, with commas in ``knob``. ``keeps``: None in an older result.
    """

    knob: str
    value: str
    speedup: Speedup
    keeps: Keeps | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """The gain over the baseline of the changes up to this ``kind``."""

    kind: Kind
    plan: Plan
    speedup: Speedup


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A plan and its measured throughput."""

    plan: Plan
    samples_per_second: Throughput


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The consecutive steps of a plan in a trial, or between two other plans in a comparison.

    ``place`` numbers the turns of all plans in a round, from 0. ``step_seconds`` are all its steps,
    with the first after a pause and the warm-up of a restarted script. ``delayed`` are the
    positions, from 0, of steps that other processes delayed.
    """

    place: Count
    step_seconds: tuple[Amount, ...]
    delayed: tuple[Count, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One trial of the study, in the order in which they ran, from 0.

    Attributes:
        kind: the kind of failure, if it failed.
        reason: for the user; for a crash with the end of stderr.
        samples_per_second: of a completed trial; of a pruned one a rough guess.
        at_most_samples_per_second: likely upper bound of a pruned trial. None if no faster plan was
            known to compare it with.
        steps: optimizer steps that were measured.
        step_seconds: seconds of all its steps, including warm-up.
        observed: what the ranks reported, one mapping per rank.
        taken: seconds of each step of its last run. None if they were not kept.
    """

    number: Count
    plan: Plan
    state: State
    kind: FailureKind | None = None
    reason: str | None = None
    samples_per_second: Throughput | None = None
    at_most_samples_per_second: Amount | None = None
    steps: Count = 0
    delayed_steps: Count = 0
    warmup_steps: Count = 0
    step_seconds: Amount = 0.0
    origin: Origin = "sampler"
    observed: tuple[Mapping[str, Any], ...] = ()
    taken: Turn | None = None

    @property
    def cut_short(self) -> bool:
        """True if the time limit stopped it before its throughput was known; it has only bounds."""
        return self.state == PRUNED and (self.reason or "").startswith(TIME_UP)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmRun:
    """One run of a plan in one round of the confirmation, from 0.

    ``turns`` counts the turns that were used, ``taken`` are all, delayed ones included. ``kept``:
    its processes were not started for this round.
    """

    round: Count
    role: Role
    plan: Plan
    samples_per_second: Throughput | None
    reason: str | None = None
    turns: Count = 0
    taken: tuple[Turn, ...] = ()
    kept: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """What the ranks of a plan reported in the comparison, one mapping per rank."""

    plan: Plan
    observed: tuple[Mapping[str, Any], ...] = ()


# Blocks that a ratio needs. Each later block starts new processes, because one block cannot
# show how much processes of one plan differ.
LEAST_BLOCKS = 2


def pairs_of(runs: Sequence[ConfirmRun], baseline: Plan, rival: Plan) -> int:
    """The number of pairs of two plans in a confirmation, or 0 below ``LEAST_BLOCKS`` blocks.

    A later block counts only if its processes were started for it.
    """
    blocks: list[int] = []
    for block in sorted({run.round for run in runs}):
        sides = []
        for plan in (baseline, rival):
            ran = [r for r in runs if r.round == block and r.plan == plan]
            sides += [r for r in ran[:1] if r.samples_per_second is not None]
        if len(sides) == 2 and not (blocks and any(run.kept for run in sides)):
            blocks.append(max(1, min(run.turns for run in sides)))
    if len(blocks) < LEAST_BLOCKS:
        return 0
    return sum(blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How the time of a plan's steps is spent, and how far its matmuls are from the limit.

    Attributes:
        shares: of the time by activity, the largest first, the rest last.
        steps: number of steps that were profiled.
        step_seconds: of one step, with the profiler's own time.
        gflops: GFLOP/s of all matmuls over the whole time, all ranks together. None with IPEX,
            which does not count the operations of its matmuls.
        limit_gflops: GFLOP/s that the same cores reach in matmuls alone.
        dtype: of the matmuls.
        reduce_seconds: seconds per step in which gradients are sent, by host, of its slowest
            rank. Empty for one rank.
        wire_seconds: those of the rank for which the others wait, so without any waiting.
    """

    plan: Plan
    shares: Mapping[str, Amount]
    steps: Count
    step_seconds: Amount
    gflops: Amount | None
    limit_gflops: Amount | None = None
    dtype: str | None = None
    reduce_seconds: Mapping[str, Amount] = field(default_factory=dict, hash=False)
    wire_seconds: Amount | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToEnd:
    """Seconds of all steps of a training, without evaluations and checkpoints."""

    baseline: Amount
    best: Amount


class Figures(Protocol):
    """The figures of a result. ``width`` is in inches.

    Each method raises MissingPackageError without matplotlib, and returns None if the result does
    not have the data.
    """

    def waterfall(self, *, width: float = WIDTH) -> Figure:
        """The steps from the baseline to the best plan, change by change."""

    def step(self, *, width: float = WIDTH) -> Figure | None:
        """How the time of a step is spent."""

    def trials(self, *, width: float = WIDTH) -> Figure:
        """The trials in the order in which they ran, and the best so far."""

    def comparison(self, *, width: float = WIDTH) -> Figure | None:
        """The best plan compared with the baseline, round by round."""

    def machine(self, *, width: float = WIDTH) -> Figure | None:
        """The machine of the measurement, and the CPUs of each rank of the best plan."""

    def steps(self, trial: int, *, width: float = WIDTH) -> Figure | None:
        """The seconds of each step of one trial."""


class Drawing(Protocol):
    """Draws results. It registers itself as ``Result.drawing``, because a record must not import
    it.
    """

    def figures(self, result: Result) -> Figures:
        """Its pictures."""

    def frame(self, result: Result) -> DataFrame:
        """Its trials, a row each."""

    def html(self, result: Result) -> str:
        """What a notebook shows of it."""

    def page(self, result: Result) -> str:
        """The page of ``cputune report``."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Result:
    """The result of a study.

    ``best`` is the recommended plan: the baseline if no plan was faster beyond noise. ``speedup``
    is the ratio of ``best`` in the confirmation, or of the fastest other plan if ``best`` is the
    baseline; without pairs in ``confirmation`` ``not_compared`` gives the reason, and
    ``next_step`` what would give the answer.

    ``notes`` are sentences that the reader needs to judge the result. ``disturbed``: other
    processes (``busy``) delayed most of the measurement, and no ratio is given.

    ``worth`` are the steps from the baseline to the best plan, one change at a time; ``rungs`` the
    gains by kind of change, the smallest change first. ``baseline_profile`` is of the baseline if
    that is another plan. ``compared`` is the throughput of each plan of the confirmation, the
    baseline first, and ``reports`` what the ranks of each of its plans reported.

    ``files`` are digests of the files in the training command, by path; ``folder`` is a digest of
    the path of its folder, for this machine alone. ``resumable``: the trials
    are stored for ``--resume``. ``command`` started the study, without secret values; empty if it
    was started from Python. ``untried`` was not searched and may be faster. ``price_per_hour`` has
    no currency. ``hosts`` are the machines as the user named them, in the order of nodes; empty for
    this machine alone. ``kernel`` is the Linux release, ``microcode`` that of the processor.
    ``asked`` are the options that changed the search. ``interface`` is that of the ranks if the
    plan does not name one. ``through`` reached the hosts (``ssh -F FILE``, ``srun``, ``mpirun``).
    ``earlier`` is what became of the plan of an earlier study.
    """

    drawing: ClassVar[Drawing | None] = None

    created: str | None = None
    host: Mapping[str, Any]
    hosts: tuple[HostName, ...] = ()
    interface: InterfaceName | None = None
    through: Annotated[str, Meta(max_length=4096)] | None = None
    kernel: Annotated[str, Meta(max_length=256)] | None = None
    microcode: Annotated[str, Meta(max_length=256)] | None = None
    asked: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str]
    workload: Workload
    data: str | None = None
    baseline: Measured
    best: Measured
    speedup: Speedup | None
    not_compared: Note | None = None
    earlier: Earlier | None = None
    next_step: NextStep | None = None
    compared: tuple[Measured, ...] = ()
    busy: Annotated[tuple[Note, ...], Meta(max_length=64)] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    folder: Annotated[str, Meta(max_length=64)] | None = None
    resumable: bool = False
    command: tuple[str, ...] = ()
    profile: Profile | None = None
    baseline_profile: Profile | None = None
    notes: Annotated[tuple[Note, ...], Meta(max_length=64)] = ()
    budget: Count | None = None
    price_per_hour: Amount | None = None
    seed: int | None = None
    sampler: str | None = None
    seconds: Amount | None = None
    left_out: tuple[LeftOut, ...] = ()
    untried: tuple[UntriedGain, ...] = ()
    confirmation: tuple[ConfirmRun, ...] = ()
    reports: tuple[Reports, ...] = ()
    disturbed: bool = False
    worth: tuple[Worth, ...] = ()
    rungs: tuple[Rung, ...] = ()
    trials: tuple[Trial, ...]

    def __post_init__(self) -> None:
        if (self.speedup is None) == (self.not_compared is None):
            raise ValueError("a result needs either speedup or not_compared")
        if self.speedup is None:
            return
        if self.disturbed:
            raise ValueError("a disturbed result cannot have a speedup")
        plans = {self.best.plan}
        if self.best.plan == self.baseline.plan:
            plans = {run.plan for run in self.confirmation} - plans
        pairs = max((pairs_of(self.confirmation, self.baseline.plan, p) for p in plans), default=0)
        if not 0 < self.speedup.pairs <= pairs:
            raise ValueError(f"speedup has {self.speedup.pairs} pairs, but {pairs} were measured")

    @property
    def outcome(self) -> Outcome:
        """The outcome for the best plan, or for the fastest other plan if the baseline is best."""
        return outcome_of(self.speedup)

    @property
    def claim(self) -> Claim:
        """The ratio with everything that it was measured on."""
        return Claim(
            speedup=self.speedup,
            workload=self.workload,
            host=self.host,
            nodes=self.best.plan.nodes,
            versions=self.versions,
            plan=self.best.plan,
            date=None if self.created is None else self.created[:10],
            files=self.files,
        )

    def throughput_of(self, plan: Plan) -> Throughput | None:
        """The throughput of a plan in the comparison, or else in its trial; None without
        measurement.
        """
        for measured in (self.best, self.baseline) + self.compared:
            if measured.plan == plan:
                return measured.samples_per_second
        trials = (t for t in self.trials if t.plan == plan and t.state == COMPLETED)
        return next((t.samples_per_second for t in trials), None)

    def is_compared(self, plan: Plan) -> bool:
        """Whether a plan was part of the side-by-side comparison."""
        return self.speedup is not None and any(m.plan == plan for m in self.compared)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Result:
        """Read a result file. Raises ResultError if it cannot be read or is not valid."""
        try:
            text = read_document(path, most_bytes=MOST_BYTES)
        except OSError as error:
            raise ResultError(
                f"cannot read {path}: {error.strerror}", hint="run `cputune tune` first"
            ) from error
        try:
            document = parse(text)
        except ValueError as error:
            raise ResultError(
                f"{path} is not JSON: {error}", hint="run `cputune tune` again"
            ) from error
        return cls.from_json(document)

    def save(self, path: str | PathLike[str], *, force: bool = False) -> None:
        """Write a result file atomically, readable by the user alone if it has arguments.

        Raises UsageError if a file is there that is not a result and not ``force``, CannotError if
        it cannot be written.
        """
        text = for_people(self.to_json()) + "\n"
        mode = 0o644
        if self.workload.argv:
            mode = 0o600
        destination = Path(path)
        force = force or _is_result(destination)
        write_atomically(destination, text, force=force, mode=mode)

    def to_json(self) -> dict[str, Any]:
        """The document, the schema first."""
        document: dict[str, Any] = {"schema": f"{SCHEMA_NAME}/{SCHEMA_VERSION}"} | plain(self)
        if self.speedup is not None:
            document["speedup"]["significant"] = self.speedup.significant
        document |= {
            "outcome": self.outcome,
            "keeps": {
                knob.name: knob.keeps for knob in changed(self.baseline.plan, self.best.plan)
            },
            "time_to_end": plain(self.time_to_end()),
        }
        return document

    def time_to_end(
        self, before: Measured | None = None, ratio: float | None = None
    ) -> TimeToEnd | None:
        """The seconds of all steps of the training. None if its length or the ratio is not known.

        ``before`` replaces the baseline, and ``ratio`` the measured ratio.
        """
        if ratio is None:
            if self.best.plan == self.baseline.plan:
                ratio = 1.0
            elif self.speedup is not None:
                ratio = self.speedup.ratio
        speed = (before or self.baseline).samples_per_second.centre
        if self.workload.samples_to_end is None or not speed or ratio is None:
            return None
        baseline = self.workload.samples_to_end / speed
        return TimeToEnd(baseline=baseline, best=baseline / ratio)

    def __repr__(self) -> str:
        baseline, best = (figure(s.samples_per_second.centre) for s in (self.baseline, self.best))
        return (
            f"<cputune.Result {self.workload.name}: baseline {baseline} samples/s, best {best} "
            f"({self.best.plan.describe()}), {len(self.trials)} trials>"
        )

    @property
    def figures(self) -> Figures:
        """The figures, for example ``result.figures.waterfall()``."""
        return self._drawn().figures(self)

    def to_frame(self) -> DataFrame:
        """The trials as a pandas frame, one row each. Raises MissingPackageError."""
        return self._drawn().frame(self)

    def _repr_html_(self) -> str:
        return self._drawn().html(self)

    def report(self, path: str | PathLike[str] = "report.html", *, force: bool = False) -> None:
        """Write the page of ``cputune report``.

        Raises UsageError if a file is there that cputune did not write, MissingPackageError without
        jinja2.
        """
        mode = 0o644
        if self.workload.argv:
            mode = 0o600
        write_own(Path(path), self._drawn().page(self), force=force, mode=mode)

    def _drawn(self) -> Drawing:
        """The registered drawer, ``cputune.report.drawing``."""
        if Result.drawing is None:
            raise CannotError("nothing draws results", hint="import cputune.report.drawing")
        return Result.drawing

    @classmethod
    def from_json(cls, document: object) -> Result:
        """Read a document. Raises ResultError if it is not a result, or of another version.

        A ratio without the pairs that support it is ignored.
        """
        values = _refuse_other_documents(document)
        for derived in ("outcome", "keeps", "time_to_end"):
            values.pop(derived, None)
        stored = values.get("speedup")
        try:
            if stored is None:
                return record_of(cls, values)
            if isinstance(stored, Mapping):
                stored = {key: value for key, value in stored.items() if key != "significant"}
            speedup = record_of(Speedup, stored)
            without = values | {"speedup": None, "not_compared": UNPAIRED}
            uncompared = record_of(cls, without)
            with suppress(ValueError):
                return replace(uncompared, speedup=speedup, not_compared=None)
            return uncompared
        except ValueError as error:
            raise ResultError(
                f"the result file is damaged: {error}", hint="run `cputune tune` again"
            ) from error


def _is_result(path: Path) -> bool:
    try:
        Result.load(path)
    except ResultError:
        return False
    return True


def _refuse_other_documents(document: object) -> dict[str, Any]:
    schema = None
    if isinstance(document, Mapping):
        schema = document.get("schema")
    ours = re.fullmatch(rf"{re.escape(SCHEMA_NAME)}/([1-9][0-9]{{0,8}})", str(schema))
    if not isinstance(document, Mapping) or ours is None:
        raise ResultError(
            "this is not a cputune result file", hint="`cputune tune` writes one: cputune.json"
        )
    values = {}
    for key, value in document.items():
        if key != "schema":
            values[key] = value
    version = int(ours[1])
    if version != SCHEMA_VERSION:
        hint = "run `cputune tune` again"
        if version > SCHEMA_VERSION:
            hint = "upgrade cputune: pip install -U cputune"
        raise ResultError(
            f"the result file has schema {version}; this cputune reads {SCHEMA_VERSION}",
            hint=hint,
        )
    return values
