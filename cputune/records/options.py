"""Every option of ``tune`` and ``emit``, each in one place.

A field gives the type, the default, the help and the flag. The command line, the keyword arguments
of the library, the configuration file, the variables (``CPUTUNE_TUNE_BUDGET``), ``cputune config``
and the pages of docs/ are made from it.
"""

from __future__ import annotations

import difflib
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

from cputune.errors import ArgumentsError, UsageError
from cputune.text.quantities import kubernetes_memory, slurm_time

Keep = Literal["numbers", "mathematics", "distribution"]
KEEP: tuple[Keep, ...] = get_args(Keep)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionText:
    """The texts and the parser of an option.

    Attributes:
        flag: None for an option of the library alone.
        metavar: the placeholder of the value in the help.
        reads: converts the typed text to the value. Raises UsageError.
        repeated: the option may be given several times.
    """

    help: str
    flag: str | None
    metavar: str | None = None
    reads: Callable[[Any], Any] | None = None
    repeated: bool = False


def option(default: object, help: str, flag: str | None = "", **texts: Any) -> Any:
    """A field that is an option. By default the flag has the name of the field."""
    return field(default=default, metadata={"option": OptionText(help=help, flag=flag, **texts)})


def options_in(record: type) -> tuple[tuple[str, Any, Any, OptionText], ...]:
    """(name, type, default, texts) of each option of a record that has a flag."""
    hints = get_type_hints(record)
    options = []
    for option in fields(record):
        text = option.metadata["option"]
        if text.flag is not None:
            flag = text.flag or f"--{option.name.replace('_', '-')}"
            options.append(
                (option.name, hints[option.name], option.default, replace(text, flag=flag))
            )
    return tuple(options)


def keywords(record: Any) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}


_STORAGE_AND_SCHEDULE = {"budget", "study", "study_name", "resume", "share_machine"}
# Options that may change when a study is resumed.
MAY_CHANGE = _STORAGE_AND_SCHEDULE | {"max_time", "max_time_seconds", "price_per_hour"}
# Options that do not change what is searched, or that the result stores elsewhere.
_NOT_SEARCHED = MAY_CHANGE | {"seed"}
_TIME = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?")


DEFAULT_BUDGET = 20  # trials of a study
# A comparison of two plans has half of it.
DEFAULT_LIMIT_SECONDS = 360.0


def seconds_of(text: str) -> float:
    """90s, 10m or 1h30m in seconds. Raises UsageError."""
    match = _TIME.fullmatch(text.strip().lower())
    if match is None or not any(match.groups()):
        raise UsageError(f"{text!r} is not a time", hint="--max-time 90s, 10m or 1h30m")
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    total = hours * 3600 + minutes * 60 + seconds
    if total == 0:
        raise UsageError("--max-time must be positive", hint="--max-time 10m")
    return float(total)


def _most_seconds(text: str) -> float:
    if text.strip().lower() == "none":
        return math.inf
    return seconds_of(text)


def _names(text: str) -> tuple[str, ...]:
    names: list[str] = []
    for name in text.split(","):
        if name.strip():
            names.append(name.strip())
    return tuple(names)


def _kept(text: str) -> Keep:
    for keep in KEEP:
        if text == keep:
            return keep
    raise UsageError(
        f"--keep must be {', '.join(KEEP[:-1])} or {KEEP[-1]}, not {text!r}",
        hint="--keep mathematics (no other dropout masks, no bf16)",
    )


