"""What the Kubernetes formats need beside their YAML: an image, a volume, and the steps.

The steps are those of https://huggingface.co/docs/transformers/perf_train_cpu_many,
build, submit, watch, fetch, delete, as a script with one word for each.
"""

from __future__ import annotations

import json
import shlex

from cputune.emitters import kubernetes as k8s
from cputune.emitters import security, shell, yamltext
from cputune.emitters.dockerfile import dockerfile
from cputune.emitters.header import comment
from cputune.emitters.interface import EmittedFile, Job
from cputune.emitters.job import job_name


def files(job: Job, format: str) -> tuple[EmittedFile, ...]:
    """Dockerfile, pvc.yaml and the script of steps for one format."""
    return (
        EmittedFile(name="Dockerfile", text=dockerfile(job)),
        EmittedFile(name="pvc.yaml", text=volume_claim(job)),
        shell.script(f"{format}.kubectl.sh", steps(job, format)),
    )


def volume_claim(job: Job) -> str:
    """The claim for data and output; every node of a job mounts it."""
    spec: dict[str, object] = {
        "accessModes": ["ReadWriteMany" if job.plan.nodes > 1 else "ReadWriteOnce"],
        "resources": {
            "requests": {
                "storage": yamltext.Quoted(k8s.quantity(job.cluster.pvc_size, "20Gi", "--pvc-size"))
            }
        },
    }
    if k8s.storage_class(job):
        spec["storageClassName"] = yamltext.Quoted(k8s.storage_class(job))
    content = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": k8s.metadata(job, k8s.claim(job)),
        "spec": spec,
    }
    lines = [f"Volume for data and output of {job.workload.name}.", "", *job.header]
    if job.plan.nodes > 1:
        lines += ["Every node of the job mounts it: the storage class must offer ReadWriteMany."]
    return yamltext.document(content, lines)


def steps(job: Job, format: str) -> str:
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
    text += "".join(f"{name}={shlex.quote(value)}\n" for name, value in names.items())
    context = '"$here"' if job.workload.recipe is not None else '"$PWD"'
    output = "out" if job.workload.recipe is not None else "."
    return text + STEPS.format(
        kind=format,
        context=context,
        first=first,
        label=label,
        data=k8s.DATA,
        output=output,
        pod=json.dumps(security.of_pod(job)),
        container=json.dumps(security.of_container()),
    )


STEPS = r"""here=$(cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" && pwd)

if [[ $image == *"<"* ]]; then
  echo "error: the image is still a placeholder: $image" >&2
  echo "hint: cputune emit --format {kind} --image REGISTRY/NAME:TAG" >&2
  exit 3
fi
case ${{1:-}} in
  build)
    # "launch" is the directory of these files, whatever else the image is built from.
    docker build --build-context launch="$here" --file "$here/Dockerfile" --tag "$image" {context}
    docker push "$image"
    ;;
  submit)
    kubectl --namespace "$namespace" get pvc "$claim" >/dev/null 2>&1 ||
      kubectl apply --filename "$here/pvc.yaml"
    kubectl apply --filename "$here/{kind}.yaml"
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
