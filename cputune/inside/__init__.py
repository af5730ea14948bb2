"""What runs inside a training process: hooks, step clock, effective state.

It imports nothing else of cputune, and only the standard library until the script has loaded torch.
It works with transformers 4.38 to 5.x, accelerate 0.26 to 1.15 and torch 2.0 to 2.13, with an
unmodified script built on ``Trainer`` or ``Accelerator``.

A process becomes a rank that is measured by the first two of these variables::

    CPUTUNE_TRIAL_SOCKET   path of the Unix socket that receives the reports; relay:PATH if they
                           go to another host (``messages.RELAY``)
    CPUTUNE_TRIAL_SCRATCH  directory for what the script would have written
    CPUTUNE_TRIAL_FORCE    JSON, what the plan sets in the script (``applying.force.Force``).
                           Without it the launch is only observed
    CPUTUNE_TRIAL_SHOW     names of further variables that the rank reports, with commas
    CPUTUNE_TRIAL_TURNS    1: after each step the rank waits until it may take another
    CPUTUNE_TRIAL_ASK      questions to the model with commas (``equivalence_check``); such a
                           launch is neither measured nor compared
    CPUTUNE_TRIAL_REHEARSE the folder in which the launch was typed: it runs to its end, shortened
                           (``rehearsing``), and nothing is reported
    CPUTUNE_TRIAL_STEPS    steps of a pass over training data in a rehearsal, if not ``STEPS``
    CPUTUNE_TRIAL_NUDGE    set: its weights begin slightly changed, to see what rounding makes
    CPUTUNE_TRIAL_CHILD_OF set by a rank for what it starts: the rank's process number

and is started in one of two ways:

- ``python -m cputune.inside SCRIPT ARGS...``, also behind ``torchrun ... -m`` or ``accelerate
  launch -m``;
- if the launch must not be changed, with ``site_directory()`` first on PYTHONPATH: every Python
  process below then reports as soon as it trains.

Reports are the JSON lines of ``messages``, which ``cputune.ranks.listen.Inbox`` receives. Closing
the socket ends nothing.
"""

from __future__ import annotations

from pathlib import Path

SOCKET_VARIABLE = "CPUTUNE_TRIAL_SOCKET"
SCRATCH_VARIABLE = "CPUTUNE_TRIAL_SCRATCH"
FORCE_VARIABLE = "CPUTUNE_TRIAL_FORCE"
SHOW_VARIABLE = "CPUTUNE_TRIAL_SHOW"
TURNS_VARIABLE = "CPUTUNE_TRIAL_TURNS"
CHILD_VARIABLE = "CPUTUNE_TRIAL_CHILD_OF"
ASK_VARIABLE = "CPUTUNE_TRIAL_ASK"
REHEARSE_VARIABLE = "CPUTUNE_TRIAL_REHEARSE"
STEPS_VARIABLE = "CPUTUNE_TRIAL_STEPS"
NUDGE_VARIABLE = "CPUTUNE_TRIAL_NUDGE"


def recipe_script() -> Path:
    """The training script of recipes: plain Trainer code that needs nothing of cputune."""
    return Path(__file__).with_name("train_recipe.py")


def applying_script() -> Path:
    """What python runs to set a plan in a script: ``python THIS PLAN SCRIPT ARGUMENTS...``."""
    return Path(__file__).parent / "applying" / "__main__.py"


def site_directory() -> Path:
    """The directory that, first on PYTHONPATH, makes every Python process report."""
    return Path(__file__).with_name("site")


def root_directory() -> Path:
    """The directory that must be importable for ``import cputune`` to find this copy."""
    return Path(__file__).resolve().parent.parent.parent
