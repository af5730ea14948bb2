"""Every option of ``tune`` and ``emit``, each in one place.

A field says its type, its default, its help and its flag. The command line, the keyword arguments
of ``cputune.tune`` and ``cputune.emit``, the configuration file, the variables
(``CPUTUNE_TUNE_BUDGET``), ``cputune config`` and the pages of docs/ are made from these records. A
new option is a new field.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import wraps
from pathlib import Path
from typing import (
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    get_args,
    get_type_hints,
    overload,
)

from cputune.errors import UsageError
from cputune.text.quantities import kubernetes_memory, slurm_time

Keep = Literal["numbers", "mathematics", "distribution"]
KEEP: tuple[Keep, ...] = get_args(Keep)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionText:
    """What is said of an option wherever it can be given.

    Attributes:
        help: one line.
        flag: as it is typed; None: in the library alone.
        metavar: what stands for its value in the help.
        reads: from what is typed to the value. Raises UsageError.
        repeated: whether it may be typed several times.
    """

    help: str
    flag: str | None
    metavar: str | None = None
    reads: Callable[[Any], Any] | None = None
    repeated: bool = False


def option(default: object, help: str, flag: str | None = "", **said: Any) -> Any:
    """A field that is an option; ``flag`` is made of the field's name where none is given."""
    return field(default=default, metadata={"option": OptionText(help=help, flag=flag, **said)})


def options_in(record: type) -> tuple[tuple[str, Any, Any, OptionText], ...]:
    """(name, type, default, what is said) of each option of a record that can be typed."""
    hints = get_type_hints(record)
    found = []
    for known in fields(record):
        text = known.metadata["option"]
        if text.flag is not None:
            flag = text.flag or f"--{known.name.replace('_', '-')}"
            found.append((known.name, hints[known.name], known.default, replace(text, flag=flag)))
    return tuple(found)


