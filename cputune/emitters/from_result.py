"""What a launch takes from a result, in one step: what writes a launch sees no result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cputune.plans.plan import Plan
from cputune.plans.workload import Workload
from cputune.records.claims import Claim
from cputune.records.ladder import ladder_of
from cputune.records.result import Reports, Result, Throughput, Trial
from cputune.records.shared_texts import how_fast


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """The best plan of a study, and what was measured of it.

    Attributes:
        plan: the best one.
        workload: what was trained.
        host: the machine, as ``host_fingerprint`` describes it.
        versions: of packages, by name.
        hosts: names of the machines; empty for one.
        interface: between them.
        trials: with what their ranks reported.
        reports: the same of the plans that were compared.
        claim: about the speed, with what it was measured on.
        samples_per_second: of the plan.
        compared: whether it was compared with the launch as typed.
        disturbed: whether other processes kept the machine busy.
        means: what was found about the speed.
        sure: how sure that is.
        ladder: the ratio for each kind of change.
    """

    plan: Plan
    workload: Workload
    host: Mapping[str, Any]
    versions: Mapping[str, str]
    hosts: tuple[str, ...]
    interface: str | None
    trials: tuple[Trial, ...]
    reports: tuple[Reports, ...]
    claim: Claim
    samples_per_second: Throughput
    compared: bool
    disturbed: bool
    means: str
    sure: str
    ladder: tuple[str, ...]

    def observed(self, plan: Plan) -> tuple[tuple[Mapping[str, Any], ...], ...]:
        """What the ranks of each trial of a plan reported, and those of its comparison."""
        trials = [trial.observed for trial in self.trials if trial.plan == plan]
        compared = [reports.observed for reports in self.reports if reports.plan == plan]
        return (*trials, *compared)

    def rank_bytes(self, plan: Plan) -> int | None:
        """The most memory that a rank of this plan held in its trials. None if none reported it.

        /dev/shm is not included: each rank counts what it has touched there.
        """
        peaks = list[int]()
        for ranks in self.observed(plan):
            for rank in ranks:
                peak = rank.get("peak_bytes")
                if isinstance(peak, int):
                    peaks.append(peak)
        return max(peaks, default=None)


def tuned_of(result: Result) -> Tuned:
    """Take from a result what a launch needs."""
    means, sure = how_fast(result)
    return Tuned(
        plan=result.best.plan,
        workload=result.workload,
        host=result.host,
        versions=result.versions,
        hosts=tuple(result.hosts),
        interface=result.interface,
        trials=tuple(result.trials),
        reports=tuple(result.reports),
        claim=result.claim,
        samples_per_second=result.best.samples_per_second,
        compared=result.speedup is not None,
        disturbed=result.disturbed,
        means=means,
        sure=sure,
        ladder=ladder_of(result),
    )
