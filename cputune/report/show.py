"""Shows a result as blocks and as a document, and lists the results of the history."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cputune.emitters import Emission
from cputune.emitters.hand import typed_lines
from cputune.emitters.prepared import make_job, usual_format, versions_of
from cputune.errors import UsageError
from cputune.host import LiveHost
from cputune.plans.delivery.delivery import delivery_of
from cputune.plans.knobs import knob_named, least_kept
from cputune.plans.knobs.record import KEPT, Keeps
from cputune.plans.plan import Plan
from cputune.plans.untried import UntriedGain
from cputune.plans.values import as_text as knob_words
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
from cputune.records.shared_texts import (
    OUTCOME_WORDS,
    TUNE_AGAIN,
    Verdict,
    changed_since,
    duration,
    machine_difference,
    verdict_of,
)
from cputune.report.machine_text import gib
from cputune.report.network_text import network_lines
from cputune.report.study_table import plans, speed_text
from cputune.report.writing import Block, Heading, Labelled, Lines, Rows
from cputune.text import cpulist
from cputune.text.documents import plain
from cputune.text.plain import figure
from cputune.tuner.changes import LAYOUT, separate_knobs, shape

if TYPE_CHECKING:
    from cputune.host.facts import HostFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeMade:
    """One change on the steps from the baseline to the best plan.

    Knobs that were measured together are one change, with commas. ``worth`` is the ratio over the
    plan before it, None if it was not measured by itself or the machine was disturbed.
    """

    knob: str
    baseline: str
    best: str
    keeps: str
    worth: Speedup | None = None


def changes_of(result: Result) -> tuple[ChangeMade, ...]:
    """The differences between the baseline and the best plan, with the gain of each."""
    baseline, best = result.baseline.plan, result.best.plan
    unmeasured = dict(_differences(baseline, best))
    ranks: Keeps = "numbers"
    if baseline.world_size != best.world_size:
        ranks = knob_named("ranks").keeps
    changes = []
    for worth in result.worth:
        names = [name for name in worth.knob.split(", ") if name in unmeasured]
        if names:
            values = [unmeasured.pop(name) for name in names]
            speedup = None
            if worth.speedup.narrow and not result.disturbed:
                speedup = worth.speedup
            changes.append(_change(names, values, ranks, speedup))
    for name, values_of_name in unmeasured.items():
        changes.append(_change([name], [values_of_name], ranks, None))
    return tuple(changes)


def _change(
    names: list[str], values: list[tuple[str, str]], ranks: Keeps, worth: Speedup | None
) -> ChangeMade:
    kept = []
    for name in names:
        if name == LAYOUT:
            kept.append(ranks)
        else:
            kept.append(knob_named(name).keeps)
    return ChangeMade(
        knob=", ".join(names),
        baseline=", ".join(baseline for baseline, _ in values),
        best=", ".join(best for _, best in values),
        keeps=KEPT[least_kept(kept)],
        worth=worth,
    )


def _differences(baseline: Plan, best: Plan) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield each knob that differs, with (value of the baseline, value of the best plan), layout
    first.
    """
    if shape(baseline) != shape(best):
        layouts = baseline.layout_words(), best.layout_words()
        if layouts[0] == layouts[1]:
            layouts = _on_cpus(baseline), _on_cpus(best)
        yield LAYOUT, layouts
    names = list(separate_knobs())
    if min(baseline.world_size, best.world_size) > 1:  # a single rank exchanges nothing
        names = ["backend", "ccl_workers"] + names
    for name in names:
        values = baseline.value(name), best.value(name)
        if values[0] != values[1]:
            yield name, (knob_words(values[0]), knob_words(values[1]))


def _on_cpus(plan: Plan) -> str:
    cpus = list[int]()
    for rank_cpus in plan.cpus:
        cpus += rank_cpus
    return f"{plan.layout_words()} on CPUs {cpulist.render(cpus)}"


def worth_words(change: ChangeMade) -> str:
    """The gain of a change, ``×2.10 (2.02–2.18)``, and whether it is undecided."""
    if change.worth is None:
        return "not known"
    text = factor(change.worth)
    if change.worth.outcome == UNDECIDED:
        text += f", {UNDECIDED}"
    return text


