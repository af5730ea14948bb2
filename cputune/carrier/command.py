"""The training command of a plan: the script, its own arguments, and the flags of the plan."""

from __future__ import annotations

import json
from collections.abc import Mapping

from cputune.carrier.flags import training_flags
from cputune.inside import recipe_script
from cputune.plan import Plan
from cputune.workload import Workload

TRIAL_SAMPLES = 2048
"""Examples of a recipe's real data set that trials tokenize: enough for 100 steps."""


def trial_command(workload: Workload, plan: Plan, versions: Mapping[str, str]) -> tuple[str, ...]:
    """What python runs in a trial of this plan; ``tune --dry-run`` shows the same.

    A user's script is run with the user's words alone: what a trial sets in it
    (``cputune.inside``) needs no flag. A recipe goes to its script as text, so that the
    command needs no file beside it, with the flags that emitted files give it too.
    Raises ValueError where the global batch cannot be divided over the ranks.
    """
    if workload.recipe is None:
        return workload.argv
    return (
        str(recipe_script()),
        json.dumps(workload.recipe.to_json(), ensure_ascii=False),
        *("--output_dir", "out"),  # a trial writes nothing there: its hooks lead it elsewhere
        *("--max_train_samples", str(TRIAL_SAMPLES)),
        *training_flags(workload, plan, versions),
    )
