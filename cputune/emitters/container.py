"""What the Kubernetes formats need beside their YAML: an image, a volume, and the steps.

The steps are those of https://huggingface.co/docs/transformers/perf_train_cpu_many,
build, submit, watch, fetch, delete, as a script with one word for each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from cputune import placing
from cputune.emitters import header, shell, words
from cputune.emitters import kubernetes as k8s
from cputune.emitters.format import EmittedFile, Format, LaunchJob
from cputune.emitters.job import job_name
from cputune.emitters.words import DockerWord, Manifest, PackageName, ShellWord, comment
from cputune.knobs.kernels import compiled
from cputune.stack.system_packages import DEBIAN

PLACE_SCRIPT = "place.py"

IGNORED = """\
# Read by `docker build` for the Dockerfile beside it: what is no part of the training.
""" + "".join(
    f"**/{name}\n"
    for name in (
        *(".git", ".hg", ".svn", ".env*", ".netrc", ".ssh", ".aws", ".azure", ".kube", ".docker"),
        *(".huggingface", ".cache", ".config", ".pypirc", ".npmrc", "*.pem", "*.key", "id_rsa*"),
        *("id_ed25519*", "*token*.txt", "*.db*", "*.sqlite*", "cputune.json", ".cputune"),
        *(".venv", "venv", "__pycache__", "*.pyc", ".ipynb_checkpoints", "wandb", "mlruns"),
    )
)
"""Secrets, studies and histories that lie in a folder by chance; ``COPY . .`` would take them."""


def files(job: LaunchJob, format: str) -> tuple[EmittedFile, ...]:
    """Dockerfile, pvc.yaml and the script of steps for one format."""
    return (
        EmittedFile(name="Dockerfile", text=dockerfile(job)),
        EmittedFile(name="Dockerfile.dockerignore", text=IGNORED),
        EmittedFile(name=CONSTRAINTS, text=constraints(job)),
        EmittedFile(name="pvc.yaml", text=volume_claim(job)),
        *kustomization(format),
        shell.script(f"{format}.kubectl.sh", steps(job, format)),
        EmittedFile(name=PLACE_SCRIPT, text=Path(placing.__file__).read_text(encoding="utf-8")),
    )


def job_format(
    kind: str,
    document: Callable[[LaunchJob], Manifest],
    fits: str,
    notes: Callable[[LaunchJob], tuple[str, ...]] = k8s.notes,
) -> Format:
    """The record of a format that is one Kubernetes document, with the files of ``files``."""
    name = kind.lower()

    def write(job: LaunchJob) -> tuple[EmittedFile, ...]:
        said = notes(job)
        title = f"Launch of {job.workload.name} as a {kind}."
        text = header.full(job, name, title, said) + words.dump(document(job))
        return (EmittedFile(name=f"{name}.yaml", text=text, notes=said), *files(job, name))

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


CONSTRAINTS = "constraints.txt"


def constraints(job: LaunchJob) -> str:
    """What was measured, for pip: nothing that a requirement drags in takes another version."""
    pinned = (
        f"{PackageName(name)}=={version.partition('+')[0]}\n"
        for name, version in sorted(job.versions.items())
        if _VERSION.fullmatch(version) and name not in ("oneccl_bind_pt", "cputune")
    )
    return comment(["Versions that were measured; the image takes no others."]) + "".join(pinned)


_TEMPLATE = "spec/runtimePatches/trainingRuntimeSpec/template/spec/replicatedJobs/template/spec"
_PODS = {
    "pytorchjob": (
        "PyTorchJob",
        [f"spec/pytorchReplicaSpecs/{role}/template/spec" for role in ("Master", "Worker")],
    ),
    "trainjob": ("TrainJob", [f"{_TEMPLATE}/template/spec"]),
}
_NAMED_IN_PODS = {
    "PersistentVolumeClaim": "volumes/persistentVolumeClaim/claimName",
    "ServiceAccount": "serviceAccountName",
    "Secret": "imagePullSecrets/name",
}


def kustomization(format: str) -> tuple[EmittedFile, ...]:
    """``kubectl apply -k``, and where kustomize finds the names that it may change.

    It knows the fields of no custom resource: a prefix would rename the claim, and not its use
    (https://kubectl.docs.kubernetes.io/references/kustomize/builtins/#_namereferencetransformer_).
    """
    kind, pods = _PODS[format]
    config: Manifest = {"nameReference": []}
    for named, use in _NAMED_IN_PODS.items():
        places = [{"path": f"{path}/{use}", "kind": kind} for path in pods]
        config["nameReference"].append({"kind": named, "version": "v1", "fieldSpecs": places})
    if kind == "TrainJob":
        config["images"] = [{"path": "spec/trainer/image", "kind": kind}]
    files = ["pvc.yaml", f"{format}.yaml"]
    content = {"resources": files, "configurations": ["kustomizeconfig.yaml"]}
    documents = {
        "kustomization.yaml": (content, "kubectl apply -k ."),
        "kustomizeconfig.yaml": (config, f"Where a {kind} names what kustomize may rename."),
    }
    return tuple(
        EmittedFile(name=name, text=words.document(document, [said]))
        for name, (document, said) in documents.items()
    )


def claim_document(job: LaunchJob) -> dict[str, object]:
    """The claim for data and output, as data."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": k8s.metadata(job, k8s.claim(job)),
        "spec": {
            "accessModes": ["ReadWriteMany" if job.plan.nodes > 1 else "ReadWriteOnce"],
            "resources": {"requests": {"storage": words.YamlScalar("20Gi")}},
        },
    }


