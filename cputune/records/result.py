"""The document that tune writes and emit reads: ``cputune.json``, schema ``cputune.result/3``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from msgspec import Meta

from cputune.errors import ResultError
from cputune.host import read_document, write_atomically
from cputune.host.facts import Core, Topology
from cputune.plans.knobs import kept_by_change
from cputune.plans.knobs.record import Keeps, Kind, LeftOut
from cputune.plans.levers import Lever
from cputune.plans.plan import Plan
from cputune.plans.workload import Workload
from cputune.records.claims import Claim, Outcome, Speedup, outcome_of
from cputune.records.migration import from_second
from cputune.records.next_command import NextStep
from cputune.records.steps import FailureKind
from cputune.text import cpulist
from cputune.text.documents import Amount, Count, for_people, parse, plain, record_of
from cputune.text.plain import figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

WIDTH = 8.6
"""Of a picture, in inches. At 96 pixels an inch it is the width of the page's text."""

SCHEMA_NAME = "cputune.result"
SCHEMA_VERSION = 3
"""Of the document; it is raised with a change that an older cputune would misread."""

MOST_BYTES = 256 << 20
"""Of a result file: 10,000 trials of 8 ranks have about 60 MiB."""

InterfaceName = Annotated[str, Meta(max_length=15)]
"""As the kernel names a network interface (IFNAMSIZ)."""

HostName = Annotated[str, Meta(max_length=253)]
"""A name by which a host is reached, or its address (RFC 1035: 253 characters)."""

Note = Annotated[str, Meta(max_length=2048)]

State = Literal["completed", "pruned", "failed"]
"""How a trial ended: measured, ended because it had clearly lost, or without a number."""

Origin = Literal["baseline", "guide", "topology", "sampler"]
"""Who proposed a plan: the launch of today, the vendors' guides, the machine's layout, Optuna."""

Role = Literal["baseline", "candidate"]
"""What a plan is in the confirmation: what is compared with, or what may be recommended."""

