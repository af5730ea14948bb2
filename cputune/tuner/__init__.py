"""HostFacts + Workload → Result: search space, study, confirmation. Optuna is imported when a study
starts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from importlib.util import find_spec

from cputune.errors import MissingPackageError, UsageError
from cputune.host import Interpreter, LiveHost, this_interpreter
from cputune.host.facts import HostFacts
from cputune.host.interpreter import install_tuning
from cputune.plans.workload import Workload
from cputune.ranks.hosts import RankHosts
from cputune.records.options import TuneOptions, keywords_of
from cputune.records.result import Result
from cputune.records.steps import Runner
from cputune.tuner.events import OnEvent
from cputune.tuner.space import SearchSpace, search_space, space_of

__all__ = ["SearchSpace", "search_space", "tune"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneArguments(TuneOptions):
    """Arguments of ``tune`` besides the job and its options.

    Attributes:
        facts: the machine; None: it is probed.
        runner: runs the plans; None: real processes.
        on_event: gets every event of ``cputune.tuner.events``. None: a notebook shows the study
            below the cell.
        hosts: hosts that plans run on (``"node1,node2"``, or a sequence), reached by ssh; their
            number is then a knob. None: this machine alone.
        started: when the time limit began, by ``time.monotonic()``; None: now.
        command: the words of the command that starts the study; a result proposes the next one
            from them.
        earlier: a result of the same command on this machine; its plan is tried first, and the new
            result says what became of it.
    """

    facts: HostFacts | None = None
    runner: Runner | None = None
    on_event: OnEvent | None = None
    hosts: RankHosts | str | Sequence[str] | None = None
    started: float | None = None
    command: Sequence[str] = ()
    earlier: Result | None = None


@keywords_of(TuneArguments)
def tune(job: Workload, arguments: TuneArguments) -> Result:
    """Measure plans of this job on this machine and return the fastest, compared with the baseline.

    The keywords are the options of ``cputune.TuneOptions`` and the fields of ``TuneArguments``
    (docs/library.md).

    Raises UsageError for contradictory options, MissingPackageError without optuna, CannotError for
    a study that is in use or cannot be resumed, NoValidTrialError if no trial gave a number,
    NotMeasurableError if other processes computed here all the time, and Interrupted on SIGINT,
    with the ``result`` so far.
    """
    if arguments.hosts is not None and not isinstance(arguments.hosts, RankHosts):
        from cputune.ranks.hosts import open_named

        opened = open_named(arguments.hosts, job, _python_of(arguments))
        return _tune(job, replace(arguments, hosts=opened), opened)
    return _tune(job, arguments, arguments.hosts)


def _tune(job: Workload, arguments: TuneArguments, hosts: RankHosts | None) -> Result:
    facts, runner = arguments.facts, arguments.runner
    if arguments.started is None:
        started = time.monotonic()
    else:
        started = arguments.started
    if arguments.resume and arguments.study is None:
        raise UsageError("there is no study to resume", hint="name the study: --study FILE.db")
    _require_optuna(_python_of(arguments))
    if hosts is not None:
        facts = hosts.facts[0][1]
    elif facts is None:
        from cputune.host.probing import probe

        facts = probe()
    space_of(arguments, facts, job, hosts)

    from cputune.host.probing.limits import watch_cpus
    from cputune.tuner.events import logged
    from cputune.tuner.exclusive import measuring_alone, open_runner
    from cputune.tuner.stores import store_of
    from cputune.tuner.study import TuningStudy

    on_event = logged(arguments.on_event)

    def opens(workload: Workload, fresh: bool) -> AbstractContextManager[Runner]:
        return open_runner(runner, workload, facts, on_event, fresh=fresh, hosts=hosts)

    until = None
    if arguments.max_time_seconds is not None:
        until = started + arguments.max_time_seconds
    real, share = runner is None, arguments.share_machine
    look = real and hosts is None
    with ExitStack() as held:
        store = store_of(arguments.study, arguments.study_name)
        if store is not None:
            held.enter_context(store.lock())
        alone = measuring_alone(on_event, share=share, until=until, real=real, look=look)
        neighbours = held.enter_context(alone)
        taken_away = watch_cpus(LiveHost()) if look else lambda: None
        study = TuningStudy(
            job,
            facts,
            opens,
            arguments,
            on_event=on_event,
            started=started,
            neighbours=neighbours,
            taken_away=taken_away,
            hosts=hosts,
            limited=runner is None,
            command=arguments.command,
            earlier=arguments.earlier,
        )
        return study.run()


def _python_of(arguments: TuneArguments) -> Interpreter:
    if arguments.facts is None:
        return this_interpreter()
    return arguments.facts.training_python


def _require_optuna(python: Interpreter) -> None:
    if find_spec("optuna") is None:
        raise MissingPackageError(
            "tuning needs optuna, which is not installed",
            hint=install_tuning(stack=not python.has_module("torch")),
        )