def volume_claim(job: LaunchJob) -> str:
    """The claim for data and output; every node of a job mounts it."""
    lines = [f"Volume for data and output of {job.workload.name}.", "", *job.header]
    if job.plan.nodes > 1:
        lines += ["Every node of the job mounts it: the storage class must offer ReadWriteMany."]
    return words.document(claim_document(job), lines)


def steps(job: LaunchJob, format: str) -> str:
    """``pytorchjob.kubectl.sh build|submit|watch|fetch|delete``."""
    names = {
        "image": k8s.image(job),
        "namespace": k8s.namespace(job),
        "job": job_name(job),
        "claim": k8s.claim(job),
    }
    first, label = {
        "pytorchjob": ("-master-0", "training.kubeflow.org/job-name"),
        "trainjob": ("-node-0-0", "jobset.sigs.k8s.io/jobset-name"),
    }[format]
    text = "#!/usr/bin/env bash\n" + comment(
        [
            f"Steps to run {format}.yaml on a cluster, in this order:",
            "  build    build the image from this directory and push it",
            "  submit   create the volume claim and the job",
            "  watch    follow the log of the first pod",
            "  fetch    copy the output of the job into a directory here",
            "  delete   delete the job; the volume and what is on it stay",
            "",
            *job.header,
        ]
    )
    text += "set -euo pipefail\n\n"
    text += "".join(f"{name}={ShellWord(value)}\n" for name, value in names.items())
    context = '"$here"' if job.workload.recipe is not None else '"$PWD"'
    output = "out" if job.workload.recipe is not None else "."
    return text + STEPS.format(
        kind=format,
        context=context,
        first=first,
        label=label,
        data=k8s.data(job),
        output=output,
        pod=json.dumps(k8s.of_pod(job)),
        container=json.dumps(k8s.of_container(job)),
    )


STEPS = r"""here=$(cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" && pwd)

if [[ $image == *"<"* ]]; then
  echo "error: the image is still a placeholder: $image" >&2
  echo "hint: cputune emit --format {kind} --image REGISTRY/NAME:TAG" >&2
  exit 3
fi
case ${{1:-}} in
  build)
    # "launch" is the directory of these files, whatever else the image is built from. Further
    # words are docker's: --build-arg TORCH_INDEX_URL=https://mirror.example.com/cpu
    docker build --build-context launch="$here" --file "$here/Dockerfile" --tag "$image" \
      "${{@:2}}" {context}
    docker push "$image"
    # A tag may move; submit takes the digest that the registry has given.
    docker image inspect --format '{{{{join .RepoDigests "\n"}}}}' "$image" |
      {{ grep -F "${{image%:*}}@sha256:" || true; }} | head -n 1 >"$here/image.digest"
    ;;
  submit)
    kubectl --namespace "$namespace" get pvc "$claim" >/dev/null 2>&1 ||
      kubectl apply --filename "$here/pvc.yaml"
    pinned=$(cat -- "$here/image.digest" 2>/dev/null || true)
    if [[ -n $pinned ]]; then
      document=$(<"$here/{kind}.yaml")
      kubectl apply --filename - <<<"${{document//\"$image\"/\"$pinned\"}}"
    else
      kubectl apply --filename "$here/{kind}.yaml"
    fi
    ;;
  watch)
    kubectl --namespace "$namespace" get {kind} "$job"
    kubectl --namespace "$namespace" get pods --selector "{label}=$job" --output wide
    pod=$(kubectl --namespace "$namespace" get pods --selector "{label}=$job" --output name |
      grep -- "{first}" | head -n 1)
    kubectl --namespace "$namespace" logs --follow "$pod"
    ;;
  fetch)
    # The pods of a job that is done cannot be copied from; a small one mounts the volume.
    kubectl --namespace "$namespace" run "$job-fetch" --image busybox:1.36 --restart Never \
      --overrides '{{"spec": {{"securityContext": {pod},
        "containers": [{{"name": "fetch", "image": "busybox:1.36",
        "securityContext": {container},
        "command": ["sleep", "3600"], "volumeMounts": [{{"name": "data", "mountPath": "{data}"}}]
        }}],
        "volumes": [{{"name": "data", "persistentVolumeClaim": {{"claimName": "'"$claim"'"}}}}]}}}}'
    kubectl --namespace "$namespace" wait --for condition=Ready "pod/$job-fetch" --timeout 5m
    kubectl cp "$namespace/$job-fetch:{data}/{output}" "./$job-output"
    kubectl --namespace "$namespace" delete pod "$job-fetch" --grace-period 1
    ;;
  delete)
    kubectl --namespace "$namespace" delete --ignore-not-found {kind} "$job"
    echo "the volume stays; to delete it: kubectl --namespace $namespace delete pvc $claim"
    ;;
  *)
    echo "usage: $0 build|submit|watch|fetch|delete" >&2
    exit 2
    ;;
esac
"""


