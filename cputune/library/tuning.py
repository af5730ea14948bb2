"""``cputune.tune``: tunes a command as it is typed, a recipe, or a workload."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from cputune.host.process import keep_secrets
from cputune.plans.training_command import require_trainable
from cputune.plans.workload import Workload, typed_words
from cputune.records.options import keywords, keywords_of
from cputune.report.drawing import Result
from cputune.tuner import TuneArguments, tune as tune_workload
from cputune.tuner.stores import store_of


@keywords_of(TuneArguments)
def tune(job: Workload | str | Sequence[str], options: TuneArguments) -> Result:
    """Measure plans of a job on this machine, and return the fastest, compared with the baseline.

    ``job`` is a command as you type it (``"train.py --lr 3e-5"``, or a list of words), the name of
    a recipe (``"bert-mini"``, or the path of your own ``*.toml``), or a ``Workload``. The keywords
    are the options of ``cputune.TuneOptions``, and ``facts``, ``runner``, ``on_event``, ``hosts``
    and ``started`` (see docs/library.md)::

        result = cputune.tune("train.py --lr 3e-5", budget=10, max_time="2m")

    Raises UsageError for bad arguments, MissingPackageError without optuna, CannotError for a study
    that is in use or of another job, NoValidTrialError if no trial gave a number,
    NotMeasurableError if other processes kept the machine busy (the trials are kept in the study),
    and Interrupted on SIGINT, with the ``result`` so far.
    """
    python = None
    if options.facts is not None:
        python = options.facts.training_python
    workload = Workload.of(job, python=python)
    if not isinstance(job, Workload) and workload.recipe is None:
        keep_secrets(typed_words(job))
    if workload.argv and not isinstance(job, Workload) and options.runner is None:
        require_trainable(workload.argv, python=python)
    if options.on_event is None and "IPython" in sys.modules:
        from cputune.report.notebook import is_notebook, view

        if is_notebook():
            if options.started is None:
                started = time.monotonic()
            else:
                started = options.started
            options = replace(options, started=started, on_event=view(started))
    result: Result = tune_workload(workload, **keywords(options))
    store = store_of(options.study, options.study_name)
    if store is not None and result.not_compared is None:
        store.finish()
    return result
