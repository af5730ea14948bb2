#!/usr/bin/env bash
# Steps to run trainjob.yaml on a cluster, in this order:
#   build    build the image from this directory and push it
#   submit   create the volume claim and the job
#   watch    follow the log of the first pod
#   fetch    copy the output of the job into a directory here
#   delete   delete the job; the volume and what is on it stay
#
# Measured for bert-large-squad on Intel(R) Xeon(R) 8480+, 2 sockets, 56 cores, 112 CPUs, on
# 2026-11-20; not measured on 2 nodes, with this plan (2 nodes 2×23 bf16 ccl ipex jemalloc
# libiomp5).
# Plan: 2 nodes, each 2 ranks with 23 threads, bf16, ccl, 4 workers, jemalloc, libiomp5, IPEX.
# Extrapolated: 2 nodes, 4 ranks with 3 samples each, 12 together. Measured: 1 node, 2 ranks
# with 6 samples each, 12 together, nothing on 2 nodes.
set -euo pipefail

image=registry.example.com/team/bert:1
namespace=${NAMESPACE:-training} # empty: the one of kubectl's context
job=bert-large
claim=shared
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
kubectl() { command kubectl ${namespace:+--namespace "$namespace"} "$@"; }

if [[ $image == *"<"* ]]; then
  echo "error: the image is still a placeholder: $image" >&2
  echo "hint: cputune emit --format trainjob --image REGISTRY/NAME:TAG" >&2
  exit 3
fi
case ${1:-} in
  build)
    # "launch" is the directory of these files, whatever else the image is built from. Further
    # words are docker's: --build-arg TORCH_INDEX_URL=https://mirror.example.com/cpu
    docker build --build-context launch="$here" --file "$here/Dockerfile" --tag "$image" \
      "${@:2}" "$here"
    docker push "$image"
    # A tag may move; submit takes the digest that the registry has given.
    docker image inspect --format '{{join .RepoDigests "\n"}}' "$image" |
      { grep -F "${image%:*}@sha256:" || true; } | head -n 1 >"$here/image.digest"
    ;;
  submit)
    kubectl get pvc "$claim" >/dev/null 2>&1 ||
      kubectl apply --filename "$here/pvc.yaml"
    pinned=$(cat -- "$here/image.digest" 2>/dev/null || true)
    if [[ -n $pinned ]]; then
      document=$(<"$here/trainjob.yaml")
      kubectl apply --filename - <<<"${document//\"$image\"/\"$pinned\"}"
    else
      kubectl apply --filename "$here/trainjob.yaml"
    fi
    ;;
  watch)
    kubectl get trainjob "$job"
    kubectl get pods --selector "jobset.sigs.k8s.io/jobset-name=$job" --output wide
    pod=$(kubectl get pods --selector "jobset.sigs.k8s.io/jobset-name=$job" --output name |
      grep -- "-node-0-0" | head -n 1)
    kubectl logs --follow "$pod"
    ;;
  fetch)
    # The pods of a job that is done cannot be copied from; a small one mounts the volume.
    kubectl run "$job-fetch" --image busybox:1.36 --restart Never \
      --overrides '{"spec": {"securityContext": {"runAsNonRoot": true, "runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000, "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "fetch", "image": "busybox:1.36",
        "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
        "command": ["sleep", "3600"], "volumeMounts": [{"name": "data", "mountPath": "/data"}]
        }],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "'"$claim"'"}}]}}'
    kubectl wait --for condition=Ready "pod/$job-fetch" --timeout 5m
    kubectl cp "$job-fetch:/data/out" "./$job-output"
    kubectl delete pod "$job-fetch" --grace-period 1
    ;;
  delete)
    kubectl delete --ignore-not-found trainjob "$job"
    echo "the volume stays; to delete it: kubectl delete pvc $claim"
    ;;
  *)
    echo "usage: $0 build|submit|watch|fetch|delete" >&2
    exit 2
    ;;
esac
