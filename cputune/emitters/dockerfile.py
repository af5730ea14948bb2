"""The image of the Kubernetes formats: what was measured, what is preloaded, who trains."""

from __future__ import annotations

import re
import shlex
from pathlib import PurePosixPath

from cputune.emitters import kubernetes as k8s
from cputune.emitters import security
from cputune.emitters.header import comment
from cputune.emitters.interface import Job
from cputune.errors import UsageError
from cputune.knobs.compile import compiled
from cputune.stack.system_packages import DEBIAN

_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.!_-]*(\+[0-9A-Za-z.]+)?")


def dockerfile(job: Job) -> str:
    """An image with the versions that were measured and the libraries that are preloaded."""
    base = k8s.base_image(job)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.:_/@-]*", base):
        raise UsageError(
            f"{base!r} is not an image",
            hint=f"as in: --base-image {k8s.BASE.format(python=k8s.PYTHON)}",
        )
    text = comment([f"Image that trains {job.workload.name}.", "", *job.header])
    if "@sha256:" not in base:
        text += "# A tag may move; NAME@sha256:DIGEST does not (--base-image).\n"
    text += f"FROM {base}\n"
    debian = [DEBIAN[name] for name in k8s.preloads(job) if name in DEBIAN]
    debian += ["g++"] * compiled(job.plan)  # torch.compile calls it
    if debian:
        text += (
            "RUN apt-get update \\\n"
            f" && apt-get install --yes --no-install-recommends {' '.join(debian)} \\\n"
            " && rm -rf /var/lib/apt/lists/*\n"
        )
    text += _pip(job)
    if k8s.preloads(job):
        text += f"RUN mkdir -p {k8s.PRELOAD}"
        for name in k8s.preloads(job):
            text += (
                f" \\\n && ln -s \"$(find /usr /opt -name '{_FILES[name]}' | sort | head -n 1)\" "
                f"{k8s.PRELOAD}/{name}.so"
                f" \\\n && test -f {k8s.PRELOAD}/{name}.so"
            )
        text += "\n"
    user = security.user_id(job)
    chown = f"--chown={user}:{user}"
    text += _user(user)
    own = [file.name for file in job.companions]
    if job.workload.recipe is not None:
        text += f"WORKDIR {k8s.WORKSPACE}\n"
    else:
        # The script with what it imports: the directory that the image is built from.
        text += f"WORKDIR {k8s.WORKSPACE}/project\nCOPY {chown} . .\n" + _requirements(job)
    text += f"COPY {chown} --from=launch {' '.join(own)} {k8s.WORKSPACE}/\n"
    return text + f"USER {user}:{user}\n"


def _user(user: int) -> str:
    """Who trains; torch asks for the name of its user (getpass), so a number is not enough."""
    return (
        f"RUN (getent passwd {user} >/dev/null \\\n"
        f"  || (groupadd --gid {user} train \\\n"
        f"  && useradd --uid {user} --gid {user} --create-home train)) \\\n"
        f" && install --directory --owner {user} --group {user} "
        f"{k8s.WORKSPACE} {k8s.WORKSPACE}/project\n"
    )


def _requirements(job: Job) -> str:
    """What the script says that it needs, without another torch than the measured one."""
    folder = PurePosixPath(job.script or ".").parent
    places = ["requirements.txt"]
    if job.script is not None and not folder.is_absolute() and str(folder) != ".":
        places.insert(0, f"{folder}/requirements.txt")
    names = "|".join(("torch", "transformers", "accelerate"))
    text = (
        "# What the script needs beside; another torch than the measured one is an error.\n"
        f"RUN pip freeze | grep -E '^({names})==' >/tmp/measured.txt"
    )
    for place in map(shlex.quote, places):
        text += (
            f" \\\n && if [ -f {place} ]; then pip install --no-cache-dir "
            f"--constraint /tmp/measured.txt --requirement {place}; fi"
        )
    return text + "\n"


_FILES = {
    "tcmalloc": "libtcmalloc*.so.*",
    "jemalloc": "libjemalloc.so.*",
    "libgomp": "libgomp.so.*",
    "libiomp5": "libiomp5.so",
}


def _pip(job: Job) -> str:
    def pinned(name: str) -> str:
        version = job.versions.get(name)
        return f"'{name}=={version}'" if version and _VERSION.fullmatch(version) else name

    torch = pinned("torch").split("+")[0].rstrip("'")
    torch = f"{torch}'" if "'" in torch else torch
    text = (
        "# torch without CUDA; the versions are those of the machine that was measured.\n"
        "RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu "
        f"{torch}\n"
    )
    others = [pinned(name) for name in ("transformers", "accelerate")]
    if job.workload.recipe is None or job.workload.recipe.dataset:
        others.append("datasets")
    if job.workload.recipe is not None and job.workload.recipe.lora is not None:
        others.append("peft")
    if job.plan.openmp == "libiomp5":
        others.append("intel-openmp")
    if job.plan.ipex:
        others.append(pinned("intel_extension_for_pytorch"))
    text += f"RUN pip install --no-cache-dir {' '.join(others)}\n"
    if job.plan.backend == "ccl":
        version = pinned("oneccl_bind_pt")
        text += (
            f"RUN pip install --no-cache-dir {version} \\\n"
            "    --extra-index-url https://pytorch-extension.intel.com/release-whl/stable/cpu/us/\n"
        )
    return text