def _fixed(texts: Iterable[str]) -> dict[str, str]:
    """Parse NAME=VALUE texts. Raises UsageError if a knob has two values."""
    fixed: dict[str, str] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (name and equals and value):
            raise UsageError(f"--fix takes NAME=VALUE, not {text!r}", hint="--fix precision=fp32")
        if fixed.setdefault(name, value) != value:
            raise UsageError(
                f"--fix sets {name} to {fixed[name]} and to {value}",
                hint=f"remove one of them; --knobs {name} varies it",
            )
    return fixed


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """The options of a study, except for the workload and the machine.

    Attributes:
        budget: number of trials including the baseline, without the confirmation; at least 1.
        seed: the same seed and the same measurements give the same proposals.
        max_time_seconds: time limit for everything, including waiting, imports and downloads;
            the running step may still finish. The search takes at most 7/10 of it. None: six
            minutes, or no limit for a runner that simulates. ``math.inf``: no limit.
        max_time: the same as text, "90s", "2m", "1h30m" or "none". Give only one of the two.
        knobs: names of the knobs that are varied, by default all.
        fix: knobs and the value at which they are held.
        keep: vary only what keeps this much of the training: "numbers" (identical to the last
            bit, except for the effect of the number of threads), "mathematics" (other rounding
            or order of summation), or "distribution" (other dropout masks and batches). None:
            those three, and bf16 if the CPU has instructions for it.
        price_per_hour: of one machine. The verdict then states the cost of the whole training.
        allow_slow_precision: also try bf16 if the CPU only emulates it.
        allow_bf16_gradients: also try sending gradients in bf16.
        study: a file (Optuna's journal), or the address of a database for Optuna's ``RDBStorage``
            (``postgresql://HOST/DATABASE``, ``sqlite:///FILE``). None: in memory.
        study_name: None: "cputune".
        resume: continue that study. Host, workload, seed and knobs must be the same.
        share_machine: measure while other processes compute, and give no ratio if they delayed
            most of the steps. By default a disturbed result is an error.
    """

    budget: int = option(DEFAULT_BUDGET, "Maximum number of plans to try.")
    seed: int = option(0, "Random seed: the same seed tries the same plans.")
    max_time_seconds: float | None = option(
        None,
        f"Time limit: 90s, 10m, 1h30m or none. Default: {DEFAULT_LIMIT_SECONDS / 60:.0f}m. "
        "Plans are tried as long as the best one can still be compared with your launch.",
        "--max-time",
        metavar="TIME",
        reads=_most_seconds,
    )
    max_time: str | float | None = option(None, "The time limit as it is typed, e.g. 2m.", None)
    knobs: Iterable[str] | None = option(
        None,
        "Only vary these knobs.",
        metavar="A,B",
        reads=_names,
    )
    fix: Mapping[str, Any] | None = option(
        None,
        "Fix a knob to a value, e.g. precision=fp32.",
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
    allow_slow_precision: bool = option(False, "Try bf16 even if the CPU only emulates it.")
    allow_bf16_gradients: bool = option(
        False, "Try sending gradients in bf16: less traffic, other numbers."
    )
    study: str | Path | None = option(
        None,
        "Storage of the trials, for --resume: a file, or a database: postgresql://HOST/NAME.",
        metavar="FILE.db",
    )
    study_name: str | None = option(None, "Name of the study there. Default: cputune.")
    resume: bool = option(False, "Continue an interrupted study.")
    share_machine: bool = option(False, "Measure even while another process measures here.")

    def __post_init__(self) -> None:
        """Raise UsageError for values that cannot be used, however they were given."""
        if type(self.budget) is not int or self.budget < 1:
            problem = f"--budget must be a whole number, 1 or more, not {self.budget!r}"
            raise UsageError(problem, hint="--budget 20")
        if self.max_time is not None:
            if self.max_time_seconds is not None:
                problem = "max_time and max_time_seconds cannot both be given"
                raise UsageError(problem, hint='max_time="10m"')
            if isinstance(self.max_time, str):
                seconds = _most_seconds(self.max_time)
            else:
                seconds = float(self.max_time)
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
        """The options that change the search and differ from their default."""
        narrowed = {}
        for name, _, usual, _ in options_in(TuneOptions):
            value = getattr(self, name)
            if name == "knobs":
                value = list(value or ())  # as it is read back from JSON
            if name not in _NOT_SEARCHED and value not in (usual, []):
                narrowed[name] = value
        return narrowed


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretKey:
    """A variable whose value is in a key of a Kubernetes Secret."""

    variable: str
    secret: str
    key: str


def _labels(texts: Iterable[str]) -> tuple[tuple[str, str], ...]:
    pairs = [text.partition("=") for text in texts]
    for key, equals, _ in pairs:
        if not equals:
            raise UsageError(
                f"--node-selector takes LABEL=VALUE, not {key!r}",
                hint="--node-selector disktype=ssd",
            )
    return tuple((key, value) for key, _, value in pairs)


def _secret_keys(texts: Iterable[str]) -> tuple[SecretKey, ...]:
    secrets = []
    for text in texts:
        variable, _, place = text.partition("=")
        secret, slash, key = place.partition("/")
        if not slash:
            raise UsageError(
                f"--secret-env takes NAME=SECRET/KEY, not {text!r}",
                hint="--secret-env HF_TOKEN=my-secret/token",
            )
        secrets.append(SecretKey(variable=variable, secret=secret, key=key))
    return tuple(secrets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What only the user knows about the cluster: names, images, volumes.

    For None the artefact has a placeholder, or leaves the choice to the cluster.
    """

    job_name: str | None = option(None, "Name of the job on a cluster.")
    namespace: str | None = option(None, "Kubernetes namespace.")
    image: str | None = option(None, "Container image, e.g. registry.example.com/bert:1.")
    pvc: str | None = option(None, "Volume claim for data and output.")
    memory: str | None = option(None, "Memory of a pod, e.g. 32Gi.")
    reserve_cpus: int | None = option(
        None, "CPUs of a node that pods leave to the kubelet. Default: by its size."
    )
    max_restarts: int | None = option(
        None, "Restarts of a PyTorchJob, which is then elastic, of a fixed size."
    )
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
        """Rewrite quantities in the form that the cluster reads. Raises UsageError."""
        if self.memory is not None:
            object.__setattr__(self, "memory", kubernetes_memory(self.memory))
        if self.time_limit is not None:
            object.__setattr__(self, "time_limit", slurm_time(self.time_limit))
        for name in ("reserve_cpus", "max_restarts"):
            number = getattr(self, name)
            if number is not None and not 0 <= number < 10_000:
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(f"{flag} is 0 or more, not {number}", hint=f"{flag} 1")
        if self.user_id is not None and not 0 <= self.user_id < 1 << 31:
            raise UsageError(
                f"--user-id must be 0 to {(1 << 31) - 1}, not {self.user_id}", hint="--user-id 1000"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EmitOptions:
    """How a plan is written to files.

    Attributes:
        nodes: by default the number of named hosts, or else that of the plan.
        ranks_per_node: ranks on each machine, which share its cores equally. Another number
            than that of the plan is not measured.
        keep: leave out changes of the best plan that keep less of the training than this:
            "numbers" or "mathematics".
        mpi: the MPI of ``mpirun``. By default the one installed here, or the one that the
            script finds when it runs.
        no_guard: do not compare the ranks while they train (``cputune.inside.applying.guard``).
        self_contained: write copies of what a launch needs of cputune.
        versions: package versions on the machine that will train.
        cluster: what only the user knows.
    """

    nodes: int | None = option(None, "Number of machines. Default: as many as hosts, else 1.")
    ranks_per_node: int | None = option(
        None, "Ranks on each machine. Another number than was tuned is not measured."
    )
    keep: Keep | None = option(
        None,
        "Leave out changes that keep less of the training: numbers or mathematics.",
        metavar="WHAT",
        reads=_kept,
    )
    mpi: str | None = option(
        None, "The MPI that will start it. Default: the one installed here.", metavar="NAME"
    )
    no_guard: bool = option(False, "Do not compare the ranks while they train.")
    self_contained: bool = option(False, "Copy what the launch needs, for use without cputune.")
    versions: Mapping[str, str] | None = option(None, "Versions where the job runs.", None)
    cluster: Cluster | None = option(None, "What only the user knows of a cluster.", None)


def _not_taken(
    function: str, shown: inspect.Signature, keywords: Iterable[str], problem: str
) -> ArgumentsError:
    """The error for arguments that a function does not take."""
    for name in keywords:
        if name in shown.parameters:
            continue
        message = f"cputune.{function}() has no argument {name!r}"
        if "cluster" in shown.parameters and name in get_type_hints(Cluster):
            return ArgumentsError(message, hint=f"cluster=cputune.Cluster({name}=…)")
        near = difflib.get_close_matches(name, shown.parameters, n=1)
        if near:
            return ArgumentsError(message, hint=f"did you mean {near[0]}?")
        return ArgumentsError(message, hint=f"help(cputune.{function}) lists its arguments")
    return ArgumentsError(
        f"cputune.{function}(): {problem}", hint=f"help(cputune.{function}) lists its arguments"
    )


P = ParamSpec("P")
A = TypeVar("A")
B = TypeVar("B")
Back = TypeVar("Back")
Record = TypeVar("Record", covariant=True)


class TakesKeywords(Protocol[P, Record]):
    """Type of a decorator: the last argument of a function, a record, becomes its keywords."""

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

    Type checkers, ``help`` and ``inspect.signature`` see the fields.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        leading = list(inspect.signature(function).parameters.values())[:-1]
        of_record, of_function = inspect.signature(record), get_type_hints(function)
        shown = inspect.Signature(leading + list(of_record.parameters.values()))

        @wraps(function)
        def call(*args: Any, **keywords: Any) -> Any:
            try:
                bound = shown.bind(*args, **keywords).arguments
            except TypeError as error:
                raise _not_taken(function.__name__, shown, keywords, str(error)) from None
            positional = [bound.pop(parameter.name) for parameter in leading]
            return function(*positional, record(**bound))  # type: ignore[call-arg]

        hints = get_type_hints(record)
        kept = {parameter.name: of_function[parameter.name] for parameter in leading}
        kept |= {name: hints[name] for name in of_record.parameters}
        call.__annotations__ = kept | {"return": of_function["return"]}
        call.__signature__ = shown.replace(  # type: ignore[attr-defined]
            return_annotation=inspect.signature(function).return_annotation
        )
        del call.__wrapped__
        return call

    return decorate
