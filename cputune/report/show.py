"""Shows a result to people and to programs, and lists the results that were kept."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING

from cputune.emitters import Emission
from cputune.emitters.hand import typed_lines
from cputune.emitters.job import make_job, usual_format, versions_of
from cputune.errors import UsageError
from cputune.host import LiveHost
from cputune.host.interpreter import training_python
from cputune.plans.carrier.command import carried
from cputune.plans.knobs import knob_named, least_kept
from cputune.plans.knobs.record import KEPT, Keeps, in_words as knob_words
from cputune.plans.levers import Lever
from cputune.plans.plan import Plan
from cputune.records.claims import (
    FASTER,
    UNDECIDED,
    ClaimContext,
    Speedup,
    factor,
    host_fingerprint,
    machine_name,
    section,
)
from cputune.records.history import Kept
from cputune.records.result import Result
from cputune.records.words import (
    OUTCOME_WORDS,
    TUNE_AGAIN,
    Verdict,
    changed_since,
    duration,
    machine_difference,
    verdict_of,
)
from cputune.report.machine import gib
from cputune.report.network import network_lines
from cputune.report.tuning import plans, said_speed
from cputune.report.writing import Bars, Block, Heading, Labelled, Lines, Rows, print_blocks
from cputune.text import cpulist
from cputune.text.documents import plain
from cputune.text.plain import count, figure
from cputune.tuner.changes import LAYOUT, layout_words, separate_knobs, shape

if TYPE_CHECKING:
    from cputune.host.facts import HostFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeMade:
    """One thing to change on the way from today's launch to the best plan.

    Knobs that were measured together are one change, separated by commas. ``keeps`` says what of
    the training stays the same. ``worth`` is how many times as fast this change makes the plan
    before it. It is None where the change was not measured by itself, or the machine was disturbed.
    """

    knob: str
    today: str
    best: str
    keeps: str
    worth: Speedup | None = None


def changes_of(result: Result) -> tuple[ChangeMade, ...]:
    """What differs between today's launch and the best plan, and what each is worth."""
    today, best = result.baseline.plan, result.best.plan
    left = dict(_differences(today, best))
    ranks = knob_named("ranks").keeps if today.world_size != best.world_size else "numbers"
    found = []
    for worth in result.worth:
        names = [name for name in worth.knob.split(", ") if name in left]
        if names:
            values = [left.pop(name) for name in names]
            known = worth.speedup.narrow and not result.disturbed
            found.append(_change(names, values, ranks, worth.speedup if known else None))
    return (*found, *(_change([name], [values], ranks, None) for name, values in left.items()))


def _change(
    names: list[str], values: list[tuple[str, str]], ranks: Keeps, worth: Speedup | None
) -> ChangeMade:
    kept = (ranks if name == LAYOUT else knob_named(name).keeps for name in names)
    return ChangeMade(
        knob=", ".join(names),
        today=", ".join(today for today, _ in values),
        best=", ".join(best for _, best in values),
        keeps=KEPT[least_kept(kept)],
        worth=worth,
    )


def _differences(today: Plan, best: Plan) -> Iterator[tuple[str, tuple[str, str]]]:
    """Each knob that differs, with (today's value, the best plan's); the layout comes first."""
    if shape(today) != shape(best):
        words = layout_words(today), layout_words(best)
        if words[0] == words[1]:
            words = _on_cpus(today), _on_cpus(best)
        yield LAYOUT, words
    between = ("backend", "ccl_workers") if min(today.world_size, best.world_size) > 1 else ()
    for name in (*between, *separate_knobs()):  # a single rank exchanges nothing
        values = today.value(name), best.value(name)
        if values[0] != values[1]:
            yield name, (knob_words(values[0]), knob_words(values[1]))


def _on_cpus(plan: Plan) -> str:
    return f"{layout_words(plan)} on CPUs {cpulist.render(cpu for r in plan.cpus for cpu in r)}"


def worth_words(change: ChangeMade) -> str:
    """``×2.10 (2.02–2.18)``, and whether the change is surely faster."""
    if change.worth is None:
        return "not known"
    undecided = change.worth.outcome == UNDECIDED
    return factor(change.worth) + (f", {UNDECIDED}" if undecided else "")


