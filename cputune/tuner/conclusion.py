"""From the measurements of a study to its result: recommendation, gain, notes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cputune import __version__
from cputune.doctor import diagnose
from cputune.emitters.imported import digest, digests
from cputune.errors import NoValidTrialError
from cputune.host import LiveHost
from cputune.host.facts import HostFacts
from cputune.host.process import folder
from cputune.plans.knobs.record import LeftOut
from cputune.plans.plan import Plan
from cputune.plans.untried import untried
from cputune.plans.workload import Workload
from cputune.records.claims import FASTER, UNDECIDED, Speedup, host_fingerprint
from cputune.records.next_command import QUIET, NextStep, time_limit
from cputune.records.options import DEFAULT_BUDGET, TuneOptions
from cputune.records.result import (
    COMPLETED,
    FAILED,
    TIME_UP,
    Measured,
    Reports,
    Result,
    Rung,
    Trial,
    pairs_of,
)
from cputune.records.shared_texts import YOURS
from cputune.records.steps import NOTHING_COMPUTED, Contended
from cputune.tuner.contenders import SLOWER, Contender, blocks_of, fastest_of, throughput_of
from cputune.tuner.gains import Gain
from cputune.tuner.measuring import Findings, first_line

SAMPLER = "gaussian-process"

_VERSIONS = (
    "torch",
    "transformers",
    "accelerate",
    "intel_extension_for_pytorch",
    "oneccl_bind_pt",
    "optuna",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """What is recommended, compared with what, and the notes that belong to it."""

    baseline: Measured
    best: Measured
    speedup: Speedup | None = None
    not_compared: str | None = None
    next_step: NextStep | None = None
    notes: tuple[str, ...] = ()


def conclude(
    findings: Findings,
    *,
    facts: HostFacts,
    workload: Workload,
    left_out: Sequence[LeftOut],
    options: TuneOptions,
    created: str,
    noise: float,
    seconds: float,
    hosts: Sequence[str] = (),
    interface: str | None = None,
    through: str | None = None,
    busy: Sequence[str] = (),
) -> Result:
    """The result of a study. Raises NoValidTrialError if no trial has a number.

    ``busy`` are other processes that used the CPUs meanwhile.
    """
    advice = recommend(findings, noise, seconds, busy=busy)
    best, baseline = advice.best.plan, advice.baseline.plan
    install = None
    for finding in diagnose(facts).findings:
        if finding.code == "allocator-missing" and install is None:
            install = finding.command or "`cputune doctor` says how"
    reports = []
    for plan, observed in findings.reports.items():
        reports.append(Reports(plan=plan, observed=observed))
    notes = list(findings.notes)
    notes += _notes(findings)
    notes += _of_ranks(best.world_size, workload)
    notes += advice.notes
    return Result(
        host=host_fingerprint(facts),
        kernel=facts.settings.kernel,
        microcode=facts.cpu.microcode,
        asked=options.narrowed,
        hosts=tuple(hosts),
        interface=interface,
        through=through,
        versions=_versions(facts),
        workload=workload,
        baseline=advice.baseline,
        best=advice.best,
        speedup=advice.speedup,
        not_compared=advice.not_compared,
        next_step=advice.next_step,
        compared=() if advice.speedup is None else _compared(findings, noise),
        busy=tuple(busy),
        files=digests(workload.argv, LiveHost()) if workload.recipe is None else {},
        folder=digest(folder()) if workload.recipe is None else None,
        resumable=options.study is not None,
        profile=findings.profiles.get(best),
        baseline_profile=None if best == baseline else findings.profiles.get(baseline),
        trials=tuple(sorted(findings.trials, key=lambda trial: trial.number)),
        seed=options.seed,
        created=created,
        budget=options.budget,
        price_per_hour=options.price_per_hour,
        sampler=SAMPLER,
        data=findings.data,
        left_out=tuple(left_out),
        untried=untried(left_out, workload.padding, install, framework=workload.framework),
        notes=tuple(notes),
        seconds=round(seconds, 3),
        confirmation=tuple(findings.confirm_runs),
        reports=tuple(reports),
        disturbed=findings.disturbed,
        worth=findings.worth if best != baseline else (),
        rungs=_rungs(findings, advice),
    )


def recommend(
    findings: Findings, noise: float, seconds: float = 0.0, *, busy: Sequence[str] = ()
) -> Recommendation:
    """The plan to use, and its gain. Raises NoValidTrialError if no trial has a number.

    Another plan than the baseline is recommended only if both were measured in pairs
    (``cputune.records.result.pairs_of``). ``seconds`` are those of the study so far.
    """
    valid = []
    for trial in findings.trials:
        if trial.state == COMPLETED and trial.samples_per_second:
            valid.append(trial)
    if not valid:
        raise _nothing_valid(findings, busy, seconds)
    baseline = findings.baseline
    fastest = None
    if baseline is not None:
        fastest = fastest_of(baseline, paired(findings), noise)
    if baseline is None or fastest is None or findings.taken_away is not None:
        base = next((trial for trial in valid if trial.plan.as_found), valid[0])
        alone = _measured(base)
        reason, step = why_not_compared(findings, valid, seconds)
        return Recommendation(baseline=alone, best=alone, not_compared=reason, next_step=step)
    rival, gain = fastest
    return _confirmed(findings, baseline, rival, gain, noise, busy=bool(busy))


def _rungs(findings: Findings, advice: Recommendation) -> tuple[Rung, ...]:
    """The rungs to the best plan; the last one has the ratio of the recommendation."""
    if not findings.rungs or advice.speedup is None or advice.best == advice.baseline:
        return ()
    *before, last = findings.rungs
    if last.plan != advice.best.plan:
        return ()
    return (*before, replace(last, speedup=advice.speedup))


def _compared(findings: Findings, noise: float) -> tuple[Measured, ...]:
    """The throughput of each plan of the confirmation, the baseline first."""
    if findings.baseline is None:
        return ()
    compared: list[Measured] = []
    for contender in (findings.baseline, *findings.rivals):
        if contender.measured:
            compared.append(_measured_of(contender, noise))
    return tuple(compared)


def paired(findings: Findings) -> list[Contender]:
    """The rivals that were compared with the baseline in enough blocks; None if the baseline
    failed.
    """
    if findings.baseline is None or _fell(findings.baseline):
        return []
    baseline = findings.baseline.plan
    rivals: list[Contender] = []
    for rival in findings.rivals:
        if pairs_of(findings.confirm_runs, baseline, rival.plan):
            rivals.append(rival)
    return rivals


def _confirmed(
    findings: Findings,
    baseline: Contender,
    rival: Contender,
    gain: Gain,
    noise: float,
    *,
    busy: bool,
) -> Recommendation:
    base, best = _measured_of(baseline, noise), _measured_of(rival, noise)
    speedup = gain.speedup
    if findings.disturbed:
        reason = findings.how_disturbed
        return Recommendation(
            baseline=base, best=base, not_compared=reason, next_step=NextStep(when=QUIET)
        )
    if speedup.outcome == FASTER:
        return Recommendation(baseline=base, best=best, speedup=speedup)
    notes = (
        f"The best other plan ({rival.plan.describe()}) ran {speedup.ratio:.2f} times as fast "
        f"(95 % interval {speedup.low:.2f} to {speedup.high:.2f}), so your current launch stays "
        "the recommendation.",
    )
    step = NextStep(kind="keep")
    if speedup.outcome == UNDECIDED and busy:
        step = NextStep(when=QUIET)
    elif speedup.outcome == UNDECIDED:
        blocks = len(blocks_of(rival) & blocks_of(baseline))
        needed = gain.seconds_to_decide(blocks, findings.confirm_seconds)
        if needed is not None:
            step = NextStep(seconds=needed + findings.start_seconds)
    return Recommendation(baseline=base, best=base, speedup=speedup, next_step=step, notes=notes)


def why_not_compared(
    findings: Findings, valid: Sequence[Trial], seconds: float
) -> tuple[str, NextStep]:
    """Why there are no pairs of the baseline and another plan, and what to do about it."""
    baseline, rivals = findings.baseline, findings.rivals
    if findings.taken_away is not None:
        return findings.taken_away, NextStep(when="when the CPUs are available again")
    if findings.disturbed:
        return findings.how_disturbed, NextStep(when=QUIET)
    if baseline is not None and _fell(baseline):
        what = YOURS if baseline.plan.as_found else baseline.plan.describe()
        return f"{what} failed when restarted: {baseline.out}", NextStep(kind="check")
    if findings.interrupted:
        return "the study was interrupted", NextStep()
    if findings.host_lost:
        return "a host can no longer be reached", NextStep(when="when it is reachable again")
    if len(_measured_plans(findings, valid)) < 2:
        return _why_one_plan(findings, seconds)
    if rivals and all(_fell(rival) for rival in rivals):
        reason = f"every other plan failed when restarted: {rivals[0].out}"
        return reason, NextStep(kind="keep")
    if findings.unfit and not rivals:
        ranks, reason = next(iter(findings.unfit.items()))
        return f"{ranks} ranks were not compared: {reason}", NextStep(kind="keep")
    if findings.time_up or findings.search_cut or findings.cut_off is not None:
        reason = "the time limit was reached before two plans had run side by side twice"
        return reason, _more_time(findings, seconds)
    return "the plans could not run side by side twice", NextStep()


def _measured_plans(findings: Findings, valid: Sequence[Trial]) -> set[Plan]:
    """The plans with a number, of a trial or of the confirmation."""
    plans = {trial.plan for trial in valid}
    for run in findings.confirm_runs:
        if run.samples_per_second is not None:
            plans.add(run.plan)
    return plans


def _why_one_plan(findings: Findings, seconds: float) -> tuple[str, NextStep]:
    """Why only one plan was measured, and what to do about it."""
    if findings.cut_off is not None or findings.time_up:
        reason = "the time limit was reached before another plan had run"
        return reason, _more_time(findings, seconds)
    for trial in findings.trials:
        if trial.state == FAILED:
            reason = f"every other plan failed: {first_line(trial.reason)}"
            return reason, NextStep(kind="keep")
    if len(findings.trials) > 1:
        reason = "every other plan was stopped after a few steps, as most likely slower"
        return reason, NextStep(kind="keep")
    return "only one plan was measured", NextStep(kind="tune", budget=DEFAULT_BUDGET)


def _more_time(findings: Findings, seconds: float) -> NextStep:
    """A hint with the time that a study of this script needs, at least twice the last one."""
    return NextStep(seconds=max(2 * seconds, findings.usual_seconds))


def _fell(contender: Contender) -> bool:
    return contender.out is not None and contender.out != SLOWER


def _measured_of(contender: Contender, noise: float) -> Measured:
    rate = throughput_of(contender, noise)
    return Measured(plan=contender.plan, samples_per_second=rate)


def _measured(trial: Trial) -> Measured:
    rate = trial.samples_per_second
    assert rate is not None, "a valid trial has a throughput"
    return Measured(plan=trial.plan, samples_per_second=rate)


def _of_ranks(ranks: int, workload: Workload) -> tuple[str, ...]:
    """What the ranks of the best plan do with the last batch of an epoch."""
    typed = workload.training
    if typed is None or not typed.uneven(ranks) or ranks == workload.launch_ranks:
        return ()
    return (f"With {ranks} ranks {typed.uneven(ranks)} (--keep mathematics leaves them out).",)


def _notes(findings: Findings) -> list[str]:
    notes = []
    for rival in findings.rivals:
        if _fell(rival):
            notes.append(f"{rival.plan.describe()} failed when it was run afresh ({rival.out}).")
    if findings.disturbed and findings.never_quiet:
        notes.append(
            "Other processes delayed most steps, in the comparison at the end too: nothing can be "
            "said of which plan is faster. Tune again when the machine is quiet."
        )
    elif findings.never_quiet:
        notes.append(
            "Other processes delayed most steps of the trials; only what was measured side by "
            "side at the end was quiet."
        )
    elif findings.contended_runs:
        notes.append(
            f"Other processes delayed {findings.contended_runs} runs, which were repeated."
        )
    return notes


def _nothing_valid(findings: Findings, busy: Sequence[str], seconds: float) -> NoValidTrialError:
    failed = []
    for trial in findings.trials:
        if trial.state == FAILED:
            failed.append(trial)
    if not failed and findings.cut_off is not None:
        hint = f"--max-time {time_limit(max(600.0, 3 * seconds))}"
        if NOTHING_COMPUTED in findings.cut_off:
            hint = "run it without cputune; if it hangs there too, cputune doctor --pid N names why"
        elif busy:
            hint = QUIET_FIRST
        return NoValidTrialError(
            f"{TIME_UP} before {YOURS} had a speed to compare with: {findings.cut_off}",
            details="\n".join(f"busy now: {name}" for name in busy) or None,
            hint=hint,
        )
    if not failed:
        return NoValidTrialError(
            "tuning ended before the first trial gave a number", hint="give it more time"
        )
    kinds = Counter(trial.kind or "failed" for trial in failed)
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    first = failed[0]
    return NoValidTrialError(
        f"no trial gave a result: {listed}",
        hint=f"the first one: {first_line(first.reason)}; `cputune doctor` may find the cause",
    )


# The hint on a busy machine. More time would not help there.
QUIET_FIRST = "end the processes that use the CPUs, then the same command with --resume"

# Lines of output that are shown if all trials failed alike: the end of a traceback.
LAST_LINES = 12


def cannot_work(trials: Sequence[Trial], *, hopeless: bool) -> NoValidTrialError | None:
    """Why no further plan need be tried; None if another one may work.

    The script is the cause if the last failure was ``hopeless``, or if the baseline and the next
    plan failed in the same way.
    """
    if not 0 < len(trials) < 3 or any(trial.state != FAILED for trial in trials):
        return None
    first, *others = trials
    if others:
        alike = all(_kind_of_failure(trial) == _kind_of_failure(first) for trial in others)
        in_vain = alike and first.kind != Contended.kind
    else:
        in_vain = hopeless
    if not in_vain:
        return None
    reason, _, details = (first.reason or "no reason given").partition("\n")
    hint = "no plan can avoid this, so no other was tried"
    if others:
        hint = (
            "your current launch and the next plan fail in the same way, so no other plan was tried"
        )
    return NoValidTrialError(
        reason,
        details="\n".join(details.rstrip().splitlines()[-LAST_LINES:]) or None,
        hint=hint,
    )


def _kind_of_failure(trial: Trial) -> tuple[str | None, str]:
    """The message of a failed trial without numbers, so that two failures can be compared."""
    return trial.kind, re.sub(r"[0-9]+", "N", first_line(trial.reason))


def _versions(facts: HostFacts) -> dict[str, str]:
    versions = {"cputune": __version__}
    if facts.python is not None:
        versions["python"] = facts.python
    for name in _VERSIONS:
        package = facts.package(name)
        if package is not None and package.version is not None:
            versions[name] = package.version
    return versions