def launch_commands(
    file: str,
    nodes: int = 1,
    facts: HostFacts | None = None,
    *,
    elsewhere: bool = False,
    through: str | None = None,
) -> tuple[str, ...]:
    """The commands that train with the best plan of a result file: at once, and by launch files.

    ``facts`` are of the machine on which the command is typed. ``elsewhere``: that is not the
    measured machine, which the command has to confirm.
    """
    arguments = shlex.quote(file or DEFAULT_FILE)
    if elsewhere:
        arguments = f"--other-machine {arguments}"
    usual = "torchrun"
    if facts is not None:
        usual = usual_format(facts, nodes)
    by_files = f"cputune emit --format torchrun -o launch {arguments}"
    if usual == "slurm":
        by_files = f"cputune emit --format slurm -o launch {arguments}"
    if nodes == 1 or (through is not None and not elsewhere):
        return f"cputune run {arguments}", by_files
    if usual == "mpirun":
        by_mpirun = f"cputune emit --format mpirun -o launch {arguments} && sh launch/mpirun.sh"
        return by_mpirun, by_files
    return by_files, by_files


THE_REST = "the rest"
LEAST_SHARE = 0.005  # kinds of work with less are not shown

# If dropout masks take a smaller share of the step, their gain could not be measured.
WORTH_A_HINT = 0.05


def time_rows(result: Result) -> Rows:
    """The time of a step of the best plan, by kind of work, with the samples of a baseline step.

    If their number is not known, it is the time of one sample. The throughput is that without the
    profiler.
    """
    profile, job, best = result.profile, result.workload, result.best
    rate = best.samples_per_second.centre
    if profile is None or profile.plan != best.plan or rate <= 0:
        return Rows(headings=(), rows=())
    samples = job.global_batch_size
    if job.batch_per_rank is not None:
        samples = job.batch_per_rank * result.baseline.plan.world_size
    seconds = (samples or 1) / rate
    name = "a sample"
    if samples:
        name = f"a step of {samples} samples"
    rows = [(name, _time(seconds))]
    for kind, share in sorted(profile.shares.items(), key=lambda part: -part[1]):
        if share >= LEAST_SHARE:
            rows.append((kind, f"{_time(share * seconds)} ({share:.0%})"))
    column = "best"
    if best.plan == result.baseline.plan:
        column = "baseline"
    return Rows(headings=("", column), rows=tuple(rows))


def _time(seconds: float) -> str:
    if seconds < 1:
        return f"{figure(1000 * seconds)} ms"
    return f"{figure(seconds)} s"


def profile_lines(result: Result) -> Iterator[str]:
    """Yield how far the matmuls of the best plan are from the limit, the cost of the network, and
    hints.
    """
    yield from network_lines(result)
    profile = result.profile
    if profile is None:
        return
    if profile.gflops is None:
        yield "how far its matmuls are from the limit is not known: IPEX does not report them"
    elif profile.limit_gflops:
        dtype = profile.dtype or ""
        precision = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}.get(dtype, dtype)
        yield (
            f"matmuls of the best plan: {figure(profile.gflops)} GFLOP/s over the whole "
            f"step, {100 * profile.gflops / profile.limit_gflops:.0f} % of the "
            f"{figure(profile.limit_gflops)} that its cores reach in {precision}"
        )
    could_be = {out.what for out in result.left_out}
    if profile.shares.get("dropout masks", 0.0) >= WORTH_A_HINT and "dropout" in could_be:
        yield "--fix dropout=bytes draws the masks on all threads (docs/knobs.md)"


SCHEMA = "cputune.summary/1"

# The result that commands take if none is named.
DEFAULT_FILE = "cputune.json"