def launch_commands(
    file: str, nodes: int = 1, facts: HostFacts | None = None, *, elsewhere: bool = False
) -> tuple[str, ...]:
    """Train with the best plan of a result file: at once, and by files that launch it.

    ``facts`` are of the machine on which the command is typed; mpirun is proposed for several nodes
    if it has one. ``elsewhere``: that is not the machine that was measured, which has to be said.
    """
    words = shlex.quote(file)
    if elsewhere:
        words = f"--other-machine {words}"
    by_torchrun = f"cputune emit --format torchrun -o launch {words}"
    if nodes == 1:
        return f"cputune run {words}", by_torchrun
    if facts is not None and usual_format(facts) == "mpirun":
        return f"cputune emit --format mpirun -o launch {words} && sh launch/mpirun.sh", by_torchrun
    return by_torchrun, by_torchrun


THE_REST = "the rest"
LEAST_SHARE = 0.005
"""A kind of work with a smaller share of the time is not shown."""

WORTH_A_HINT = 0.05
"""Masks with a smaller share of the step cannot gain what a measurement can tell."""


def time_rows(result: Result) -> Rows:
    """The time of a step of the best plan, by what it is spent on.

    The step takes as many samples as one of today's launch; where their number is not known, it is
    the time of one sample. The speed is the one that was measured without the profiler.
    """
    profile, job, best = result.profile, result.workload, result.best
    rate = best.samples_per_second.centre
    if profile is None or profile.plan != best.plan or rate <= 0:
        return Rows(headings=(), rows=())
    samples = job.global_batch_size
    if job.batch_per_rank is not None:
        samples = job.batch_per_rank * result.baseline.plan.world_size
    seconds = (samples or 1) / rate
    rows = [(f"a step of {samples} samples" if samples else "a sample", _time(seconds))]
    for kind, share in sorted(profile.shares.items(), key=lambda part: -part[1]):
        if share >= LEAST_SHARE:
            rows.append((kind, f"{_time(share * seconds)} ({share:.0%})"))
    column = "today" if best.plan == result.baseline.plan else "best"
    return Rows(headings=("", column), rows=tuple(rows))


def _time(seconds: float) -> str:
    return f"{figure(1000 * seconds)} ms" if seconds < 1 else f"{figure(seconds)} s"


def profile_lines(result: Result) -> Iterator[str]:
    """How far the best plan's products are from the limit, what the network costs, what helps."""
    yield from network_lines(result)
    profile = result.profile
    if profile is None:
        return
    if profile.gflops is None:
        yield "how far its matrix products are from the limit is not known: IPEX tells none"
    elif profile.limit_gflops:
        dtype = profile.dtype or ""
        words = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}.get(dtype, dtype)
        yield (
            f"matrix products of the best plan: {figure(profile.gflops)} GFLOP/s over the whole "
            f"step, {100 * profile.gflops / profile.limit_gflops:.0f} % of the "
            f"{figure(profile.limit_gflops)} that its cores reach in {words}"
        )
    could_be = {out.what for out in result.left_out}
    if profile.shares.get("dropout masks", 0.0) >= WORTH_A_HINT and "dropout" in could_be:
        yield "--fix dropout=bytes draws the masks on all threads (docs/knobs.md)"


def time_bars(result: Result, most: int) -> Bars:
    """The time of a step of the best plan as at most so many bars, the rest as the last one."""
    profile = result.profile
    rate = result.best.samples_per_second.centre
    if profile is None or profile.plan != result.best.plan or rate <= 0:
        return Bars(())
    shares = {kind: share for kind, share in profile.shares.items() if kind != THE_REST}
    kinds = sorted(shares, key=lambda kind: -shares[kind])[: most - 1]
    shown = {kind: shares[kind] for kind in kinds}
    shown[THE_REST] = sum(profile.shares.values()) - sum(shown.values())
    seconds = (result.workload.global_batch_size or 1) / rate
    longest = max(shown.values())
    rows = (
        (kind, _time(share * seconds), share / longest, f"{share:.0%}")
        for kind, share in shown.items()
    )
    return Bars(tuple(rows))


