"""What the Kubernetes formats need beside their YAML: an image, a volume, and the steps.

The steps are those of https://huggingface.co/docs/transformers/perf_train_cpu_many,
build, submit, watch, fetch, delete, as a script with one word for each. What they all say lies in
``texts/``. ``Dockerfile.dockerignore`` names secrets, studies and histories that lie in a folder by
chance, which ``COPY . .`` would take.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from cputune import placing
from cputune.emitters import header, words
from cputune.emitters import kubernetes as k8s
from cputune.emitters.format import EmittedFile, Format, LaunchJob
from cputune.emitters.job import job_name
from cputune.emitters.shell import fill
from cputune.emitters.words import Manifest, ShellWord, comment
from cputune.knobs.kernels import compiled
from cputune.stack.system_packages import DEBIAN

PLACE_SCRIPT = "place.py"
CONSTRAINTS = "constraints.txt"


def job_format(
    kind: str,
    document: Callable[[LaunchJob], Manifest],
    fits: str,
    *,
    first: str,
    label: str,
    notes: Callable[[LaunchJob], tuple[str, ...]] = k8s.notes,
) -> Format:
    """The record of a format that is one Kubernetes document, and what lies beside that.

    ``first`` ends the name of the first pod; ``label`` holds the job's name on all of them.
    """
    name = kind.lower()

    def write(job: LaunchJob) -> tuple[EmittedFile, ...]:
        said = notes(job)
        title = f"Launch of {job.workload.name} as a {kind}."
        text = header.full(job, name, title, said) + words.dump(document(job))
        steps = fill("kubectl.sh", {"kind": name, "first": first, "label": label, **_steps(job)})
        texts = {
            "Dockerfile": dockerfile(job),
            "Dockerfile.dockerignore": fill("dockerignore", {}),
            CONSTRAINTS: constraints(job),
            "pvc.yaml": volume_claim(job),
            # kustomize knows the fields of no custom resource: a prefix would rename the claim,
            # and not its use (its docs: builtins, NameReferenceTransformer).
            "kustomization.yaml": fill("kustomization.yaml", {"kind": name}),
            "kustomizeconfig.yaml": fill(f"{name}.kustomizeconfig.yaml", {}),
            PLACE_SCRIPT: Path(placing.__file__).read_text(encoding="utf-8"),
        }
        return (
            EmittedFile(name=f"{name}.yaml", text=text, notes=said),
            *(EmittedFile(name=beside, text=text) for beside, text in texts.items()),
            EmittedFile(name=f"{name}.kubectl.sh", text=steps, executable=True),
        )

    return Format(
        name=name,
        write=write,
        main=f"{name}.yaml",
        beside=f"`{name}.kubectl.sh`, `Dockerfile`, `pvc.yaml`",
        fits=f"Kubernetes, with {fits}",
        start=f"`launch/{name}.kubectl.sh submit`",
        known_by=rf"""^kind:\s*["']?{kind}\b""",
        consumers=("kubernetes",),
    )


def _steps(job: LaunchJob) -> dict[str, str]:
    """What ``build|submit|watch|fetch|delete`` have to know of a job."""
    recipe = job.workload.recipe is not None
    return {
        "header": comment(job.header),
        "image": ShellWord(k8s.image(job)),
        "namespace": ShellWord(k8s.namespace(job)),
        "job": ShellWord(job_name(job)),
        "claim": ShellWord(k8s.claim(job)),
        "context": '"$here"' if recipe else '"$PWD"',
        "data": k8s.data(job),
        "output": "out" if recipe else ".",
        "pod": json.dumps(k8s.of_pod(job)),
        "container": json.dumps(k8s.of_container(job)),
    }


_PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.!_-]*(\+[0-9A-Za-z.]+)?")


def constraints(job: LaunchJob) -> str:
    """What was measured, for pip: nothing that a requirement drags in takes another version.

    A line of any other form might be an option of pip: it is left out.
    """
    pinned = (
        f"{name}=={version.partition('+')[0]}\n"
        for name, version in sorted(job.versions.items())
        if _PACKAGE.fullmatch(name) and _VERSION.fullmatch(version)
        if name not in ("oneccl_bind_pt", "cputune")
    )
    return comment(["Versions that were measured; the image takes no others."]) + "".join(pinned)


