"""Which knobs matter, by optuna's own measure and picture."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from cputune.knobs import KNOBS, KnobValue
from cputune.plan import Plan
from cputune.report.page_chart import COLORS, Chart, chart_of
from cputune.report.page_plans import thinned
from cputune.result import FAILED, PRUNED, Result

LEAST_TRIALS = 5
MOST_TRIALS = 500


def importance_chart(result: Result) -> Chart | None:
    """How much each knob decides which plans are fast; None where too few trials tell.

    PED-ANOVA (https://arxiv.org/abs/2304.10255) needs no forest, and so no scikit-learn. A plan
    that was given up counts with the most that it can have.
    """
    points = _points(result)
    names = [name for name in _NAMES if len({values[name] for values, _ in points}) > 1]
    if len(points) < LEAST_TRIALS or not names:
        return None
    import optuna
    from optuna.distributions import CategoricalDistribution
    from optuna.visualization import plot_param_importances

    kept = thinned(points, MOST_TRIALS)
    ranges = {
        name: CategoricalDistribution(sorted({values[name] for values, _ in kept}, key=repr))
        for name in names
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that PED-ANOVA is experimental in optuna 4
        before = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        try:
            study = optuna.create_study(direction="maximize")
            study.add_trials(
                [
                    optuna.trial.create_trial(
                        params={name: values[name] for name in names},
                        distributions=ranges,
                        value=rate,
                    )
                    for values, rate in kept
                ]
            )
            evaluator = optuna.importance.PedAnovaImportanceEvaluator()
            found = optuna.importance.get_param_importances(study, evaluator=evaluator)
            drawing = plot_param_importances(study, evaluator=evaluator)
        finally:
            optuna.logging.set_verbosity(before)
    drawing.update_traces(marker_color=COLORS[0])
    most = max(found.values(), default=1.0)
    drawing.update_xaxes(title={"text": "share of what decides"}, range=[0, 1.2 * most])
    drawing.update_yaxes(title=None)
    drawing.update_layout(showlegend=False)
    listed = ", ".join(f"{name} {100 * share:.0f} %" for name, share in found.items())
    return chart_of(
        drawing,
        height=90 + 34 * len(names),
        says=f"Importance of knobs: {listed}.",
        caption=f"From {len(kept)} trials of the search (optuna, PED-ANOVA): which knobs decide "
        "whether a plan is among the fastest. What a change is worth stands above, measured.",
    )


_NAMES = ("ranks", "threads", *(knob.name for knob in KNOBS if knob.put is not None))


def _points(result: Result) -> list[tuple[Mapping[str, KnobValue], float]]:
    """The knobs of each trial of which something is known, and its speed."""
    found = []
    for trial in result.trials:
        rate = trial.samples_per_second
        known = trial.at_most_samples_per_second if trial.state == PRUNED else None
        if known is None and trial.state not in (PRUNED, FAILED) and rate is not None:
            known = rate.median
        if known is not None:
            found.append((_values(trial.plan), known))
    return found


def _values(plan: Plan) -> Mapping[str, KnobValue]:
    return {
        "ranks": plan.processes_per_node,
        "threads": plan.threads_per_process,
        **{name: plan.value(name) for name in _NAMES[2:]},
    }