def change_bars(result: Result) -> Bars:
    """What to change, a line each; the bar is what it brings, as a share of what all bring."""
    changes = changes_of(result)
    logs = [
        0.0 if change.worth is None else max(0.0, log(change.worth.ratio)) for change in changes
    ]
    longest = max(logs, default=0.0) or 1.0
    rows = []
    for change, length in zip(changes, logs, strict=True):
        brings, unsure = worth_words(change).partition(", ")[::2]
        rows.append((_brief(change), brings, length / longest, unsure or change.keeps))
    return Bars(tuple(rows))


def _brief(change: ChangeMade) -> str:
    """``precision fp32 → bf16``; ranks and threads as in a plan's short name."""
    words = f"{change.knob} {change.today} → {change.best}"
    if LAYOUT in change.knob:
        words = words.replace(" × ", "×").replace(" threads", "").replace(LAYOUT, "ranks×threads")
    return words


SCHEMA = "cputune.summary/1"

PASTED = ("train", "the same", "launch files", "variables", "flags")
"""What of a launch is copied, and stands in one line."""

MOST_LINES = 30
"""Of the end of a study, at 80 columns."""

MOST_CHANGES, MOST_UNTRIED, MOST_KINDS = 6, 2, 7
"""Lines that each part of the end may have; the rest is a matter of ``cputune show --all``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultToShow:
    """A result that is to be shown.

    ``file`` is the word by which commands name it. ``facts`` are those of the machine that it is
    shown on; None where nothing is known of that.
    """

    result: Result
    file: str = "cputune.json"
    facts: HostFacts | None = None

    @property
    def elsewhere(self) -> str | None:
        """How the machine that it was measured on differs from the one that it is shown on."""
        if self.facts is None:
            return None
        return machine_difference(self.result.host, self.facts)

    @property
    def context(self) -> ClaimContext:
        """What a statement is made for: the machine that the result is shown on."""
        if self.facts is None:
            return ClaimContext()
        return ClaimContext(host=host_fingerprint(self.facts), versions=versions_of(self.facts))

    def notes(self) -> tuple[str, ...]:
        """The notes of the result, after what warns."""
        return (*self.warnings(), *self.result.notes)

    def warnings(self) -> tuple[str, ...]:
        """What has changed on this machine since it was measured."""
        # The verdict itself names another machine.
        if self.facts is None or self.elsewhere is not None:
            return ()
        changes = changed_since(self.result, self.facts)
        if not changes:
            return ()
        return (f"{'; '.join(changes)}: {TUNE_AGAIN}.",)

    def verdict(self) -> Verdict:
        """What the result means, what to do now, and how sure it is."""
        nodes = self.result.best.plan.nodes
        now = launch_commands(self.file, nodes, self.facts)[0]
        return verdict_of(self.result, now, self.context)

    def by_hand(self) -> str:
        """The best plan as a person types it. Raises UsageError where it cannot be launched."""
        here = self.facts is not None and not self.facts.recorded
        asked = Emission(
            facts=self.facts,
            named=self.file,
            python=training_python() if here else None,
            host=LiveHost() if here else None,
        )
        return typed_lines(make_job(self.result, asked)).rstrip("\n")

    def launch(self) -> dict[str, str]:
        """How the best plan is started, and what each of its ranks is given.

        Empty if the machine was disturbed, since no plan is recommended then.
        """
        result, plan = self.result, self.result.best.plan
        if result.disturbed:
            return {}
        if self.elsewhere is not None:
            files = launch_commands(self.file, plan.nodes, self.facts, elsewhere=True)[1]
            return {"launch files": files}
        now, files = launch_commands(self.file, plan.nodes, self.facts)
        commands = {"train": now, "launch files": files}
        try:
            commands = {"train": self.by_hand(), "the same": now, "launch files": files}
            way = carried(result.workload, plan, result.versions)
        except (UsageError, ValueError) as error:  # the batch was changed by hand
            return {**commands, "impossible": str(error)}
        if commands["train"] == now:
            del commands["the same"]
        else:
            return commands
        if way.variables:
            words = (f"{name}={shlex.quote(value)}" for name, value in way.variables.items())
            commands["variables"] = " ".join(words)
        if way.flags:
            commands["flags"] = shlex.join(way.flags)
        return commands


def legend(result: Result) -> str:
    """How the short name of a plan is read, with the numbers of this machine."""
    return f"{result.best.plan.legend()}; then precision, libraries, knobs."


def speeds(result: Result) -> Rows:
    """Today's launch, and the best plan where it is another."""
    sides = {"today": result.baseline}
    if result.best.plan != result.baseline.plan:
        name = "perhaps faster" if result.disturbed else "best"
        sides[name] = result.best
    return Rows(
        headings=("", "samples/s", "95 % interval", "plan"),
        right=frozenset({"samples/s"}),
        rows=tuple(
            (name, *said_speed(result, side), side.plan.short()) for name, side in sides.items()
        ),
        below=legend(result),
    )