def volume_claim(job: LaunchJob) -> str:
    """The claim for data and output; every node of a job mounts it."""
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": k8s.metadata(job, k8s.claim(job)),
        "spec": {
            "accessModes": ["ReadWriteMany" if job.plan.nodes > 1 else "ReadWriteOnce"],
            "resources": {"requests": {"storage": words.YamlScalar("20Gi")}},
        },
    }

    lines = [f"Volume for data and output of {job.workload.name}.", "", *job.header]
    if job.plan.nodes > 1:
        lines += ["Every node of the job mounts it: the storage class must offer ReadWriteMany."]
    return words.document(claim, lines)


_FILES = {
    "tcmalloc": "libtcmalloc*.so.*",
    "jemalloc": "libjemalloc.so.*",
    "libgomp": "libgomp.so.*",
    "libiomp5": "libiomp5.so",
}
_PIP = f"pip install --no-cache-dir --constraint /opt/{CONSTRAINTS}"


def dockerfile(job: LaunchJob) -> str:
    """An image with the versions that were measured and the libraries that are preloaded."""
    plan, recipe, base = job.plan, job.workload.recipe, k8s.base_image(job)
    said = [f"Image that trains {job.workload.name}.", "", *job.header]
    if "@sha256:" not in base:
        said.append("A tag may move; NAME@sha256:DIGEST does not (--base-image).")
    debian = [DEBIAN[name] for name in k8s.preloads(job) if name in DEBIAN]
    debian += ["g++"] * compiled(plan)  # torch.compile calls it
    packages = ["transformers", "accelerate"]
    packages += ["datasets"] * (recipe is None or bool(recipe.dataset))
    packages += ["peft"] * (recipe is not None and recipe.lora is not None)
    packages += ["intel-openmp"] * (plan.openmp == "libiomp5")
    packages += ["intel_extension_for_pytorch"] * plan.ipex
    oneccl = "oneccl_bind_pt"
    if _VERSION.fullmatch(version := job.versions.get(oneccl, "")):
        oneccl += f"=={version}"
    links = "".join(
        f" \\\n && ln -s \"$(find /usr /opt -name '{_FILES[name]}' | sort | head -n 1)\" "
        f"{k8s.PRELOAD}/{name}.so \\\n && test -f {k8s.PRELOAD}/{name}.so"
        for name in k8s.preloads(job)
    )
    user = k8s.user_id(job)
    values = {
        "header": comment(said),
        "base": base,
        "debian": _RUN_APT.format(" ".join(debian)) if debian else "",
        "pip": _PIP,
        "packages": " ".join(packages),
        "oneccl": f"RUN {_PIP} '{oneccl}' \\\n    --extra-index-url \"$ONECCL_INDEX_URL\"\n"
        if plan.backend == "ccl"
        else "",
        "preload": f"RUN mkdir -p {k8s.PRELOAD}{links}\n" if links else "",
        "user": str(user),
        "project": f"WORKDIR {k8s.WORKSPACE}\n" if recipe else _project(job, user),
        "files": " ".join([*(file.name for file in job.companions), PLACE_SCRIPT]),
    }
    return fill("Dockerfile", values)


_RUN_APT = """RUN apt-get update \\
 && apt-get install --yes --no-install-recommends {} \\
 && rm -rf /var/lib/apt/lists/*
"""


def _project(job: LaunchJob, user: int) -> str:
    """The script with what it imports, the directory that the image is built from; and what it
    says that it needs, there and beside itself, without another torch than the measured one.
    """
    folder = PurePosixPath(job.script or ".").parent
    beside = f"{folder}/requirements.txt"
    places = [beside, "requirements.txt"] if folder.name else ["requirements.txt"]
    lines = [f"WORKDIR {k8s.WORKSPACE}/project", f"COPY --chown={user}:{user} . ."]
    lines += ["# What the script needs beside."]
    for place in places:
        if re.fullmatch(r"[A-Za-z0-9_.][A-Za-z0-9_./-]*", place):  # another would have to be quoted
            lines.append(f"RUN if [ -f {place} ]; then {_PIP} --requirement {place}; fi")
    return "\n".join(lines) + "\n"