# Parts of a launch that are copied, each in one line.
PASTED = ("train", "the same", "launch files", "variables", "flags")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultToShow:
    """A result to show. ``file`` is its name in commands, empty if it was not stored; ``facts`` are
    of the machine on which it is shown.
    """

    result: Result
    file: str = DEFAULT_FILE
    facts: HostFacts | None = None

    def command(self, words: str) -> str:
        """A command of cputune for this result; without its name if it is the one that is taken."""
        if self.file == DEFAULT_FILE:
            return f"cputune {words}"
        return f"cputune {words} {shlex.quote(self.file)}"

    @property
    def elsewhere(self) -> str | None:
        """How the measured machine differs from the one on which the result is shown."""
        if self.facts is None:
            return None
        return machine_difference(self.result.host, self.facts)

    @property
    def context(self) -> ClaimContext:
        """The context of statements: the machine on which the result is shown."""
        if self.facts is None:
            return ClaimContext()
        return ClaimContext(host=host_fingerprint(self.facts), versions=versions_of(self.facts))

    def notes(self) -> tuple[str, ...]:
        return self.warnings() + self.result.notes

    def warnings(self) -> tuple[str, ...]:
        """What has changed on this machine since the measurement."""
        # If the machine is another one, the verdict names it.
        if self.facts is None or self.elsewhere is not None:
            return ()
        changes = changed_since(self.result, self.facts)
        if not changes:
            return ()
        return (f"{'; '.join(changes)}: {TUNE_AGAIN}.",)

    def verdict(self) -> Verdict:
        nodes = self.result.best.plan.nodes
        through = self.result.through
        now = launch_commands(self.file, nodes, self.facts, through=through)[0]
        return verdict_of(self.result, now, self.context)

    def by_hand(self) -> str:
        """The best plan as a command to type. Raises UsageError if it cannot be launched."""
        options = Emission(facts=self.facts, named=self.file)
        if self.facts is not None and not self.facts.recorded:
            python = self.facts.training_python
            options = replace(options, python=python.executable, host=LiveHost(python))
        return typed_lines(make_job(self.result, options)).rstrip("\n")

    def launch(self) -> dict[str, str]:
        """The commands that start the best plan, and the variables and flags of each rank.

        Empty if the machine was disturbed, because no plan is recommended then.
        """
        result, plan = self.result, self.result.best.plan
        if result.disturbed:
            return {}
        if self.elsewhere is not None:
            files = launch_commands(self.file, plan.nodes, self.facts, elsewhere=True)[1]
            return {"launch files": files}
        through = result.through
        now, files = launch_commands(self.file, plan.nodes, self.facts, through=through)
        if plan.nodes > 1:  # no line says what is set on each of several hosts
            return {"train": now, "launch files": files}
        commands = {"train": now, "launch files": files}
        try:
            commands = {"train": self.by_hand(), "the same": now, "launch files": files}
            command = delivery_of(result.workload, plan, result.versions)
        except (UsageError, ValueError) as error:  # the batch was changed by hand
            commands["impossible"] = str(error)
            return commands
        if commands["train"] != now:
            return commands
        del commands["the same"]
        if command.variables:
            assignments = []
            for name, value in command.variables.items():
                assignments.append(f"{name}={shlex.quote(value)}")
            commands["variables"] = " ".join(assignments)
        if command.flags:
            commands["flags"] = shlex.join(command.flags)
        return commands


def legend(result: Result) -> str:
    """How to read the short name of a plan, with the numbers of this machine."""
    return f"{result.best.plan.legend()}; then precision, libraries, knobs."


def speeds(result: Result) -> Rows:
    """The baseline, and the best plan if that is another one."""
    sides = {"baseline": result.baseline}
    if result.best.plan != result.baseline.plan:
        name = "best"
        if result.disturbed:
            name = "perhaps faster"
        sides[name] = result.best
    rows = []
    for name, side in sides.items():
        throughput, interval = speed_text(result, side)
        rows.append((name, throughput, interval, side.plan.short()))
    return Rows(
        headings=("", "samples/s", "95 % interval", "plan"),
        right=frozenset({"samples/s"}),
        rows=tuple(rows),
        below=legend(result),
    )


def change_rows(result: Result) -> Rows:
    rows = []
    for change in changes_of(result):
        values = f"{change.baseline} → {change.best}"
        rows.append((change.knob, values, worth_words(change), change.keeps))
    return Rows(
        headings=("knob", "from baseline to best", "faster by", "it computes"), rows=tuple(rows)
    )


