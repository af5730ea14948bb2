"""From what a study has found to its result: the recommendation, the gain, the notes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from cputune import __version__
from cputune.doctor import diagnose
from cputune.errors import NoValidTrialError
from cputune.facts import HostFacts
from cputune.knobs.record import LeftOut
from cputune.levers import untried
from cputune.options import TuneOptions
from cputune.result import (
    COMPLETED,
    FAILED,
    TIME_UP,
    Measured,
    Result,
    Speedup,
    Trial,
    host_fingerprint,
)
from cputune.steps import Contended
from cputune.tuner.gains import (
    SLOWER,
    Contender,
    Gain,
    fastest_of,
    throughput_of,
)
from cputune.tuner.measuring import Findings, first_line
from cputune.workload import Workload

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
    """What is recommended over what, and the notes that belong to it."""

    baseline: Measured
    best: Measured
    speedup: Speedup
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
) -> Result:
    """The result of a study. Raises NoValidTrialError where nothing can be believed."""
    advice = recommend(findings, noise)
    best, profile = advice.best.plan, findings.profile
    missing = [one for one in diagnose(facts).findings if one.code == "allocator-missing"]
    cure = missing[0].command or "`cputune doctor` says how" if missing else None
    return Result(
        host=host_fingerprint(facts),
        kernel=facts.settings.kernel,
        microcode=facts.cpu.microcode,
        asked=options.narrowed,
        hosts=tuple(hosts),
        interface=interface,
        versions=_versions(facts),
        workload=workload,
        baseline=advice.baseline,
        best=advice.best,
        speedup=advice.speedup,
        profile=profile if profile is not None and profile.plan == best else None,
        trials=tuple(sorted(findings.trials, key=lambda trial: trial.number)),
        seed=options.seed,
        created=created,
        budget=options.budget,
        price_per_hour=options.price_per_hour,
        sampler=SAMPLER,
        data=findings.data,
        left_out=tuple(left_out),
        untried=untried(left_out, workload.padding, cure),
        notes=(*findings.notes, *_notes(findings), *advice.notes),
        seconds=round(seconds, 3),
        confirmation=tuple(findings.confirm_runs),
        disturbed=findings.disturbed,
        worth=findings.worth if best != advice.baseline.plan else (),
    )


def recommend(findings: Findings, noise: float) -> Recommendation:
    """The plan to use, and what it gains. Raises NoValidTrialError where no trial has a number."""
    valid = [t for t in findings.trials if t.state == COMPLETED and t.samples_per_second]
    if not valid:
        raise _nothing_valid(findings)
    baseline = findings.baseline
    if baseline is None or not baseline.measured:
        return _unconfirmed(findings, valid)
    best = fastest_of(baseline, findings.rivals, noise)
    return _unconfirmed(findings, valid) if best is None else _confirmed(findings, *best, noise)


def _confirmed(findings: Findings, rival: Contender, gain: Gain, noise: float) -> Recommendation:
    assert findings.baseline is not None, "it was measured"
    base, best = (_measured_of(one, noise) for one in (findings.baseline, rival))
    speedup = gain.speedup
    seen = (
        f"{rival.plan.describe()}) ran {speedup.ratio:.2f} times as fast (95 % interval "
        f"{speedup.low:.2f} to {speedup.high:.2f})"
    )
    notes: tuple[str, ...] = ()
    if findings.disturbed:
        notes = (f"While other processes computed here, the best other plan ({seen}.",)
    elif not speedup.significant:
        known = "That is undecided: more time would tell (--max-time)."
        if gain.answer == "same":
            known = "A gain above 2 % can be ruled out."
        why = "so the recommendation is the baseline"
        notes = (f"No significant gain: the best other plan ({seen}, {why}. {known}",)
    if not speedup.significant:
        best = base
    return Recommendation(baseline=base, best=best, speedup=speedup, notes=notes)


def _unconfirmed(findings: Findings, valid: list[Trial]) -> Recommendation:
    """The recommendation from the trials alone: single numbers, with a wide interval."""
    fallen = {one.plan for one in findings.rivals if _fell(one)}
    measured = [_measured(trial) for trial in valid]
    base = next((one for one in measured if one.plan.as_found), measured[0])
    best = max(
        (one for one in measured if one == base or one.plan not in fallen),
        key=lambda one: one.samples_per_second.median,
    )
    if base == best:
        only = "Only one plan gave a number; there is nothing to compare it with."
        note = only if len(valid) == 1 else "No plan was faster than the baseline."
        return Recommendation(
            baseline=base,
            best=base,
            speedup=Speedup(ratio=1.0, low=1.0, high=1.0),
            notes=() if fallen else (note,),
        )
    slow, fast = base.samples_per_second, best.samples_per_second
    speedup = Speedup(
        ratio=fast.median / slow.median, low=fast.low / slow.high, high=fast.high / slow.low
    )
    note = "The speed-up is from single trials; it was not confirmed side by side."
    return Recommendation(
        baseline=base, best=best if speedup.significant else base, speedup=speedup, notes=(note,)
    )


def _fell(contender: Contender) -> bool:
    """Whether a contender failed in the confirmation."""
    return contender.out is not None and contender.out != SLOWER


def _measured_of(contender: Contender, noise: float) -> Measured:
    rate = throughput_of(contender.measured, noise)
    return Measured(plan=contender.plan, samples_per_second=rate)


def _measured(trial: Trial) -> Measured:
    rate = trial.samples_per_second
    assert rate is not None, "a valid trial has a throughput"
    return Measured(plan=trial.plan, samples_per_second=rate)


def _notes(findings: Findings) -> list[str]:
    notes = []
    if findings.baseline is not None and _fell(findings.baseline):
        notes.append(
            f"The launch of today failed when it was run afresh ({findings.baseline.out}); nothing "
            "was measured beside it."
        )
    notes += [
        f"{one.plan.describe()} failed when it was run afresh ({one.out})."
        for one in findings.rivals
        if _fell(one)
    ]
    if findings.never_quiet:
        notes.append(
            "Other processes delayed most steps, at the end too: no factor holds for this "
            "machine. Tune again when it is quiet."
            if findings.disturbed
            else "Other processes delayed most steps of the trials; only what was measured side by "
            "side at the end was quiet."
        )
    elif findings.contended_runs:
        notes.append(
            f"Other processes delayed {findings.contended_runs} runs, which were repeated."
        )
    return notes


def _nothing_valid(findings: Findings) -> NoValidTrialError:
    failed = [t for t in findings.trials if t.state == FAILED]
    if not failed and findings.cut_off is not None:
        return NoValidTrialError(
            f"{TIME_UP} before today's launch had a speed to compare with: {findings.cut_off}",
            hint="give it more: --max-time 10m",
        )
    if not failed:
        return NoValidTrialError(
            "tuning ended before the first trial gave a number", hint="give it more time"
        )
    kinds = Counter(trial.kind or "failed" for trial in failed)
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    first = failed[0]
    return NoValidTrialError(
        f"not one of {len(findings.trials)} trials gave a number ({listed})",
        hint=f"the first failed so: {first_line(first.reason)}; `cputune doctor` may know why",
    )


LAST_LINES = 12


def cannot_work(trials: Sequence[Trial], *, hopeless: bool) -> NoValidTrialError | None:
    """Why no further plan need be tried; None where another one may work.

    The script is the cause where the last failure was ``hopeless``, or where the baseline and the
    next plan failed in the same way. Each further trial would fail like these.
    """
    if not 0 < len(trials) < 3 or any(trial.state != FAILED for trial in trials):
        return None
    first, *others = trials
    if others:
        alike = all(_way_of(trial) == _way_of(first) for trial in others)
        in_vain = alike and first.kind != Contended.kind
    else:
        in_vain = hopeless
    if not in_vain:
        return None
    reason, _, details = (first.reason or "no reason given").partition("\n")
    return NoValidTrialError(
        reason,
        details="\n".join(details.rstrip().splitlines()[-LAST_LINES:]) or None,
        hint="today's launch and the next plan fail alike, so no other was tried"
        if others
        else "no plan changes that, so no other was tried",
    )


def _way_of(trial: Trial) -> tuple[str | None, str]:
    """How a trial failed: its message without numbers, so that two failures can be compared."""
    return trial.kind, re.sub(r"[0-9]+", "N", first_line(trial.reason))


def _versions(facts: HostFacts) -> dict[str, str]:
    found = {"cputune": __version__}
    if facts.python is not None:
        found["python"] = facts.python
    for name in _VERSIONS:
        package = facts.package(name)
        if package is not None and package.version is not None:
            found[name] = package.version
    return found
