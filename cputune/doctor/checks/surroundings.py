"""The surroundings of a launch: files that hide a module, its port, its folders."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace

from cputune.doctor import variables as env
from cputune.doctor.checks.launch import left_over
from cputune.doctor.finding import Finding, Severity, check, checks_of
from cputune.host.facts import HostFacts
from cputune.host.process import absolute
from cputune.text.plain import GIB, MIB

# Size of a checkpoint in weights: the weights and the two moments of AdamW.
CHECKPOINT = 3
# A Trainer checkpoint has about twenty files, and there may be several. Assumed.
LEAST_FREE_FILES = 100


@check("module-shadowed", Severity.ERROR)
def module_shadowed(facts: HostFacts) -> Iterator[Finding]:
    """A file of yours is imported instead of a library

    Symptom: "cannot import name 'nn' from 'torch' (/home/you/torch.py)", "'torch' is not a
    package", "module 'datasets' has no attribute 'Dataset'", often called a circular import.

    Cause: Python searches the folder of the script (with -m and -c the working folder), then
    PYTHONPATH, then installed modules.

    Remedy: Rename the file and correct its imports, or remove its folder from PYTHONPATH.

    Source: https://docs.python.org/3/library/sys_path_init.html, pytorch/pytorch#574
    """
    for stray in facts.surroundings.strays:
        folder = stray.path.removesuffix("/__init__.py")
        command = f"mv {shlex.quote(folder)} {shlex.quote('/my_'.join(folder.rsplit('/', 1)))}"
        if stray.how == "PYTHONPATH":
            command = _without(folder.rpartition("/")[0], facts)
        yield module_shadowed.finding(
            f"import {stray.name} loads {stray.path}, found by {stray.how}", command=command
        )


def _searched_first(facts: HostFacts) -> list[str]:
    paths: list[str] = []
    for path in facts.environment.get("PYTHONPATH", "").split(":"):
        if path:
            paths.append(path)
    return paths


def _without(place: str, facts: HostFacts) -> str:
    """The command that removes a folder from PYTHONPATH."""
    kept = ":".join(path for path in _searched_first(facts) if absolute(path) != place)
    if kept:
        return f"export PYTHONPATH={shlex.quote(kept)}"
    return "unset PYTHONPATH"


def pythonpath_first(finding: Finding, facts: HostFacts) -> Finding:
    """The finding with PYTHONPATH as its fix, if Python finds the package there that pip should
    fix.

    pip does not change files there, and Python would still import them first.
    """
    if "pip " not in (finding.command or ""):
        return finding
    places = {absolute(path) for path in _searched_first(facts)}
    for package in facts.packages:
        place = ""
        if package.location:
            place = absolute(package.location)
        named = rf"(?<![\w-]){re.escape(package.name)}(?![\w-])"
        shown = f"{finding.evidence} {finding.command}"
        if place in places and re.search(named, shown) and (package.version or "?") in shown:
            return replace(
                finding,
                evidence=f"{finding.evidence}; {package.name} {package.version} is in {place}, "
                "which PYTHONPATH puts before the environment",
                command=_without(place, facts),
                remedy="Remove the folder from PYTHONPATH, then run cputune doctor again.",
            )
    return finding


@check("environment-foreign", Severity.WARNING)
def environment_foreign(facts: HostFacts) -> Iterator[Finding]:
    """The activated environment is not the one that is examined

    Symptom: packages are installed, but training does not see them.

    Cause: VIRTUAL_ENV or CONDA_PREFIX in this shell names another environment (set by an IDE, two
    were activated, or cputune is installed by pipx). pip and `python` use that one.

    Remedy: Activate the environment that trains, or name it: cputune doctor --python
    ENV/bin/python.

    Source: https://docs.python.org/3/library/venv.html#how-venvs-work
    """
    around = facts.surroundings
    # A venv inside conda's base keeps CONDA_PREFIX of base, which means nothing to it.
    venv, conda = around.place("VIRTUAL_ENV"), around.place("CONDA_PREFIX")
    active, prefixes = venv or conda, {place.path.rstrip("/") for place in (venv, conda) if place}
    if active and around.prefix and around.prefix not in prefixes:
        yield environment_foreign.finding(
            f"{active.variable}={active.path}; the Python examined is that of {around.prefix}",
            severity=None if venv else Severity.ADVICE,  # base is active wherever conda is
            command=f"unset {active.variable}",
        )


@check("master-port-taken", Severity.WARNING)
def master_port_taken(facts: HostFacts) -> Iterator[Finding]:
    """Another process listens on the port of this launch

    Symptom: "EADDRINUSE", "The server socket has failed to listen", or ranks of two jobs that wait
    for each other.

    Cause: a launch that has not ended, yours or another user's, uses this port. torchrun uses 29500
    by default.

    Remedy: Choose another port, unless the process belongs to this launch.

    Source: pytorch/pytorch#126510, pytorch/pytorch#85604
    """
    if left_over(facts):
        return
    for port in facts.surroundings.ports_taken:
        other = 29500
        if port < 65000:
            other = port + 1
        evidence, option = f"port {port}: a process on this machine listens on it", "--master_port"
        if env.number(facts, "MASTER_PORT") == port:
            evidence, command = (
                f"MASTER_PORT={evidence.removeprefix('port ')}",
                f"MASTER_PORT={other}",
            )
            yield master_port_taken.finding(evidence, command=f"export {command}")
            continue
        options = f"torchrun {option} {other}, accelerate launch --main_process_port {other}"
        remedy = f"Choose another port, unless the process belongs to this launch: {options}."
        yield master_port_taken.finding(evidence, remedy=remedy)


_FIXES = {
    "HF_HOME": None,  # see below: a folder of temporary files that can be written
    "HF_HUB_CACHE": "unset HF_HUB_CACHE",
    "HF_DATASETS_CACHE": "unset HF_DATASETS_CACHE",
    "TORCHINDUCTOR_CACHE_DIR": "unset TORCHINDUCTOR_CACHE_DIR",
    "TMPDIR": "unset TMPDIR",
    "--output_dir": None,
    "/dev/shm": None,
}


@check("folder-unusable", Severity.WARNING)
def folder_unusable(facts: HostFacts) -> Iterator[Finding]:
    """A folder that training writes to cannot be written

    Symptom: "Read-only file system", "Permission denied", "No usable temporary directory found".

    Cause: models and data sets go to HF_HOME (~/.cache/huggingface), temporary files to TMPDIR,
    checkpoints to --output_dir, batches of loader workers to /dev/shm. Containers often run as a
    user without a home, or with a read-only root.

    Remedy: Name a folder that can be written.

    Source: https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables
    """
    temporary = facts.surroundings.place("TMPDIR")
    fixes = dict(_FIXES)
    if temporary is None:
        fixes["HF_HOME"] = "export HF_HOME=/tmp/huggingface"
    elif temporary.writable:
        fixes["HF_HOME"] = f"export HF_HOME={shlex.quote(temporary.path)}/huggingface"
    for name, command in fixes.items():
        place = facts.surroundings.place(name)
        if place is not None and not place.writable:
            yield folder_unusable.finding(
                f"{name}: {place.path} cannot be written",
                severity=Severity.ERROR if name == "--output_dir" else None,
                command=command,
            )
        elif place is not None and name == "TMPDIR" and not place.exists:
            yield folder_unusable.finding(
                f"TMPDIR={place.path} does not exist; Python uses /tmp, other programs fail",
                command=f"mkdir -p {shlex.quote(place.path)}",
            )


@check("folder-full", Severity.WARNING)
def folder_full(facts: HostFacts) -> Iterator[Finding]:
    """A disk that training writes to is almost full

    Symptom: "No space left on device", often at the first checkpoint or download.

    Cause: a checkpoint holds the weights and the two moments of AdamW: 1.3 GB for BERT base; the
    check uses the size of your weights if they are on this machine. A disk may also run out of
    inodes.

    Remedy: Free space, or name a folder on another disk.

    Source: huggingface/diffusers#4957, h2oai/h2o-llmstudio#214
    """
    weights = facts.surroundings.model_bytes
    needs = {
        "HF_HOME": GIB,
        "HF_HUB_CACHE": GIB,
        "HF_DATASETS_CACHE": GIB,
        "TMPDIR": 64 * MIB,
        "--output_dir": GIB if weights is None else CHECKPOINT * weights,
    }
    for name, least in needs.items():
        place = facts.surroundings.place(name)
        if place is None or not place.writable:
            continue
        path = shlex.quote(place.path)
        files = place.free_files
        if files is not None and files < LEAST_FREE_FILES:
            evidence = f"only {files} more files fit at {place.path} ({name})"
            yield folder_full.finding(evidence, command=f"df -i {path}")
        elif place.free_bytes < least:
            counted = "advised are"
            if name == "--output_dir" and weights:
                counted = "a checkpoint takes"
            free = f"{place.free_bytes / MIB:.0f} MiB are free at {place.path} ({name})"
            sure = counted == "a checkpoint takes" or place.free_bytes < least / 16
            yield folder_full.finding(
                f"{free}; {counted} {least / MIB:.0f} MiB",
                severity=Severity.ERROR if sure else None,
                command=f"df -h {path}",
            )


CHECKS = checks_of(__name__)
