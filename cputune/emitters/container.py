"""The image that pods train in: a Dockerfile with the measured versions.

The fixed part is in ``texts/``. ``Dockerfile.dockerignore`` names secrets, studies and histories,
which ``COPY . .`` would take.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from cputune.emitters.bash import fill
from cputune.emitters.checked_words import comment
from cputune.emitters.format import LaunchJob
from cputune.errors import UsageError
from cputune.stack import Versions
from cputune.stack.fit import pythons_for
from cputune.stack.system_packages import DEBIAN

PLACE_SCRIPT = "place.py"
CONSTRAINTS = "constraints.txt"
WORKSPACE = "/workspace"
# Where the libraries that a plan preloads are linked.
PRELOAD = "/opt/preload"
USER = 1000  # of the image, if the job names none; not root
# All packages have wheels for this Python.
PYTHON = "3.11"

_PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.!_-]*(\+[0-9A-Za-z.]+)?")
_FILES = {
    "tcmalloc": "libtcmalloc*.so.*",
    "jemalloc": "libjemalloc.so.*",
    "libgomp": "libgomp.so.*",
    "libiomp5": "libiomp5.so",
}
_PIP = f"pip install --no-cache-dir --constraint /opt/{CONSTRAINTS}"
_RUN_APT = """RUN apt-get update \\
 && apt-get install --yes --no-install-recommends {} \\
 && rm -rf /var/lib/apt/lists/*
"""


def user_id(job: LaunchJob) -> int:
    """The number of the user that trains. Raises UsageError for root."""
    given = job.site.cluster.user_id
    if given is not None and not 0 < given < 1 << 31:
        raise UsageError(
            f"--user-id {given} is not allowed", hint="--user-id 1000, or any number above 0"
        )
    return given or USER


def preloads(job: LaunchJob) -> tuple[str, ...]:
    """What the plan preloads, by name."""
    names = (job.plan.allocator, job.plan.openmp)
    return tuple(name for name in names if name != "default")


def constraints(job: LaunchJob) -> str:
    """The measured versions, for pip: no requirement may install another one.

    A line of any other form might be an option of pip: it is left out.
    """
    whose = (
        "that were measured" if job.speed.named is not None else "of the Python that trains here"
    )
    text = comment([f"Versions {whose}; the image takes no others."])
    for name, version in sorted(job.machine.versions.items()):
        if name in ("oneccl_bind_pt", "cputune", "python"):
            continue
        if _PACKAGE.fullmatch(name) and _VERSION.fullmatch(version):
            text += f"{name}=={version.partition('+')[0]}\n"
    return text


def dockerfile(job: LaunchJob) -> str:
    """An image with the measured versions and the preloaded libraries.

    It starts from the usual Python, else from the newest that has wheels of all packages.
    """
    plan, recipe, user = job.plan, job.workload.recipe, user_id(job)
    fitting = pythons_for(Versions.from_names(job.machine.versions))
    debian = [DEBIAN[name] for name in preloads(job) if name in DEBIAN]
    packages = ["transformers", "accelerate"]
    if recipe is None:
        packages.append("datasets")
    elif recipe.lora is not None:
        packages.append("peft")
    if plan.openmp == "libiomp5":
        packages.append("intel-openmp")
    if plan.ipex:
        packages.append("intel_extension_for_pytorch")
    oneccl = "oneccl_bind_pt"
    if _VERSION.fullmatch(version := job.machine.versions.get(oneccl, "")):
        oneccl += f"=={version}"
    links = ""
    for name in preloads(job):
        links += (
            f" \\\n && ln -s \"$(find /usr /opt -name '{_FILES[name]}' | sort | head -n 1)\" "
            f"{PRELOAD}/{name}.so \\\n && test -f {PRELOAD}/{name}.so"
        )
    bindings = f"RUN {_PIP} '{oneccl}' \\\n    --extra-index-url \"$ONECCL_INDEX_URL\"\n"
    values = {
        "header": comment([f"Image that trains {job.workload.name}.", "", *job.header]),
        "python": PYTHON if PYTHON in fitting or not fitting else fitting[-1],
        "debian": _RUN_APT.format(" ".join(debian)) if debian else "",
        "pip": _PIP,
        "packages": " ".join(packages),
        "oneccl": bindings if plan.backend == "ccl" else "",
        "preload": f"RUN mkdir -p {PRELOAD}{links}\n" if links else "",
        "user": str(user),
        "project": f"WORKDIR {WORKSPACE}\n" if recipe else _project(job, user),
        "files": " ".join([*(file.name for file in job.companions), PLACE_SCRIPT]),
    }
    return fill("Dockerfile", values)


def _project(job: LaunchJob, user: int) -> str:
    """The script with what it imports and its folder, and the requirements that it names there,
    without another torch than the measured one.
    """
    folder = PurePosixPath(job.script or ".").parent
    beside = f"{folder}/requirements.txt"
    places = [beside, "requirements.txt"] if folder.name else ["requirements.txt"]
    lines = [f"WORKDIR {WORKSPACE}/project", f"COPY --chown={user}:{user} . ."]
    lines += ["# What the script needs beside."]
    for place in places:
        if re.fullmatch(r"[A-Za-z0-9_.][A-Za-z0-9_./-]*", place):  # another would have to be quoted
            lines.append(f"RUN if [ -f {place} ]; then {_PIP} --requirement {place}; fi")
    return "\n".join(lines) + "\n"