def change_rows(result: Result) -> Rows:
    """What to change, and what each is worth."""
    return Rows(
        headings=("knob", "from today to best", "faster by", "it computes"),
        rows=tuple(
            (change.knob, f"{change.today} → {change.best}", worth_words(change), change.keeps)
            for change in changes_of(result)
        ),
    )


def blocks(shown: ResultToShow) -> Iterator[Block]:
    """All of a result: the verdict, what to change, the launch, the plans, what they rest on."""
    result = shown.result
    yield shown.verdict()
    yield speeds(result)
    yield Lines(tuple(("note", note) for note in shown.notes()))
    if (changes := change_rows(result)).rows:
        yield Heading("What to change")
        yield changes
    if launch := shown.launch():
        yield Heading("The launch")
        yield Labelled(rows=tuple(launch.items()), pasted=PASTED)
    if (times := time_rows(result)).rows:
        yield Heading("Where the time goes")
        yield times
    yield Lines(tuple(("", line) for line in profile_lines(result)))
    yield Heading("The plans")
    yield plans(result)
    yield from _untried(result.untried)
    if result.left_out:
        yield Heading("Left out, and why")
        yield Labelled(rows=tuple(dict.fromkeys((out.what, out.why) for out in result.left_out)))
    yield Heading("What it rests on")
    yield Labelled(rows=basis(result))


def end_blocks(shown: ResultToShow) -> Iterator[Block]:
    """The answer, in at most 30 lines of 80 columns: what ``tune`` prints at its end."""
    result = shown.result
    yield shown.verdict()
    yield speeds(result)
    yield Lines(tuple(("note", warning) for warning in shown.warnings()))
    launch = shown.launch()
    is_new = result.best.plan != result.baseline.plan
    by_hand = launch["train"] if "the same" in launch and is_new else ""
    if by_hand:
        yield Heading("By hand")
        yield Labelled(rows=(("", by_hand),), pasted=("",))
    changes = Bars(change_bars(result).rows[:MOST_CHANGES])
    if changes.rows:
        yield Heading("What to change: what it brings, and what it computes")
        yield changes
    untried = result.untried[:MOST_UNTRIED]
    lines = 2 * len(shown.verdict().ladder) + 2 * len(untried) + len(by_hand.splitlines())
    taken = 15 + lines + len(changes.rows)
    if (times := time_bars(result, max(3, min(MOST_KINDS, MOST_LINES - taken)))).rows:
        samples = result.workload.global_batch_size
        step = f", in a step of {samples} samples" if samples else ""
        yield Heading(f"Where the time goes{step}")
        yield times
    yield from _untried(untried)
    notes = f", with {count(len(result.notes), 'note')} on it" if result.notes else ""
    yield Lines((("all of it", f"cputune show --all{notes}"), ("as a page", "cputune report")))


def _untried(levers: Sequence[Lever]) -> Iterator[Block]:
    """What would pay: a line for each, and below it the command that does it."""
    if not levers:
        return
    yield Heading("Not tried, and would pay")
    lines = []
    for lever in levers:
        if lever.takes == "one command":
            lines += [("", lever.brings), ("$", lever.do)]
        else:
            lines.append(("", lever.words))
    yield Lines(tuple(lines))