def blocks(shown: ResultToShow) -> Iterator[Block]:
    """All of a result: the verdict, the changes, the launch, the plans, and the basis."""
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
    yield Heading("Measured on")
    yield Labelled(rows=basis(result))


def _untried(gains: Sequence[UntriedGain]) -> Iterator[Block]:
    """What was not tried and may be faster: one line each, with its command below."""
    if not gains:
        return
    yield Heading("Not tried, but promising")
    lines = []
    for gain in gains:
        if gain.takes == "one command":
            lines += [("", gain.gain), ("$", gain.do)]
        else:
            lines.append(("", gain.text))
    yield Lines(tuple(lines))


def basis(result: Result) -> tuple[tuple[str, str], ...]:
    """(label, text) of what a result is based on: workload, study, machine, versions, if known."""
    job, host = result.workload, result.host
    recipe = job.recipe
    batch = job.global_batch_size and f"{job.global_batch_size} samples per step"
    if job.batch_per_rank is not None:
        batch = f"{job.batch_per_rank} samples of each rank per step"
    states = [trial.state for trial in result.trials]
    kinds = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    cpu, topology, limits = (section(host, name) for name in ("cpu", "topology", "limits"))
    codename, took, memory = None, None, None
    if cpu.get("model_name"):
        codename = cpu.get("codename")
    if result.seconds is not None:
        took = duration(result.seconds)
    if isinstance(limits.get("memory_bytes"), int):
        memory = gib(limits["memory_bytes"])
    rows = {
        "recipe": recipe and job.name,
        "task": recipe and recipe.task,
        "sequence length": recipe and recipe.sequence_length,
        "script": " ".join(job.argv),
        "batch": batch,
        "data": result.data,
        "measured": result.created,
        "trials": f"{len(states)} ({kinds or 'none'})",
        "took": took,
        "search": _search_words(result),
        "side by side": _side_by_side_words(result),
        "machine": machine_name(host),
        "codename": codename,
        "NUMA nodes": topology.get("numa_nodes"),
        "threads per core": topology.get("threads_per_core"),
        "allowed CPUs": topology.get("allowed"),
        "CPU quota": limits.get("cpu_quota"),
        "memory limit": memory,
        "versions": ", ".join(f"{name} {version}" for name, version in result.versions.items()),
    }
    pairs: list[tuple[str, str]] = []
    for label, value in rows.items():
        if value:
            pairs.append((label, str(value)))
    return tuple(pairs)


def _search_words(result: Result) -> str:
    parts = []
    if result.sampler:
        parts.append(result.sampler)
    if result.budget:
        parts.append(f"budget {result.budget}")
    if result.seed is not None:
        parts.append(f"seed {result.seed}")
    parts += [f"{name} {_typed(value)}" for name, value in result.asked.items()]
    return ", ".join(parts)


def _typed(value: object) -> str:
    """The value of an option as it is typed: ``precision=bf16``, ``ranks,threads``."""
    if isinstance(value, Mapping):
        return " ".join(f"{name}={held}" for name, held in value.items())
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value)


def _side_by_side_words(result: Result) -> str:
    runs = result.confirmation
    if not runs:
        return "not confirmed: speeds are those of single trials"
    pairs: int | str = "no"
    if result.speedup is not None:
        pairs = result.speedup.pairs
    text = f"{pairs} pairs, {len(runs)} runs"
    without = [run.reason or "" for run in runs if run.samples_per_second is None]
    kinds = Counter(_WITHOUT_A_SPEED.get(reason.partition(":")[0], "failed") for reason in without)
    for kind, number in kinds.items():
        text += f", {number} {kind}"
    return text


# Runs that have no speed and did not fail, by the first words of their reason.
_WITHOUT_A_SPEED = {"not measured": "not measured", "contended": "delayed by others"}


def document(shown: ResultToShow) -> dict[str, object]:
    """The ``cputune.summary/1`` document: what is shown, and the whole result."""
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


def history_rows(kept: Sequence[Kept]) -> Rows:
    """A row for each result of the history, the newest first. A result that cannot be read has only
    its id.
    """
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
