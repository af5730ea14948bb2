"""Runs a whole script with a plan, shortened to a few steps, in a copy of its folder.

A trial ends while the script trains, so it never sees an evaluation, a second pass over the data,
what is saved, or the end (``cputune.inside.rehearsing``). The files of the plan are compared with
those of the current launch: names, keys of what was saved (``cputune.ranks.saved``), and in JSON
files the metrics of an evaluation.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cputune.host.facts import HostFacts
from cputune.inside import REHEARSE_VARIABLE, SCRATCH_VARIABLE
from cputune.inside.rehearsing import BATCHES
from cputune.plans.plan import Plan
from cputune.plans.workload import Workload
from cputune.ranks import engines, typed, weights
from cputune.ranks.failure import last_words
from cputune.ranks.job import observe
from cputune.ranks.saved import keys_of, metrics_of
from cputune.ranks.supervisor import WorkFolder
from cputune.ranks.supervisor_main import RankCommand
from cputune.ranks.weights import Weights

# A rehearsal ends by itself, or at its time limit.
ENDLESS = 1 << 30

# Bytes of a file that is copied, and of all of them; and their number. Larger files are linked,
# and a link is read-only.
LARGEST_COPIED, MOST_COPIED, MOST_FILES = 16 << 20, 256 << 20, 4000

# Of metrics after a few steps: rounding alone differs. A metric of other samples differs by
# more than a hundredth.
METRIC = {"rel_tol": 2e-3, "abs_tol": 1e-6}

# Folders that are linked as a whole.
LINKED = (".git", ".hg", ".venv", "venv", "node_modules", ".tox", ".mypy_cache")

# When a file was changed (ns), and how many bytes it has.
Stamp = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """How a rehearsal went.

    Attributes:
        failed: why it failed; empty if it did not.
        written: the files that it wrote, each with its keys; None if it has none.
        metrics: of each of them the metrics of an evaluation, by their keys.
        weights: what it has trained; None if that was not seen.
    """

    failed: str = ""
    seconds: float = 0.0
    written: Mapping[str, frozenset[str] | None] = field(default_factory=dict)
    metrics: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)
    weights: Weights | None = None


def rehearse(
    workload: Workload,
    plan: Plan,
    facts: HostFacts,
    *,
    seconds: float,
    more: Mapping[str, str] | None = None,
) -> Rehearsed:
    """Run all of a script with a plan on this machine, for at most these seconds.

    ``more`` are further variables of its processes. Raises TrialError if it cannot be started, and
    ValueError if the batch cannot be divided over the ranks.
    """
    with WorkFolder() as work:
        scratch = work.path / "scratch"  # removed with the folder
        folder = copied(Path.cwd(), scratch / "tree")
        before = dict(files_in(folder))
        lone = typed.alone(workload, plan, facts)

        def commands(variables: Mapping[str, str]) -> list[RankCommand]:
            environment = engines.on_python_path(
                {
                    **lone["env"],
                    **(more or {}),
                    **variables,
                    SCRATCH_VARIABLE: str(scratch),
                    REHEARSE_VARIABLE: os.getcwd(),
                }
            )
            if plan.as_found:
                return [{**lone, "env": environment, "cwd": str(folder)}]
            with engines.held_port() as holder:
                ranks = engines.local_ranks(plan, lone["argv"], environment, holder)
            return [{**rank, "cwd": str(folder)} for rank in ranks]

        ran = observe(commands, ranks=ENDLESS, steps=ENDLESS, timeout_seconds=seconds)
        failed = ""
        if ran.timed_out:
            failed = f"it had not ended after {seconds:.0f} s"
        elif ran.returncode != 0:
            failed = reason(workload.hide(ran.output, os.environ), ran.returncode)
        places = written(folder, before, scratch)
        return Rehearsed(
            failed=failed,
            seconds=ran.seconds,
            written={name: keys_of(path) for name, path in places.items()},
            metrics={name: metrics_of(path) for name, path in places.items()},
            weights=weights.read(scratch),
        )


def reason(output: str, status: int | None) -> str:
    """Why a script failed, by its output and its exit status."""
    ours = re.search(r"(?m)^error: (.+)$", output)
    if ours is not None:
        return ours[1]
    # A rank that fails takes the connections of the others with it.
    followed = ("gloo", "closed by peer", "reset by peer")
    lines = []
    for line in output.splitlines():
        if not any(text in line for text in followed):
            lines.append(line)
    raised = last_words("\n".join(lines))
    parts = [part for part in (raised["kind"], raised["text"]) if part]
    return ": ".join(parts) or f"exit status {status}"


def copied(folder: Path, tree: Path) -> Path:
    """A copy of a folder below ``tree``, in which ``..`` leads to what is next to the folder."""
    place = tree / "parent" / (folder.name or "root")
    place.parent.mkdir(parents=True)
    for beside in sorted(_entries(folder.parent))[:MOST_FILES]:
        if beside.name != folder.name:
            (place.parent / beside.name).symlink_to(beside)
    _copy(folder, place, _Room(), tree)
    return place


@dataclass(slots=True)
class _Room:
    """How much may still be copied."""

    bytes: int = MOST_COPIED
    files: int = MOST_FILES


def _copy(folder: Path, place: Path, room: _Room, tree: Path) -> None:
    """Copy a folder, which may contain the tree that it is copied to; link what cannot be read."""
    place.mkdir()
    for entry in _entries(folder):
        if entry.name == tree.name and entry.samefile(tree):
            continue
        target = place / entry.name
        room.files -= 1
        if entry.is_dir() and not entry.is_symlink():
            if room.files > 0 and entry.name not in LINKED:
                _copy(entry, target, room, tree)
                continue
        elif entry.is_file():
            size = entry.stat().st_size
            if size <= min(LARGEST_COPIED, room.bytes) and room.files > 0:
                room.bytes -= size
                with contextlib.suppress(OSError):
                    shutil.copy2(entry, target)
                    continue
                target.unlink(missing_ok=True)
        target.symlink_to(entry)


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def files_in(folder: Path) -> Iterator[tuple[str, Stamp]]:
    """The files of a folder by their relative names, without what is linked."""
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            if path.is_file() and not path.is_symlink():
                stat = path.stat()
                yield str(path.relative_to(folder)), (stat.st_mtime_ns, stat.st_size)


def written(folder: Path, before: Mapping[str, Stamp], scratch: Path) -> dict[str, Path]:
    """What was written to the copy, and for absolute paths next to it; of like names the last."""
    places = [(folder, name) for name, stamp in files_in(folder) if before.get(name) != stamp]
    beside = scratch / "elsewhere"
    places += [(beside, name) for name, _ in files_in(beside)]
    return {_plain(name): place / name for place, name in sorted(places)}


def _plain(name: str) -> str:
    """A name without what differs from start to start: dates, times, the best checkpoint."""
    if "tfevents" in name:
        return "events of TensorBoard"
    name = re.sub(r"(checkpoint|epoch|step)([-_=]?)\d+", r"\1\2N", name)
    return re.sub(r"\d[\d_:T.-]{5,}", "N", name)


def compared(
    baseline: Rehearsed, plan: Rehearsed, *, ranks: int, draws: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """How the files of a plan differ from those of the current launch, and what was compared.

    Metrics are compared if the ranks have evaluated the same samples, without other ``draws``.
    """
    differing, kinds = differences(baseline, plan, ranks=ranks), ["files"]
    if any(baseline.written.values()):
        kinds.append("keys")
    if not draws and BATCHES % ranks == 0 and any(baseline.metrics.values()):
        kinds.append("metrics")
        differing += tuple(_unlike_metrics(baseline, plan))
    return differing, tuple(kinds)


def weights_apart(
    baseline: Rehearsed, plan: Rehearsed, nudged: Callable[[], Rehearsed | None]
) -> str | None:
    """How what a plan has trained differs from the current launch; empty: only by rounding.

    None if they cannot be compared. ``nudged`` runs the current launch from weights that are
    slightly changed; it is asked if the weights are far apart.
    """
    typed, trained = baseline.weights, plan.weights
    if typed is None or trained is None or not weights.comparable(typed, trained):
        return None
    limit, far = weights.SAME, weights.apart(typed, trained)
    share, buffer = weights.farthest_buffer(typed, trained)
    if far <= limit and share <= weights.SAME_BUFFER:
        return ""
    rounded = nudged()
    if rounded is not None and rounded.weights is not None:
        if not weights.comparable(typed, rounded.weights):
            return None  # its starts differ by themselves
        limit = max(limit, weights.ROUNDED * weights.apart(typed, rounded.weights))
        most, _ = weights.farthest_buffer(typed, rounded.weights)
        share = share if share > weights.ROUNDED * most else 0.0
    steps = f"after {trained.steps} steps of the whole script, shortened"
    own = "what each rank computes from its own samples changes its training"
    if far > limit:
        return f"{steps}, its weights are apart by {far:.2g} of the way that they go: {own}"
    if share > weights.SAME_BUFFER:
        return f"{steps}, its buffer {buffer} is apart by {share:.2g} of what it changes: {own}"
    return ""


def _written_by_rank(name: str, plan: Rehearsed, ranks: int) -> bool:
    """Whether a plan writes a file under the name that it has with another number of ranks.

    Trainer's checkpoints have rng_state.pth of one rank, rng_state_0.pth and so on of several.
    """
    place = Path(name)
    if str(place.with_stem(f"{place.stem}_0")) in plan.written:
        return True
    numbered = re.fullmatch(r"(.+)_(\d+)", place.stem)
    if numbered is None:
        return False
    if ranks == 1 and str(place.with_stem(numbered[1])) in plan.written:
        return True
    first = str(place.with_stem(f"{numbered[1]}_0"))
    return int(numbered[2]) >= ranks and first in plan.written


def _unlike_metrics(baseline: Rehearsed, plan: Rehearsed) -> Iterator[str]:
    """The metrics that differ, the first of each file."""
    for name, values in baseline.metrics.items():
        others = plan.metrics.get(name, {})
        for key, as_typed in values.items():
            pairs = list(zip(as_typed, others.get(key, as_typed), strict=False))
            unlike = [(a, b) for a, b in pairs if not math.isclose(a, b, **METRIC)]
            if unlike:
                typed_value, value = unlike[0]
                yield f"{key} in {name} is {value:.6g}, as typed {typed_value:.6g}"
                break


def differences(baseline: Rehearsed, plan: Rehearsed, *, ranks: int) -> tuple[str, ...]:
    """What the current launch wrote and the plan did not; each of its ``ranks`` may write its own
    files.
    """
    texts = []
    for name, keys in baseline.written.items():
        if name not in plan.written:
            if not _written_by_rank(name, plan, ranks):
                texts.append(f"it does not write {name}")
            continue
        others = plan.written[name]
        missing = sorted((keys or frozenset()) - (others or frozenset()))
        if not missing:
            continue
        prefixed = [key for key in others or () if "module." in f".{key}"]
        if prefixed:
            texts.append(f"keys of {name} begin with 'module.' ({prefixed[0]})")
        else:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            texts.append(f"{name} lacks the key {missing[0]}{more}")
    return tuple(texts)