def basis(result: Result) -> tuple[tuple[str, str], ...]:
    """(label, text) of what a result rests on: work, study, machine, versions; where known."""
    job, runs, host = result.workload, result.confirmation, result.host
    recipe = job.recipe
    batch = job.global_batch_size and f"{job.global_batch_size} samples per step"
    if job.batch_per_rank is not None:
        batch = f"{job.batch_per_rank} samples of each rank per step"
    states = [trial.state for trial in result.trials]
    kinds = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    failed = sum(run.samples_per_second is None for run in runs)
    pairs = "no" if result.speedup is None else result.speedup.pairs
    side = f"{pairs} pairs, {len(runs)} runs"
    side += f", {failed} failed" if failed else ""
    seed = None if result.seed is None else f"seed {result.seed}"
    budget = f"budget {result.budget}" if result.budget else None
    asked = (f"{name} {value}" for name, value in result.asked.items())
    cpu, topology, limits = (section(host, name) for name in ("cpu", "topology", "limits"))
    memory = limits.get("memory_bytes")
    rows = {
        "recipe": recipe and job.name,
        "task": recipe and recipe.task,
        "sequence length": recipe and recipe.sequence_length,
        "script": " ".join(job.argv),
        "batch": batch,
        "data": result.data,
        "measured": result.created,
        "trials": f"{len(states)} ({kinds or 'none'})",
        "took": None if result.seconds is None else duration(result.seconds),
        "search": ", ".join(filter(None, (result.sampler, budget, seed, *asked))),
        "side by side": side if runs else "not confirmed: speeds are those of single trials",
        "machine": machine_name(host),
        "codename": cpu.get("codename") if cpu.get("model_name") else None,
        "NUMA nodes": topology.get("numa_nodes"),
        "threads per core": topology.get("threads_per_core"),
        "allowed CPUs": topology.get("allowed"),
        "CPU quota": limits.get("cpu_quota"),
        "memory limit": gib(memory) if isinstance(memory, int) else None,
        "versions": ", ".join(f"{name} {version}" for name, version in result.versions.items()),
    }
    return tuple((label, str(value)) for label, value in rows.items() if value)


def document(shown: ResultToShow) -> dict[str, object]:
    """The ``cputune.summary/1`` document: what is shown, and the result in full."""
    result, verdict = shown.result, shown.verdict()
    speedup = result.speedup
    return {
        "schema": SCHEMA,
        "verdict": verdict.means,
        "do": verdict.do,
        "sure": verdict.sure,
        "ladder": list(verdict.ladder),
        "outcome": result.outcome,
        "speedup": plain(speedup),
        "not_compared": result.not_compared,
        "changes": plain(changes_of(result)),
        "launch": shown.launch(),
        "basis": dict(basis(result)),
        "other_machine": shown.elsewhere,
        "result": result.to_json(),
    }


def show(result: Result, *, every: bool = False) -> None:
    """Print the answer, as ``cputune show`` does; with ``every`` all that the result says."""
    from rich.console import Console

    console = Console(highlight=False, emoji=False, markup=False)
    shown = ResultToShow(result=result)
    print_blocks(blocks(shown) if every else end_blocks(shown), console)


def history_rows(kept: Sequence[Kept]) -> Rows:
    """A row for each result that was kept, the newest first; one that cannot be read is its id."""
    return Rows(headings=("id", "machine", "work", "gain"), rows=tuple(map(_history_row, kept)))


def _history_row(kept: Kept) -> tuple[str, ...]:
    result = kept.result
    if result is None:
        return (kept.id, "not known", "not known", "not known")
    return (kept.id, machine_name(result.host), result.workload.name, _gain(result))


def _gain(result: Result) -> str:
    speedup = result.speedup
    if speedup is None or speedup.outcome != FASTER or not speedup.narrow:
        return OUTCOME_WORDS[result.outcome]
    return factor(speedup)


def history_document(kept: Sequence[Kept]) -> dict[str, object]:
    """The same rows as the ``cputune.history/1`` document."""
    table = history_rows(kept)
    rows = [dict(zip(table.headings, row, strict=True)) for row in table.rows]
    return {"schema": "cputune.history/1", "results": rows}