COMPLETED: State = "completed"
PRUNED: State = "pruned"
FAILED: State = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Samples per second of the whole job: the geometric mean and its 95 % interval.

    ``centre`` is the geometric mean of the steps of a trial, or of the rounds of a comparison,
    without warm-up and outliers (``cputune.tuner.gains.throughput``).
    """

    centre: Amount
    low: Amount
    high: Amount

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"an interval from {self.low} to {self.high}")


UNPAIRED = "the file holds no pairs of these two plans"
"""Why a ratio that a file holds is not read."""

TIME_UP = "the time limit was reached"
"""How the reason of a trial begins that the end of the time has cut short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """What one change brings on the way from today's launch to the best plan.

    ``speedup`` is over the plan before it on that way. Several knobs stand together, with
    commas, where there is no plan in which one of them alone is changed. ``keeps`` is what of
    the training the change leaves the same; None in a result that is older.
    """

    knob: str
    value: str
    speedup: Speedup
    keeps: Keeps | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """How fast the best plan is without the changes that change more in the training than this.

    ``plan`` makes all changes of the best plan up to this ``kind``; ``speedup`` is over the
    baseline.
    """

    kind: Kind
    plan: Plan
    speedup: Speedup


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A plan and how fast it ran."""

    plan: Plan
    samples_per_second: Throughput


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The steps that a plan took in one go: those of a trial, or before another plan had its turn.

    ``place`` counts the turns of all plans in a round in the order that they were taken, from 0.
    ``step_seconds`` are all its steps, the first after the pause too, and the warm-up of a
    script that came to its end and began again; ``delayed`` are the positions, from 0, of those
    that other processes delayed.
    """

    place: Count
    step_seconds: tuple[Amount, ...]
    delayed: tuple[Count, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One trial of the study, in the order they were run, from 0.

    Attributes:
        state: how it ended.
        kind: which failure it was, for a trial that failed.
        reason: for people; with the tail of stderr for a crash.
        samples_per_second: measured, for a trial that was completed; for one that was pruned
            no more than a guess, from steps that are still slow.
        at_most_samples_per_second: of a trial that was pruned: it is not faster than that; None
            where this would say nothing, for a faster plan was not known either.
        steps: optimizer steps that were measured.
        step_seconds: seconds of all its steps, warm-up included.
        origin: who proposed the plan.
        observed: what the ranks saw: one mapping per rank.
        taken: the seconds of each step of its last run; None where they were not kept.
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
        """Whether the time was up before its speed was known: there are bounds on it alone."""
        return self.state == PRUNED and (self.reason or "").startswith(TIME_UP)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmRun:
    """One run of a plan in one round of the confirmation, from 0.

    ``samples_per_second`` is None where the run failed, and ``reason`` says why. ``turns``
    is how often its processes had a turn beside the others' that counts, where all lived at
    once; ``taken`` are the turns that it took, delayed ones too.
    """

    round: Count
    role: Role
    plan: Plan
    samples_per_second: Throughput | None
    reason: str | None = None
    turns: Count = 0
    taken: tuple[Turn, ...] = ()
    kept: bool = False


LEAST_BLOCKS = 2
"""In how many blocks two plans have to be compared before a ratio is said. The later ones have new
processes of both: what a plan's processes differ by is not seen in one block."""


def pairs_of(runs: Sequence[ConfirmRun], baseline: Plan, rival: Plan) -> int:
    """How many pairs of two plans a confirmation holds; 0 where they are too few for a ratio.

    They are too few in fewer than ``LEAST_BLOCKS`` blocks, and where the processes of a later block
    were not started for it.
    """
    blocks: list[int] = []
    for block in sorted({run.round for run in runs}):
        sides = []
        for plan in (baseline, rival):
            ran = [r for r in runs if r.round == block and r.plan == plan]
            sides += [r for r in ran[:1] if r.samples_per_second is not None]
        if len(sides) == 2 and not (blocks and any(run.kept for run in sides)):
            blocks.append(max(1, min(run.turns for run in sides)))
    return sum(blocks) if len(blocks) >= LEAST_BLOCKS else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Where the time of a plan's steps goes, and how far its products are from the limit.

    Attributes:
        shares: of the time, by what it is spent on, in words; the largest first, the rest last.
        steps: that were profiled.
        step_seconds: of one of them, with the profiler's own time in it.
        gflops: of all matrix products, over the whole time, of all ranks together; None: not
            told (IPEX has products of its own, and does not count their operations).
        limit_gflops: what the same cores reach in matrix products alone; None: not measured.
        dtype: in what they multiply.
        reduce_seconds: of a step, in which gradients are on their way, by host: of its slowest
            rank. Empty for one rank.
        wire_seconds: of them, those of the rank that is waited for: it waits for nobody.
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
    """Seconds of the steps of a whole training, by today's launch and by the best plan.

    Evaluations and checkpoints are not in them.
    """

    today: Amount
    best: Amount


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Result:
    """What a study has found.

    ``best`` is the recommendation: the baseline itself where nothing beat it beyond
    noise. ``speedup`` is what the confirmation has shown, of ``best``, or of the fastest other plan
    where that is the baseline. A record with a ratio that the pairs in ``confirmation`` do not bear
    cannot be made: ``speedup`` is then None, and ``not_compared`` says why. ``next_step`` is what
    would bring the answer that is missing. ``notes`` are sentences that a reader needs in order to
    trust it. ``disturbed``: other processes delayed most of what it is based on
    (``share_machine``), so there is no ratio.
    ``worth`` is the way from the baseline to the best plan, one change at a time, and ``rungs`` are
    its steps by what they change in the training, the least first.
    ``profile`` is of the best plan, ``today_profile`` of today's launch where that is another.
    ``compared`` is the throughput of each plan of the confirmation, the baseline first.
    ``busy`` are the
    other processes that used the CPUs meanwhile, each with its share of a CPU.
    ``files`` are digests of the files that the training command names, by path. ``resumable``:
    its trials are kept for ``--resume``. ``command`` is the command that started the study,
    without values of secrets; empty if Python called ``cputune.tune``.
    ``untried`` is what was left out of the search and would pay, what would bring the most first.
    ``price_per_hour`` is what one machine costs, in whatever currency.
    ``hosts`` are the machines that the study ran on, in the order in which plans count their
    nodes, as they were named; none where it was this machine alone.
    ``kernel`` is the release of Linux that it ran on, ``microcode`` the processor's revision.
    ``asked`` are the options by which the search was narrowed or widened.
    ``interface`` is the network interface on which their ranks talked, where a plan names no
    other.
    """

    created: str | None = None
    host: Mapping[str, Any]
    hosts: tuple[HostName, ...] = ()
    interface: InterfaceName | None = None
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
    next_step: NextStep | None = None
    compared: tuple[Measured, ...] = ()
    busy: Annotated[tuple[Note, ...], Meta(max_length=64)] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    resumable: bool = False
    command: tuple[str, ...] = ()
    profile: Profile | None = None
    today_profile: Profile | None = None
    notes: Annotated[tuple[Note, ...], Meta(max_length=64)] = ()
    budget: Count | None = None
    price_per_hour: Amount | None = None
    seed: int | None = None
    sampler: str | None = None
    seconds: Amount | None = None
    left_out: tuple[LeftOut, ...] = ()
    untried: tuple[Lever, ...] = ()
    confirmation: tuple[ConfirmRun, ...] = ()
    disturbed: bool = False
    worth: tuple[Worth, ...] = ()
    rungs: tuple[Rung, ...] = ()
    trials: tuple[Trial, ...]

    def __post_init__(self) -> None:
        if (self.speedup is None) == (self.not_compared is None):
            raise ValueError("either a speedup, or why nothing was compared")
        if self.speedup is None:
            return
        if self.disturbed:
            raise ValueError("a speedup of a machine on which others computed")
        plans = {self.best.plan}
        if self.best.plan == self.baseline.plan:
            plans = {run.plan for run in self.confirmation} - plans
        pairs = max((pairs_of(self.confirmation, self.baseline.plan, p) for p in plans), default=0)
        if not 0 < self.speedup.pairs <= pairs:
            raise ValueError(f"a speedup of {self.speedup.pairs} pairs, but {pairs} were measured")

    @property
    def outcome(self) -> Outcome:
        """What the pairs show of the best plan, or of the fastest other one beside the baseline."""
        return outcome_of(self.speedup)

    @property
    def claim(self) -> Claim:
        """The ratio with all that it was measured on."""
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
        """The throughput of a plan, the same wherever it is shown. None if it has none.

        A plan that was compared side by side has the throughput of all its rounds, another one
        that of its single trial.
        """
        for measured in (self.best, self.baseline, *self.compared):
            if measured.plan == plan:
                return measured.samples_per_second
        trials = (t for t in self.trials if t.plan == plan and t.state == COMPLETED)
        return next((t.samples_per_second for t in trials), None)

    def is_compared(self, plan: Plan) -> bool:
        """Whether a plan took part in the comparison side by side."""
        return self.speedup is not None and any(m.plan == plan for m in self.compared)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Result:
        """Read a result file. Raises ResultError that says what is wrong with it."""
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
        """Write a result file, whole or not at all; for the user alone where it holds arguments.

        Raises UsageError where it exists and not ``force``, CannotError where it cannot
        be written.
        """
        text = for_people(self.to_json()) + "\n"
        mode = 0o600 if self.workload.argv else 0o644
        write_atomically(Path(path), text, force=force, mode=mode)

    def to_json(self) -> dict[str, Any]:
        """The document, its schema first."""
        document: dict[str, Any] = {"schema": f"{SCHEMA_NAME}/{SCHEMA_VERSION}", **plain(self)}
        if self.speedup is not None:
            document["speedup"]["significant"] = self.speedup.significant
        document |= {
            "outcome": self.outcome,
            "keeps": kept_by_change(self.baseline.plan, self.best.plan),
            "time_to_end": plain(self.time_to_end()),
        }
        return document

    def time_to_end(
        self, before: Measured | None = None, ratio: float | None = None
    ) -> TimeToEnd | None:
        """What the whole training takes; None where it has not shown how long it is.

        Its steps alone, at the speeds that were measured: over today's launch, or over another
        plan ``before``, with the ``ratio`` of speeds.
        """
        if ratio is None:
            ratio = None if self.speedup is None else self.speedup.ratio
            if self.best.plan == self.baseline.plan:
                ratio = 1.0
        speed = (before or self.baseline).samples_per_second.centre
        if self.workload.samples_to_end is None or not speed or ratio is None:
            return None
        today = self.workload.samples_to_end / speed
        return TimeToEnd(today=today, best=today / ratio)

    def __repr__(self) -> str:
        today, best = (figure(s.samples_per_second.centre) for s in (self.baseline, self.best))
        return (
            f"<cputune.Result {self.workload.name}: today {today} samples/s, best {best} "
            f"({self.best.plan.describe()}), {len(self.trials)} trials>"
        )

    @property
    def figures(self) -> Figures:
        """Its pictures, each a figure of matplotlib: ``result.figures.waterfall()``."""
        return Figures(self)

    def to_frame(self) -> DataFrame:
        """Its trials as a frame of pandas, a row each. Raises MissingPackageError without it."""
        frame: DataFrame = import_module("cputune.report.notebook").frame_of(self)
        return frame

    def _repr_html_(self) -> str:
        """What a notebook shows of it."""
        html: str = import_module("cputune.report.notebook").html_of(self)
        return html

    def report(self, path: str | PathLike[str] = "report.html", *, force: bool = False) -> None:
        """Write the page of ``cputune report``. Raises as ``save``, and without jinja2."""
        mode = 0o600 if self.workload.argv else 0o644
        page = import_module("cputune.report.page").page(self)
        write_atomically(Path(path), page, force=force, mode=mode)

    @classmethod
    def from_json(cls, document: object) -> Result:
        """Read a document. Raises ResultError for one that is not ours, or of another version.

        A ratio that its pairs do not bear is not read: older results had such, and so has one whose
        plan was changed by hand.
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
            uncompared = record_of(cls, {**values, "speedup": None, "not_compared": UNPAIRED})
            with suppress(ValueError):
                return replace(uncompared, speedup=speedup, not_compared=None)
            return uncompared
        except ValueError as error:
            raise ResultError(
                f"the result file is damaged: {error}", hint="run `cputune tune` again"
            ) from error


@dataclass(frozen=True, slots=True)
class Figures:
    """The pictures of one result, as ``result.figures`` has them, drawn by ``report.figures``.

    ``width`` is in inches everywhere. Each raises MissingPackageError without matplotlib; what the
    result does not know is None instead of a picture.
    """

    result: Result

    def waterfall(self, *, width: float = WIDTH) -> Figure:
        """From today's launch to the best plan, change by change."""
        return cast("Figure", _pictures().waterfall(self.result, width=width))

    def step(self, *, width: float = WIDTH) -> Figure | None:
        """Where the time of a step goes."""
        return cast("Figure | None", _pictures().step(self.result, width=width))

    def trials(self, *, width: float = WIDTH) -> Figure:
        """The trials as they were run, and the best so far."""
        return cast("Figure", _pictures().trials(self.result, width=width))

    def comparison(self, *, width: float = WIDTH) -> Figure | None:
        """The best plan against today's launch, round by round."""
        return cast("Figure | None", _pictures().comparison(self.result, width=width))

    def machine(self, *, width: float = WIDTH) -> Figure | None:
        """The machine that it was measured on, and which rank of the best plan has which CPUs."""
        topology = topology_of(self.result.host)
        if topology is None:
            return None
        return cast("Figure", _pictures().machine(topology, self.result.best.plan, width=width))

    def steps(self, trial: int, *, width: float = WIDTH) -> Figure | None:
        """The seconds of each step of one trial, by its number."""
        return cast("Figure | None", _pictures().steps(self.result, trial, width=width))


def _pictures() -> Any:
    return import_module("cputune.report.figures")


def topology_of(host: Mapping[str, Any]) -> Topology | None:
    """The cores of the machine that a result was measured on; None where it does not say them."""
    topology = host.get("topology") or {}
    try:
        cores = tuple(
            Core(cpus=cpulist.parse(cpus), socket=int(socket), numa_node=node)
            for socket, node, cpus in topology["cores"]
        )
        allowed = cpulist.parse(topology["allowed"])
    except (KeyError, TypeError, ValueError):
        return None
    if not cores:
        return None
    online = tuple(sorted(cpu for core in cores for cpu in core.cpus))
    return Topology(cores=cores, online=online, present=None, allowed=allowed, numa_nodes=())


def _refuse_other_documents(document: object) -> dict[str, Any]:
    """The values of a result document, migrated. Raises ResultError for another document."""
    schema = document.get("schema") if isinstance(document, Mapping) else None
    ours = re.fullmatch(rf"{re.escape(SCHEMA_NAME)}/([1-9][0-9]{{0,8}})", str(schema))
    if not isinstance(document, Mapping) or ours is None:
        raise ResultError(
            "this is not a cputune result file", hint="`cputune tune` writes one: cputune.json"
        )
    values = {key: value for key, value in document.items() if key != "schema"}
    version = int(ours[1])
    if version == 2:
        return from_second(values)
    if version != SCHEMA_VERSION:
        hint = "run `cputune tune` again"
        if version > SCHEMA_VERSION:
            hint = "upgrade cputune: pip install -U cputune"
        raise ResultError(
            f"the result file has schema {version}, this cputune reads 2 and {SCHEMA_VERSION}",
            hint=hint,
        )
    return values
