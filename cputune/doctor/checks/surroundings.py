"""The surroundings of a launch: variables of libraries, folders, files that shadow a module."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator

from cputune.doctor import variables as env
from cputune.doctor.finding import Check, Finding, Severity, check, checks_of
from cputune.facts import HostFacts
from cputune.stack import versions_of

MIB, GIB = 1 << 20, 1 << 30
_LAUNCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def left_over(facts: HostFacts) -> tuple[str, ...]:
    """Variables of an earlier launch: neither a launcher nor a cluster set them for this one."""
    cluster = ("SLURM_PROCID", "SLURM_NNODES", "KUBERNETES_SERVICE_HOST")
    within = env.under_mpi(facts) or env.under_torchrun(facts)
    if within or any(env.value(facts, name) for name in cluster):
        return ()
    ranks = {name for name in _LAUNCH[:4] if env.number(facts, name) is not None}
    address = env.value(facts, "MASTER_ADDR") or "localhost"
    by_hand = not address.startswith(("127.", "localhost", "::1")) and len(ranks) > 1
    counted = not by_hand and ranks & {"RANK", "LOCAL_RANK"}
    return tuple(name for name in _LAUNCH if counted and env.value(facts, name))


@check("launch-left-over", Severity.ERROR)
def launch_left_over(facts: HostFacts) -> Iterator[Finding]:
    """Variables of a launch are left in this shell

    Symptom: "environment variable MASTER_ADDR expected, but not set", a process that waits for
    ever, or a single process that takes itself for one of several ranks.

    Cause: LOCAL_RANK alone makes Trainer start a process group; with RANK and WORLD_SIZE, Trainer
    waits for ranks that nobody starts. Launchers set these variables only in the ranks that they
    start, never in a shell.

    Remedy: Unset them, unless you start each rank by hand in a shell of its own.

    Source: https://pytorch.org/docs/stable/distributed.html#environment-variable-initialization
    """
    left = left_over(facts)
    if left:
        said = ", ".join(f"{name}={env.value(facts, name)}" for name in left)
        yield launch_left_over.finding(
            f"{said}, but no launcher runs here", command=f"unset {' '.join(left)}"
        )


@check("module-shadowed", Severity.ERROR)
def module_shadowed(facts: HostFacts) -> Iterator[Finding]:
    """A file of yours is imported instead of a library

    Symptom: "cannot import name 'nn' from 'torch' (/home/you/torch.py)", "module 'datasets' has
    no attribute 'Dataset'", often called a circular import.

    Cause: Python searches the folder of the script (with -m and -c the working folder), then
    PYTHONPATH, and only then its own modules and the installed ones.

    Remedy: Rename the file and correct its imports, or remove its folder from PYTHONPATH.

    Source: https://docs.python.org/3/library/sys_path_init.html
    """
    for stray in facts.surroundings.strays:
        folder = stray.path.removesuffix("/__init__.py")
        command = f"mv {shlex.quote(folder)} {shlex.quote('/my_'.join(folder.rsplit('/', 1)))}"
        if stray.how == "PYTHONPATH":
            listed = [path for path in facts.environment.get("PYTHONPATH", "").split(":") if path]
            place = folder.rpartition("/")[0]
            kept = ":".join(path for path in listed if os.path.abspath(path) != place)
            command = f"export PYTHONPATH={shlex.quote(kept)}" if kept else "unset PYTHONPATH"
        yield module_shadowed.finding(
            f"import {stray.name} loads {stray.path}, found by {stray.how}", command=command
        )


@check("environment-foreign", Severity.WARNING)
def environment_foreign(facts: HostFacts) -> Iterator[Finding]:
    """The activated environment is not the one that is examined

    Symptom: packages are installed, but training does not see them.

    Cause: VIRTUAL_ENV or CONDA_PREFIX in this shell names another environment (set by an IDE,
    or two environments were activated). uv installs into that environment, `python` may be its
    Python, and allocators are looked for in it.

    Remedy: Activate the environment that trains, or examine it: cputune doctor --python ENV.

    Source: https://docs.python.org/3/library/venv.html#how-venvs-work
    """
    around = facts.surroundings
    # A venv inside conda's base keeps CONDA_PREFIX of base, which means nothing to it.
    venv, conda = around.place("VIRTUAL_ENV"), around.place("CONDA_PREFIX")
    active, prefixes = venv or conda, {place.path.rstrip("/") for place in (venv, conda) if place}
    if active and around.prefix and around.prefix not in prefixes:
        yield environment_foreign.finding(
            f"{active.variable}={active.path}; the Python examined is that of {around.prefix}",
            command=f"unset {active.variable}",
        )


@check("variable-refused", Severity.ERROR)
def variable_refused(facts: HostFacts) -> Iterator[Finding]:
    """A variable requests what these libraries cannot do here

    Symptom: Trainer or Accelerator ends at its start: "PackageNotFoundError", "Expected a
    torch.device", "Unknown mixed_precision mode", "invalid truth value".

    Cause: accelerate launch passes its configuration to ranks in such variables. One that was
    exported for another machine, or left by an earlier launch, affects every later run.

    Remedy: Unset the variable.

    Source: https://huggingface.co/docs/accelerate/usage_guides/environment_variables
    """
    if env.without_gpu(facts) and (facts.package("accelerate") or facts.package("torch")):
        yield from _told(facts, variable_refused, "refused")


def _told(facts: HostFacts, asking: Check, kind: str) -> Iterator[Finding]:
    for row in env.variable_rows(kind):
        meant = re.fullmatch(f"(?i:{row['values']})", env.value(facts, row["name"]) or "")
        if meant and not ("unless" in row and facts.package(row["unless"])):
            yield env.unset(asking, facts, row["name"], f": {row['does']}")


@check("master-port-taken", Severity.WARNING)
def master_port_taken(facts: HostFacts) -> Iterator[Finding]:
    """Another process listens on MASTER_PORT

    Symptom: "EADDRINUSE", "The server socket has failed to listen", or ranks of two jobs that
    wait for each other.

    Cause: a launch that has not ended, yours or another user's, uses this port on this machine.

    Remedy: Choose another port, unless the process belongs to this launch.

    Source: https://pytorch.org/docs/stable/distributed.html#environment-variable-initialization
    """
    if "MASTER_PORT" in facts.surroundings.ports_taken and not left_over(facts):
        port = env.number(facts, "MASTER_PORT") or 0
        other = port + 1 if port < 65000 else 29500
        yield master_port_taken.finding(
            f"MASTER_PORT={port}, and a process on this machine listens on that port",
            command=f"export MASTER_PORT={other}",
        )


@check("folder-unusable", Severity.WARNING)
def folder_unusable(facts: HostFacts) -> Iterator[Finding]:
    """A folder that training writes to cannot be written

    Symptom: "Read-only file system", "Permission denied", "No usable temporary directory found".

    Cause: models and data sets are kept below HF_HOME (else ~/.cache/huggingface), temporary files
    below TMPDIR. Containers often run as a user without a home, or with a read-only root.

    Remedy: Set the variable to a folder that can be written.

    Source: https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables
    """
    cures = {"HF_HOME": "export HF_HOME=/tmp/huggingface", "TMPDIR": "unset TMPDIR"}
    for name, command in cures.items():
        place = facts.surroundings.place(name)
        if place is not None and not place.writable:
            yield folder_unusable.finding(
                f"{name}: {place.path} cannot be written", command=command
            )
        elif place is not None and name == "TMPDIR" and not place.exists:
            yield folder_unusable.finding(
                f"TMPDIR={place.path} does not exist; Python uses /tmp, other programs fail",
                command=f"mkdir -p {shlex.quote(place.path)}",
            )


@check("folder-full", Severity.WARNING)
def folder_full(facts: HostFacts) -> Iterator[Finding]:
    """The disk for models or temporary files is almost full

    Symptom: "No space left on device", often at the first checkpoint or download.

    Cause: BERT base takes 0.4 GB, each checkpoint of it with AdamW's moments 1.3 GB.

    Remedy: Free space, or set the variable to a folder on another disk.

    Source: https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables
    """
    for name, least in (("HF_HOME", GIB), ("TMPDIR", 64 * MIB)):
        place = facts.surroundings.place(name)
        if place is not None and place.writable and place.free_bytes < least:
            yield folder_full.finding(
                f"{place.free_bytes / MIB:.0f} MiB are free at {place.path} ({name}); "
                f"at least {least / MIB:.0f} MiB are advised",
                severity=Severity.ERROR if place.free_bytes < least / 16 else None,
                command=f"df -h {shlex.quote(place.path)}",
            )


@check("cache-not-read", Severity.WARNING)
def cache_not_read(facts: HostFacts) -> Iterator[Finding]:
    """TRANSFORMERS_CACHE is no longer read

    Symptom: models are downloaded again to another folder; offline they are not found.

    Cause: transformers 5 reads only HF_HOME and HF_HUB_CACHE.

    Remedy: Set HF_HUB_CACHE to this folder instead.

    Source: https://github.com/huggingface/transformers/blob/main/MIGRATION_GUIDE_V5.md
    """
    version, folder = versions_of(facts).transformers, env.value(facts, "TRANSFORMERS_CACHE")
    unread = version is not None and version.major >= 5 and not env.value(facts, "HF_HUB_CACHE")
    if folder and unread:
        yield cache_not_read.finding(
            f"TRANSFORMERS_CACHE={folder}; transformers {version} does not read it",
            command=f"export HF_HUB_CACHE={shlex.quote(folder)} && unset TRANSFORMERS_CACHE",
        )


@check("debug-left-on", Severity.WARNING)
def debug_left_on(facts: HostFacts) -> Iterator[Finding]:
    """A debugging variable is left on

    Symptom: slow steps, or logs of gigabytes.

    Cause: the library writes or checks more, which costs time in every step.

    Remedy: Unset the variable when debugging is done.

    Source: https://uxlfoundation.github.io/oneDNN/dev_guide_verbose.html,
    https://pytorch.org/docs/stable/distributed.html#debugging-torch-distributed-applications
    """
    yield from _told(facts, debug_left_on, "slow")


CHECKS = checks_of(__name__)
