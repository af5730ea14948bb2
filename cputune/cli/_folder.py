"""What a file in the working folder may set: nothing that runs, writes or names a stranger.

A working folder can be a clone, a download, /tmp. Its ``cputune.toml`` is data like the rest of
it: it says what is worth knowing about a project (a budget, a format, a namespace), and not
where files go, what is replaced, which program is started, on which machines, with which
secrets. An option that is not listed here may not be set by a folder; the user's own file, a file
named by ``--config``, a variable and the command line set every option.
"""

from __future__ import annotations

from typing import Any

_MAY_SET = {
    # "" is `cputune` itself
    "": ("color", "verbose"),
    "doctor": ("all", "fail-on", "ignore", "only", "verbose"),
    "tune": (
        "allow-slow-precision", "batch-per-rank", "budget", "fix", "global-batch-size", "knobs",
        "max-time", "recipe", "seed", "steps-planned", "verbose",
    ),
    "show": ("all", "format", "verbose"),
    "compare": ("format", "verbose"),
    "report": ("verbose",),
    "history": ("format", "verbose"),
    "emit": (
        "accelerate-version", "account", "batch-per-rank", "format", "global-batch-size",
        "interface", "job-name", "label", "memory", "mpi", "namespace", "no-carrier",
        "node-selector", "nodes", "partition", "pvc", "pvc-size", "runtime", "shm",
        "storage-class", "time", "toleration", "transformers-version", "ttl", "verbose",
    ),
    "run": ("plan", "verbose"),
    "verify": ("steps", "timeout", "verbose"),
}  # fmt: skip

_WHY = {
    "force": "it replaces files",
    "study": "it names a file that is written",
    "storage": "it names a server that is written to",
    "output": "it names a file that is written",
    "record": "it names a folder that is written",
    "report": "it names a file that is written",
    "python": "it names a program that is started",
    "deep": "it starts processes",
    "verify": "it starts processes",
    "image": "it names what a cluster runs",
    "base-image": "it names what a cluster runs",
    "hosts": "it names machines that a launch starts processes on",
    "hostfile": "it names machines that a launch starts processes on",
    "doctor": "it names machines that a launch starts processes on",
    "through": "it names how processes are started on other machines",
    "ssh": "it names a program that is started",
    "secret-env": "it hands out secrets",
    "image-pull-secret": "it hands out secrets",
    "quiet": "it would hide that the folder sets anything",
}


def why_not_from_a_folder(command: str, key: str, value: Any) -> str | None:
    """Why a file in the working folder may not set this; None where it may."""
    if key not in _MAY_SET.get(command, ()):
        return _WHY.get(key, "it is the user's own choice")
    if key == "recipe":
        from cputune.workload import recipe_names

        if value not in recipe_names():
            return "a recipe of the folder names weights that are loaded; a shipped one may be set"
    return None
