"""HostFacts + Workload → Result: the search space, the study, the measuring, the confirming.

``cputune.tune(job)`` tunes; ``cputune.search_space(facts, job)`` says what it would try.
Optuna is imported when a study starts, not before.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cputune.errors import MissingPackageError, UsageError
from cputune.facts import HostFacts
from cputune.ranks.hosts import RankHosts
from cputune.result import Result
from cputune.steps import Runner
from cputune.tuner.events import OnEvent, Said, Waiting
from cputune.tuner.space import SearchSpace, build_space
from cputune.workload import Workload

__all__ = ["SearchSpace", "search_space", "tune"]


def search_space(
    facts: HostFacts,
    job: Workload,
    *,
    knobs: Iterable[str] | None = None,
    fix: Mapping[str, Any] | None = None,
    allow_slow_precision: bool = False,
    hosts: Sequence[tuple[str, HostFacts]] = (),
    interfaces: Sequence[str] = (),
) -> SearchSpace:
    """Every plan that this machine can run for this job, and what was left out and why.

    ``knobs`` names what is varied (the usual ones by default, with ``+NAME`` one more; the
    rest stays as it is today), ``fix`` holds a knob at a value. ``allow_slow_precision``
    offers bf16 on a CPU that does not multiply it in hardware. ``hosts`` are those that plans may
    run on, by name, with ``facts`` those of the first; none: this machine alone. ``interfaces`` are
    the networks between them, the one that is chosen first. Raises UsageError
    for an unknown knob and for a value that no plan of this machine can have.
    """
    return build_space(
        facts,
        job,
        vary=knobs,
        fix=fix,
        allow_slow_precision=allow_slow_precision,
        hosts=hosts,
        interfaces=interfaces,
    )


def tune(
    job: Workload,
    *,
    facts: HostFacts | None = None,
    budget: int = 20,
    runner: Runner | None = None,
    seed: int = 0,
    on_event: OnEvent | None = None,
    knobs: Iterable[str] | None = None,
    fix: Mapping[str, Any] | None = None,
    allow_slow_precision: bool = False,
    max_time_seconds: float | None = None,
    study: str | Path | None = None,
    storage: str | None = None,
    resume: bool = False,
    share_machine: bool = False,
    started: float | None = None,
    wait_quiet_seconds: float | None = None,
    steps_planned: int | None = None,
    hosts: RankHosts | None = None,
) -> Result:
    """Measure plans of this job on this machine and return the fastest, compared with today's.

    Args:
        job: what to train.
        facts: the machine, as ``cputune.probe()`` sees it; probed where it is None.
        budget: trials of the study, the baseline among them, at least 1. The
            confirmation at the end is not counted.
        runner: runs the plans; real processes where it is None.
        seed: the same seed and the same measurements give the same proposals.
        on_event: called with every event of ``cputune.tuner.events``.
        knobs: names of what is varied, as in ``search_space``.
        fix: knobs that are held at a value.
        allow_slow_precision: offer bf16 where the CPU does not multiply it in hardware.
        max_time_seconds: when all is over, or one step later: what is waited for, imported and
            downloaded counts. The search takes 7/10 of it at most, the confirmation the rest.
        study: an SQLite file to keep the study in; in memory where it is None.
        storage: the address of a database (``postgresql://user@host/name``, ``sqlite:///file``) in
            which tuners of machines of one kind share this study, and its budget. Another
            machine, workload, seed or other knobs are another study there.
        resume: go on with that study; its host, workload, seed and knobs must be the same.
        share_machine: measure although others compute here, and say no factor where they
            delayed most of it; else real processes are only started when another process
            that measures has ended, and a result that is disturbed is none.
        wait_quiet_seconds: wait so long, at most, until nothing else computes here; where it
            is None, who does is only told (``Disturbed``), unless the machine is shared anyway.
            Real processes alone.
        steps_planned: optimizer steps of the run that is tuned for: the time to compile
            (``knobs=["+compile"]``) is spread over them. None takes the run as long, and the result
            says after how many steps that time is won back.
        hosts: those that plans run on, as ``cputune.ranks.opened.open_hosts`` opens them; how many
            of them is then a knob. None: this machine alone.
        started: when the time began to run, by ``time.monotonic()``; now where it is None.

    Raises UsageError for what makes no sense, MissingPackageError without optuna,
    CannotError for a study that is in use or cannot be gone on with and for a database that
    cannot be used, NoValidTrialError
    where no trial gave a number, NotMeasurableError where others computed here all the time
    (the trials are kept in the study), and Interrupted on SIGINT, whose ``result`` is what was
    found.
    """
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
        raise UsageError(
            f"a budget is a number of trials, 1 or more, not {budget!r}", hint="--budget 20"
        )
    if max_time_seconds is not None and not max_time_seconds > 0:
        raise UsageError("the time to tune must be above 0", hint="--max-time 10m")
    if steps_planned is not None and steps_planned < 1:
        raise UsageError(
            f"a run of {steps_planned} steps trains nothing", hint="--steps-planned 10000"
        )
    started = time.monotonic() if started is None else started
    if storage is not None and study is not None:
        raise UsageError("a study is kept in a file or in a database", hint="leave one of them out")
    if resume and study is None and storage is None:
        raise UsageError("there is no study to resume", hint="name it: --study FILE.db")
    _require_optuna()
    if hosts is not None:
        facts = hosts.facts[0][1]
    elif facts is None:
        from cputune.probing import probe

        facts = probe()
    search_space(
        facts,
        job,
        knobs=knobs,
        fix=fix,
        allow_slow_precision=allow_slow_precision,
        hosts=() if hosts is None else hosts.facts,
        interfaces=() if hosts is None else hosts.interfaces,
    )
    if storage is not None:
        from cputune.tuner.database import parsed

        parsed(storage)

    from cputune.host.locks import measuring_lock, study_lock
    from cputune.tuner.logged import logged
    from cputune.tuner.options import StudyOptions
    from cputune.tuner.quiet import wait_until_quiet
    from cputune.tuner.study import TuningStudy

    options = StudyOptions(
        budget=budget,
        seed=seed,
        knobs=None if knobs is None else tuple(knobs),
        fix=dict(fix or {}),
        allow_slow_precision=allow_slow_precision,
        max_time_seconds=max_time_seconds,
        study=None if study is None else Path(study),
        storage=storage,
        resume=resume,
        steps_planned=steps_planned,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )

    def open_runner(workload: Workload, fresh: bool) -> AbstractContextManager[Runner]:
        if runner is not None:
            return nullcontext(runner)
        from cputune.ranks.runner import ProcessRunner

        return ProcessRunner(workload, facts, hosts=hosts, fresh=fresh, on_note=say)

    hear = logged(on_event)

    def say(text: str) -> None:
        hear(Said(text=text))

    def wait_for(owner: str) -> None:
        hear(Waiting(owner=owner))

    until = None if max_time_seconds is None else started + max_time_seconds
    with ExitStack() as held:
        if options.study is not None:
            held.enter_context(study_lock(options.study))
        if runner is None and not share_machine:
            held.enter_context(measuring_lock(wait_for, until=until))
        neighbours = _nobody
        if runner is None:
            neighbours = _who_computes_here() if hosts is None else hosts.neighbours
        left = math.inf if until is None else until - time.monotonic()
        known = share_machine and wait_quiet_seconds is None  # that it is not quiet
        wait_until_quiet(
            _nobody if known else neighbours,
            hear,
            most_seconds=None if wait_quiet_seconds is None else min(wait_quiet_seconds, left),
            clock=time.monotonic,
            pause=time.sleep,
        )
        study_ = TuningStudy(
            job,
            facts,
            open_runner,
            options,
            on_event=hear,
            started=started,
            neighbours=neighbours,
            shared=share_machine,
            hosts=hosts,
        )
        return study_.run()


def _nobody() -> tuple[str, ...]:
    """Beside a runner that simulates."""
    return ()


def _who_computes_here() -> Callable[[], tuple[str, ...]]:
    from cputune.host import LiveHost
    from cputune.probing.quiet import look_around

    host = LiveHost()
    return lambda: look_around(host).neighbours()


def _require_optuna() -> None:
    if find_spec("optuna") is None:
        raise MissingPackageError(
            "tuning needs optuna, which is not installed",
            hint="pip install 'cputune[tune]'",
        )
