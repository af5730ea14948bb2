"""What runs INSIDE a training process: hooks, step clock, effective state.

This package stands apart. It imports nothing else of ours, only the standard library
until the script itself has loaded torch, and it works with transformers 4.38 to 5.x,
accelerate 0.26 to 1.15 and torch 2.0 to 2.13. An unmodified script built on ``Trainer``
or on ``Accelerator`` runs as it is, and what it does is told to whoever listens.

How a process becomes a rank that is measured
---------------------------------------------
Two variables, and one of two ways in::

    CPUTUNE_TRIAL_SOCKET   path of the Unix socket that somebody listens on; tcp:TOKEN:PORT:HOST
                           where ranks of other hosts speak to it too
    CPUTUNE_TRIAL_SCRATCH  directory that takes what the script would have written
    CPUTUNE_TRIAL_FORCE    JSON, what the plan sets in the script; see ``carry.force.Force``.
                           Without it nothing of the plan is set: the launch is only observed
    CPUTUNE_TRIAL_SHOW     names of further variables that the rank shall show, with commas
    CPUTUNE_TRIAL_TURNS    1: after each step the rank waits until it is let take another
    CPUTUNE_TRIAL_ASK      questions with commas, asked of the model as it trains (``asking``);
                           such a launch is neither measured nor compared
    CPUTUNE_TRIAL_REHEARSE the folder in which the launch was typed: it runs to its end, shortened
                           (``rehearsing``), and nothing is reported
    CPUTUNE_TRIAL_CHILD_OF set by a rank for what it starts: the rank's process number

- ``python -m cputune.inside SCRIPT ARGS...`` in place of ``python SCRIPT ARGS...``; also
  ``torchrun ... -m cputune.inside SCRIPT ARGS...`` and ``accelerate launch -m ...``;
- or, where the launch must not be touched, ``site_directory()`` put first on PYTHONPATH:
  every Python process below then reports as soon as it trains, and only then.

What a rank says are the JSON lines of ``messages``; ``cputune.ranks.listen.Inbox`` is the
other end. Closing the socket ends nothing: who starts ranks also ends them.
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


def recipe_script() -> Path:
    """The training script of recipes: plain Trainer code that needs nothing of cputune."""
    return Path(__file__).with_name("train_recipe.py")


def carry_script() -> Path:
    """What python runs to set a plan in a script: ``python THIS PLAN SCRIPT ARGUMENTS...``."""
    return Path(__file__).parent / "carry" / "__main__.py"


def site_directory() -> Path:
    return Path(__file__).with_name("site")


def root_directory() -> Path:
    return Path(__file__).resolve().parent.parent.parent
