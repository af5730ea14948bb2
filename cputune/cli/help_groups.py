"""The groups of options in the help of each command, by the names of its parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Groups = Mapping[str, Sequence[str]]

_HOSTS = ("hosts", "hostfile", "ssh", "through", "host_timeout")

DOCTOR: Groups = {
    "What to look at": (
        "python",
        "deep",
        "recipe",
        "check_file",
        "stack",
        "symptom",
        "pid",
        "root",
    ),
    "Several hosts": _HOSTS,
    "What to show": (
        "only",
        "ignore",
        "fail_on",
        "explain",
        "print_fix",
        "picture",
        "record",
        "markdown",
        "json",
    ),
}

TUNE: Groups = {
    "What to train": ("recipe", "batch_per_rank", "global_batch_size", "secret", "python"),
    "What to vary": (
        "knobs",
        "fix",
        "keep",
        "allow_slow_precision",
        "allow_bf16_gradients",
        "seed",
    ),
    "Limits": ("budget", "max_time", "share_machine"),
    "Several hosts": _HOSTS,
    "The study": ("study", "study_name", "resume", "dry_run", "root"),
    "Output": ("output", "force", "no_history", "price_per_hour", "json"),
}

EMIT: Groups = {
    "What to write": ("format", "like", "keep", "self_contained", "output", "force", "patch"),
    "What to train": (
        "batch_per_rank",
        "global_batch_size",
        "secret",
        "python",
        "accelerate_version",
        "transformers_version",
        "no_guard",
    ),
    "For which machines": (
        "nodes",
        "ranks_per_node",
        "hosts",
        "hostfile",
        "mpi",
        "interface",
        "root",
        "other_machine",
    ),
    "Kubernetes": (
        "job_name",
        "namespace",
        "image",
        "pvc",
        "memory",
        "reserve_cpus",
        "node_selector",
        "max_restarts",
        "image_pull_secret",
        "secret_env",
        "user_id",
        "runtime",
    ),
    "Slurm": ("time", "partition", "account", "tune"),
}

VERIFY: Groups = {
    "What to start": ("steps", "timeout", "python", "ssh", "submit", "no_run", "share_machine"),
    "What to compare with": ("result", "fail_if_slower"),
    "Output": ("json",),
}

# The heading of options that every command has.
OTHERS = "Other options"

USUAL_DOCTOR = (
    "check_file",
    "print_fix",
    "symptom",
    "explain",
    "stack",
    "hosts",
    "deep",
    "json",
)
USUAL_TUNE = ("max_time", "keep", "hosts", "python", "recipe", "resume", "dry_run", "output")
# The options that most users need: those of the short help. The others are in --help-all.
USUAL_EMIT = ("format", "output", "like", "nodes", "hosts", "self_contained", "keep", "force")
