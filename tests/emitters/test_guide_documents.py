"""The guides' documents beside ours: each feature of theirs is kept, or left out for a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from emitters.emit_machines import one_socket, two_sockets_smt
from rows import every_row

from cputune import Cluster, emit, verify
from cputune.emitters import parse_hosts
from cputune.emitters.reserve import reserved_cpus
from cputune.verifier.schemas import schema_faults

CLUSTER = Cluster(
    image="registry.example/transformers:1",
    pvc="transformers-pvc",
    memory="128Gi",
    node_selector=(("node-type", "gnr"),),
)


def job(format: str, **cluster: object) -> tuple[dict[str, Any], dict[str, str]]:
    case = two_sockets_smt()
    chosen = Cluster(
        image=CLUSTER.image,
        pvc=CLUSTER.pvc,
        memory=CLUSTER.memory,
        node_selector=CLUSTER.node_selector,
        **cluster,  # type: ignore[arg-type]
    )
    files = emit(case.result, format, facts=case.facts, nodes=3, cluster=chosen)
    texts = {file.name: file.text for file in files}
    return yaml.safe_load(files[0].text), texts | {"notes": " ".join(files[0].notes)}


def test_an_elastic_pytorchjob_keeps_what_the_guides_job_has() -> None:
    document, _ = job("pytorchjob", max_restarts=10)
    spec = document["spec"]
    assert "namespace" not in document["metadata"]
    assert spec["elasticPolicy"] == {
        "rdzvBackend": "c10d",
        "minReplicas": 3,
        "maxReplicas": 3,
        "maxRestarts": 10,
    }
    (role,) = spec["pytorchReplicaSpecs"]
    worker = spec["pytorchReplicaSpecs"][role]
    assert (role, worker["replicas"], worker["restartPolicy"]) == ("Worker", 3, "OnFailure")
    pod = worker["template"]["spec"]
    (container,) = pod["containers"]
    given = container["resources"]
    assert given["requests"] == given["limits"]
    assert given["limits"]["memory"] == "128Gi"
    assert pod["nodeSelector"] == {"node-type": "gnr"}
    variables = {one["name"]: one.get("value") for one in container["env"]}
    assert "libiomp5" in str(variables["LD_PRELOAD"])
    assert variables["CCL_WORKER_COUNT"]
    mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes[mounted["/dev/shm"]]["emptyDir"] == {"medium": "Memory"}
    claim = volumes[mounted["/data"]]["persistentVolumeClaim"]["claimName"]
    assert claim == "transformers-pvc"
    assert list(schema_faults(document)) == []


@pytest.mark.parametrize("restarts", [None, 10])
def test_verify_accepts_it(restarts: int | None, tmp_path: Path) -> None:
    _, files = job("pytorchjob", max_restarts=restarts)
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (verdict,) = verify([tmp_path / "pytorchjob.yaml"], run=False)
    assert [check for check in verdict.checks if check.state == "failed"] == []


@every_row(
    ("cpus", "threads_per_core", "kept"),
    [(1, 1, 1), (2, 1, 1), (8, 1, 1), (80, 2, 2), (112, 2, 2), (384, 1, 2), (448, 2, 2)],
)
def test_the_reserve_of_a_node(cpus: int, threads_per_core: int, kept: int) -> None:
    assert reserved_cpus(cpus, threads_per_core) == kept


@pytest.mark.parametrize(
    ("reserve", "cpus", "threads"), [(None, 108, 23), (0, 112, 24), (8, 104, 22)]
)
def test_pods_leave_cpus_to_the_kubelet(reserve: int | None, cpus: int, threads: int) -> None:
    document, files = job("trainjob", reserve_cpus=reserve)
    trainer = document["spec"]["trainer"]
    variables = {one["name"]: one.get("value") for one in trainer["env"]}
    assert int(trainer["resourcesPerNode"]["limits"]["cpu"]) == cpus
    assert int(variables["OMP_NUM_THREADS"]) == threads
    assert ("stay Pending" in files["notes"]) == (reserve == 0)
    assert ("in place of 24" in files["notes"]) == (reserve != 0)


@every_row("format", ["pytorchjob", "trainjob"])
@every_row(("reserve", "threads", "measured"), [(None, 3, False), (0, 4, True)])
def test_the_header_is_that_of_the_launch_that_is_written(
    format: str, reserve: int | None, threads: int, measured: bool
) -> None:
    """Eight cores, two ranks: the kubelet's core costs each rank a thread."""
    case = one_socket()
    chosen = Cluster(reserve_cpus=reserve)
    files = emit(case.result, format, facts=case.facts, nodes=1, cluster=chosen)
    for file in files:
        if file.name in (f"{format}.yaml", f"{format}.kubectl.sh", "pvc.yaml", "Dockerfile"):
            text = file.text.replace("\n# ", " ")
            assert ("1.57 times" in text or "31.4 samples/s" in text) == measured
            assert f"Plan: 2 × {threads} threads" in text


def test_the_header_of_fewer_threads_says_them_without_a_result() -> None:
    case = one_socket()
    (main, *_) = emit(None, "pytorchjob", facts=case.facts, ranks_per_node=2)
    assert "Plan: 2 × 3 threads" in main.text
    assert "NOTHING WAS MEASURED" in main.text


def test_the_image_alone_has_a_python_version() -> None:
    _, files = job("pytorchjob")
    assert "python==" not in files["constraints.txt"]
    assert "FROM" in files["Dockerfile"]


def test_several_machines_have_a_port_in_the_configuration(tmp_path: Path) -> None:
    case, hosts = one_socket(), parse_hosts("a,b,c")
    files = emit(case.result, "accelerate", facts=case.facts, nodes=3, hosts=hosts, mpi="openmpi5")
    text = next(file.text for file in files if file.name == "accelerate.yaml")
    config_args = pytest.importorskip("accelerate.commands.config.config_args")
    path = tmp_path / "accelerate.yaml"
    path.write_text(text, encoding="utf-8")
    loaded = config_args.load_config_from_file(str(path))
    assert (loaded.num_machines, loaded.main_process_port) == (3, 29500)


def test_open_mpi_is_started_by_its_absolute_path() -> None:
    case = two_sockets_smt()
    files = emit(
        case.result, "mpirun", facts=case.facts, nodes=2, hosts=parse_hosts("a,b"), mpi="openmpi5"
    )
    assert 'launch[0]=$(command -v -- "$mpirun")' in files[0].text