_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.!_-]*(\+[0-9A-Za-z.]+)?")


def dockerfile(job: LaunchJob) -> str:
    """An image with the versions that were measured and the libraries that are preloaded."""
    base = k8s.base_image(job)
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
    text += _INDEXES + f"COPY --from=launch {CONSTRAINTS} /opt/{CONSTRAINTS}\n" + _pip(job)
    if k8s.preloads(job):
        text += f"RUN mkdir -p {k8s.PRELOAD}"
        for name in k8s.preloads(job):
            text += (
                f" \\\n && ln -s \"$(find /usr /opt -name '{_FILES[name]}' | sort | head -n 1)\" "
                f"{k8s.PRELOAD}/{name}.so"
                f" \\\n && test -f {k8s.PRELOAD}/{name}.so"
            )
        text += "\n"
    user = k8s.user_id(job)
    chown = f"--chown={user}:{user}"
    text += _user(user)
    own = [*(file.name for file in job.companions), PLACE_SCRIPT]
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


def _requirements(job: LaunchJob) -> str:
    """What the script says that it needs, without another torch than the measured one."""
    folder = PurePosixPath(job.script or ".").parent
    places = [DockerWord("requirements.txt")]
    if job.script is not None and not folder.is_absolute() and str(folder) != ".":
        places.insert(0, DockerWord(f"{folder}/requirements.txt"))
    lines = [f"RUN if [ -f {f} ]; then {_PIP_INSTALL} --requirement {f}; fi\n" for f in places]
    return "# What the script needs beside.\n" + "".join(lines)


_FILES = {
    "tcmalloc": "libtcmalloc*.so.*",
    "jemalloc": "libjemalloc.so.*",
    "libgomp": "libgomp.so.*",
    "libiomp5": "libiomp5.so",
}


_PIP_INSTALL = f"pip install --no-cache-dir --constraint /opt/{CONSTRAINTS}"
_INDEXES = """# Mirrors: docker build --build-arg PIP_INDEX_URL=...
ARG PIP_INDEX_URL=https://pypi.org/simple
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
ARG ONECCL_INDEX_URL=https://pytorch-extension.intel.com/release-whl/stable/cpu/us/
"""


def _pip(job: LaunchJob) -> str:
    recipe = job.workload.recipe
    names = ["transformers", "accelerate"]
    names += ["datasets"] * (recipe is None or bool(recipe.dataset))
    names += ["peft"] * (recipe is not None and recipe.lora is not None)
    names += ["intel-openmp"] * (job.plan.openmp == "libiomp5")
    names += ["intel_extension_for_pytorch"] * job.plan.ipex
    text = (
        "# torch without CUDA; constraints.txt has the versions that were measured.\n"
        f'RUN {_PIP_INSTALL} --index-url "$TORCH_INDEX_URL" torch\n'
        f"RUN {_PIP_INSTALL} {' '.join(names)}\n"
    )
    if job.plan.backend == "ccl":
        version = job.versions.get("oneccl_bind_pt", "")
        pinned = f"=={version}" if _VERSION.fullmatch(version) else ""
        text += (
            f"RUN {_PIP_INSTALL} 'oneccl_bind_pt{pinned}' \\\n"
            '    --extra-index-url "$ONECCL_INDEX_URL"\n'
        )
    return text