def keywords(record: Any) -> dict[str, Any]:
    """The fields of a record as keywords of a call."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


_WHERE_AND_WHEN = {"budget", "study", "study_name", "resume", "share_machine"}
MAY_CHANGE = _WHERE_AND_WHEN | {"max_time", "max_time_seconds", "price_per_hour"}
"""Options that a study can be gone on with another value of; the rest is part of its identity."""
_NOT_SEARCHED = MAY_CHANGE | {"seed"}
"""Options that do not narrow or widen a search, or that its result tells by itself."""
_TIME = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?")


DEFAULT_BUDGET = 20
"""The number of trials of a study if none is given."""

DEFAULT_LIMIT_SECONDS = 360.0
"""The time limit of a study, and of a comparison of two plans half of it, if none is given."""


def seconds_of(text: str) -> float:
    """Of a time such as 90s, 10m or 1h30m. Raises UsageError."""
    match = _TIME.fullmatch(text.strip().lower())
    if match is None or not any(match.groups()):
        raise UsageError(f"not a time: {text!r}", hint="--max-time 90s, 10m or 1h30m")
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    total = hours * 3600 + minutes * 60 + seconds
    if total == 0:
        raise UsageError("--max-time must be positive", hint="--max-time 10m")
    return float(total)


def _most_seconds(text: str) -> float:
    return math.inf if text.strip().lower() == "none" else seconds_of(text)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _kept(text: str) -> Keep:
    for keep in KEEP:
        if text == keep:
            return keep
    raise UsageError(
        f"--keep is {', '.join(KEEP[:-1])} or {KEEP[-1]}, not {text!r}",
        hint="--keep mathematics leaves out what draws masks otherwise, and bf16",
    )


def _fixed(texts: Iterable[str]) -> dict[str, str]:
    """What is held at which value: one value for each knob, or none would know which."""
    fixed: dict[str, str] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (name and equals and value):
            raise UsageError(f"--fix takes NAME=VALUE, not {text!r}", hint="--fix precision=bf16")
        if fixed.setdefault(name, value) != value:
            raise UsageError(
                f"--fix holds {name} at {fixed[name]} and at {value}",
                hint=f"leave one of them out; --knobs {name} varies it",
            )
    return fixed


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """What can be asked of a study, beside the workload and the machine.

    Attributes:
        budget: trials of the study, the baseline among them, at least 1. The confirmation at the
            end is not counted.
        seed: the same seed and the same measurements give the same proposals.
        max_time_seconds: when all is over, or one step later: what is waited for, imported and
            downloaded counts. The search takes 7/10 of it at most, the confirmation the rest.
            None: six minutes. ``math.inf``: no limit. A runner that simulates has no limit by
            default.
        max_time: the same as people write it: "90s", "2m", "1h30m" or "none"; or seconds. Give one
            of the two.
        knobs: names of what is varied (all by default; the rest stays as it is today).
        fix: knobs that are held at a value.
        keep: vary only what leaves the training this much the same: "numbers" (the same to the
            last bit but for the number of threads), "mathematics" (rounded or added up
            otherwise), or "distribution" (masks and batches drawn otherwise). None: those three,
            and bf16 where the CPU multiplies it in hardware.
        price_per_hour: what an hour of one machine costs; the verdict then says what the whole
            training costs, today and with the best plan.
        allow_slow_precision: offer bf16 where the CPU does not multiply it in hardware.
        allow_bf16_gradients: offer that ranks send their gradients in bf16.
        study: where the study is kept: an SQLite file, or the address of a server as Optuna takes
            it (``postgresql://HOST/DATABASE``, ``mysql://``); in memory where it is None.
        study_name: its name there; "cputune" where it is None.
        resume: go on with that study; its host, workload, seed and knobs must be the same.
        share_machine: measure although others compute here, and say no factor where they delayed
            most of it; else real processes are only started when another process that measures
            has ended, and a result that is disturbed is none.
    """

    budget: int = option(DEFAULT_BUDGET, "Maximum number of plans to try.")
    seed: int = option(0, "Random seed: the same seed tries the same plans.")
    max_time_seconds: float | None = option(
        None,
        f"Time limit: 90s, 10m, 1h30m or none. Default: {DEFAULT_LIMIT_SECONDS / 60:.0f}m.",
        "--max-time",
        metavar="TIME",
        reads=_most_seconds,
    )
    max_time: str | float | None = option(None, "The time limit as it is typed, e.g. 2m.", None)
    knobs: Iterable[str] | None = option(
        None,
        "Only vary these settings.",
        metavar="A,B",
        reads=_names,
    )
    fix: Mapping[str, Any] | None = option(
        None,
        "Hold a setting at a value, e.g. precision=fp32.",
        metavar="NAME=VALUE",
        reads=_fixed,
        repeated=True,
    )
    keep: Keep | None = option(
        None,
        "What of the training must stay the same: numbers, mathematics or distribution.",
        metavar="WHAT",
        reads=_kept,
    )
    price_per_hour: float | None = option(
        None,
        "Price of one machine per hour, in your currency; the verdict then says what is saved.",
        metavar="PRICE",
    )
    allow_slow_precision: bool = option(False, "Try bf16 even where the CPU only emulates it.")
    allow_bf16_gradients: bool = option(
        False, "Try sending gradients in bf16: less traffic, other numbers."
    )
    study: str | Path | None = option(
        None,
        "Storage of the trials, for --resume: an SQLite file, or postgresql://HOST/DATABASE.",
        metavar="FILE.db",
    )
    study_name: str | None = option(None, "Name of the study there. Default: cputune.")
    resume: bool = option(False, "Continue an interrupted study.")
    share_machine: bool = option(False, "Measure even while another process measures here.")

    def __post_init__(self) -> None:
        """Raise UsageError for what makes no sense, whoever asks for it."""
        if type(self.budget) is not int or self.budget < 1:
            said = f"--budget must be a whole number, 1 or more, not {self.budget!r}"
            raise UsageError(said, hint="--budget 20")
        if self.max_time is not None:
            if self.max_time_seconds is not None:
                said = "max_time and max_time_seconds exclude each other"
                raise UsageError(said, hint='max_time="10m"')
            limit = self.max_time
            seconds = _most_seconds(limit) if isinstance(limit, str) else float(limit)
            object.__setattr__(self, "max_time_seconds", seconds)
            object.__setattr__(self, "max_time", None)
        if self.max_time_seconds is not None and not self.max_time_seconds > 0:
            raise UsageError("--max-time must be positive", hint="--max-time 10m")
        if self.keep is not None:
            _kept(self.keep)
        if self.price_per_hour is not None and not 0 < self.price_per_hour < math.inf:
            raise UsageError(
                f"--price-per-hour must be positive, not {self.price_per_hour}",
                hint="--price-per-hour 0.68",
            )

    @property
    def narrowed(self) -> dict[str, Any]:
        """What was asked for of the search itself, by option; nothing for what is usual.

        Budget, seed and price stand in the result by themselves; where the study is kept and when
        it measures is no part of what is searched.
        """
        asked = {}
        for name, _, usual, _ in options_in(TuneOptions):
            value = getattr(self, name)
            if name == "knobs":
                value = tuple(value or ())
            if name not in _NOT_SEARCHED and value not in (usual, ()):
                asked[name] = value
        return asked


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretKey:
    """A variable whose value lies in a key of a Secret of the cluster."""

    variable: str
    secret: str
    key: str


def _labels(texts: Iterable[str]) -> tuple[tuple[str, str], ...]:
    pairs = [text.partition("=") for text in texts]
    for key, equals, _ in pairs:
        if not equals:
            raise UsageError(f"{key!r} is no label", hint="write it as name=value")
    return tuple((key, value) for key, _, value in pairs)


def _secret_keys(texts: Iterable[str]) -> tuple[SecretKey, ...]:
    found = []
    for text in texts:
        variable, _, place = text.partition("=")
        secret, slash, key = place.partition("/")
        if not slash:
            raise UsageError(
                f"{text!r} names no key of a Secret", hint="--secret-env HF_TOKEN=my-secret/token"
            )
        found.append(SecretKey(variable=variable, secret=secret, key=key))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What only the user knows of where the job runs: names, images, volumes.

    None stands for a value that was not given: the artefact then shows a placeholder,
    or leaves the choice to the cluster.
    """

    job_name: str | None = option(None, "Name of the job on a cluster.")
    namespace: str | None = option(None, "Kubernetes namespace.")
    image: str | None = option(None, "Container image, e.g. registry.example.com/bert:1.")
    pvc: str | None = option(None, "Volume claim for data and output.")
    memory: str | None = option(None, "Memory of a pod, e.g. 32Gi.")
    node_selector: tuple[tuple[str, str], ...] = option(
        (), "Nodes to run on.", metavar="LABEL=VALUE", reads=_labels, repeated=True
    )
    pull_secrets: tuple[str, ...] = option(
        (), "Secret of the registry.", "--image-pull-secret", repeated=True
    )
    secret_variables: tuple[SecretKey, ...] = option(
        (),
        "A variable from a Secret, e.g. HF_TOKEN=hub/token.",
        "--secret-env",
        metavar="NAME=SECRET/KEY",
        reads=_secret_keys,
        repeated=True,
    )
    user_id: int | None = option(None, "User that pods run as. Default: 1000.")
    runtime: str | None = option(None, "ClusterTrainingRuntime of a TrainJob.")
    time_limit: str | None = option(None, "Slurm time limit, e.g. 04:00:00.", "--time")
    partition: str | None = option(None, "Slurm partition.")
    account: str | None = option(None, "Slurm account.")
    tune: bool = option(False, "With --format slurm: tune in the job, then train in it.")
    interface: str | None = option(None, "Network interface between nodes, e.g. eth0.")

    def __post_init__(self) -> None:
        """Write quantities as the cluster reads them. Raises UsageError for what is none."""
        if self.memory is not None:
            object.__setattr__(self, "memory", kubernetes_memory(self.memory))
        if self.time_limit is not None:
            object.__setattr__(self, "time_limit", slurm_time(self.time_limit))
        if self.user_id is not None and not 0 <= self.user_id < 1 << 31:
            raise UsageError(
                f"--user-id must be 0 to {(1 << 31) - 1}, not {self.user_id}", hint="--user-id 1000"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EmitOptions:
    """How a plan is to be written down.

    Attributes:
        nodes: machines to run on; by default as many as hosts are named, else the plan's.
        keep: the best plan without what changes more in the training than this: "numbers" leaves
            what touches nothing, "mathematics" also what computes the same otherwise.
        mpi: the dialect of ``mpirun``; by default the one of the machine, else the script finds
            out when it runs.
        no_guard: leave out the comparison of several ranks while they train
            (``cputune.inside.carry.guard``).
        versions: distribution versions where the job runs, over those of the result.
        cluster: what only the user knows: names, images, volumes.
    """

    nodes: int | None = option(None, "Number of machines. Default: as many as hosts, else 1.")
    keep: Keep | None = option(
        None,
        "Leave out what changes more in the training: numbers or mathematics.",
        metavar="WHAT",
        reads=_kept,
    )
    mpi: str | None = option(
        None, "The MPI that will start it. Default: the one installed here.", metavar="NAME"
    )
    no_guard: bool = option(False, "Do not compare the ranks while they train.")
    versions: Mapping[str, str] | None = option(None, "Versions where the job runs.", None)
    cluster: Cluster | None = option(None, "What only the user knows of a cluster.", None)


P = ParamSpec("P")
A = TypeVar("A")
B = TypeVar("B")
Back = TypeVar("Back")
Record = TypeVar("Record", covariant=True)


class TakesKeywords(Protocol[P, Record]):
    """Makes of a function of one or two arguments and a record one of these and keywords."""

    @overload
    def __call__(
        self, function: Callable[[A, Record], Back], /
    ) -> Callable[Concatenate[A, P], Back]: ...

    @overload
    def __call__(
        self, function: Callable[[A, B, Record], Back], /
    ) -> Callable[Concatenate[A, B, P], Back]: ...


def keywords_of(record: Callable[P, Record]) -> TakesKeywords[P, Record]:
    """Let a function be called with the fields of its last argument, a record, as keywords.

    Type checkers, ``help`` and ``inspect.signature`` see the fields; an unknown one is a TypeError,
    as in any call.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        *first, _ = inspect.signature(function).parameters.values()
        asked, own = inspect.signature(record), get_type_hints(function)
        shown = inspect.Signature([*first, *asked.parameters.values()])

        @wraps(function)
        def call(*given: Any, **keywords: Any) -> Any:
            bound = shown.bind(*given, **keywords).arguments
            own = [bound.pop(parameter.name) for parameter in first]
            return function(*own, record(**bound))  # type: ignore[call-arg]

        hints = get_type_hints(record)
        kept = {parameter.name: own[parameter.name] for parameter in first}
        kept |= {name: hints[name] for name in asked.parameters}
        call.__annotations__ = {**kept, "return": own["return"]}
        call.__signature__ = shown.replace(  # type: ignore[attr-defined]
            return_annotation=inspect.signature(function).return_annotation
        )
        del call.__wrapped__
        return call

    return decorate
