"""Whoever stands for the kubelet in tests does as it does."""

import pytest
from local_pods import LedHere, expand, operator_variables, pods_of, share
from verifier.test_verify_rules import pytorchjob, trainjob


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)", "one"),
        ("x$(A)y$(B)", "xoneytwo"),
        ("$(C)", "$(C)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$one"),
        ("$A ${A} $", "$A ${A} $"),
        ("$(A", "$(A"),
        ("`id` $HOME", "`id` $HOME"),
    ],
)
def test_names_in_parentheses_are_expanded_as_the_kubelet_does(text, expected):
    assert expand(text, {"A": "one", "B": "two"}) == expected


def test_pods_get_cpus_of_their_own_where_there_are_enough():
    assert [share(range(8), pod, 2, 4) for pod in range(2)] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert [share(range(8), pod, 2, 5) for pod in range(2)] == [tuple(range(8))] * 2
    assert share((2, 3), 0, 1, 0) == (2, 3)


def test_the_training_operator_counts_ranks_in_the_world_and_pods_in_the_rank():
    variables = operator_variables(pytorchjob(), 1, 2, "4", 29500)
    assert variables["WORLD_SIZE"] == "8"
    assert variables["RANK"] == variables["PET_NODE_RANK"] == "1"
    assert variables["PET_NNODES"] == "2"


def test_kubeflow_trainer_sets_torchruns_variables_alone():
    variables = operator_variables(trainjob(), 0, 2, "4", 29500)
    assert variables
    assert all(name.startswith("PET_") for name in variables)


@pytest.mark.parametrize("job", [pytorchjob(), trainjob()], ids=["PyTorchJob", "TrainJob"])
def test_a_job_becomes_its_pods(job, tmp_path):
    environment = {"PYTHON": "/opt/python/bin/python", "PATH": "/usr/bin", "RANK": "9"}
    pods = pods_of(job, tmp_path / "job.yaml", (0, 1, 2, 3), tmp_path / "volumes", environment)
    assert [pod.argv for pod in pods] == [("torchrun", "train.py")] * 2
    assert [pod.cpus for pod in pods] == [(0, 1), (2, 3)]
    assert [pod.environment["PET_NODE_RANK"] for pod in pods] == ["0", "1"]
    assert all(pod.environment["OMP_NUM_THREADS"] == "1" for pod in pods)
    assert all(pod.environment.get("RANK") != "9" for pod in pods)
    assert pods[0].environment["PATH"] == "/opt/python/bin:/usr/bin"
    assert pods[0].environment["PET_MASTER_PORT"] == pods[1].environment["PET_MASTER_PORT"]


def test_paths_of_the_image_are_led_here(tmp_path):
    (tmp_path / "Dockerfile").write_text("FROM python\nWORKDIR /app/\nCOPY . .\n")
    (tmp_path / "train.py").write_text("")
    job = {"spec": {"volumeMounts": [{"mountPath": "/data"}, {"mountPath": "/dev/shm"}]}}
    here = LedHere(job, {}, tmp_path / "job.yaml", tmp_path / "volumes")
    assert here("/app/train.py") == str(tmp_path / "train.py")
    assert here("/app/missing.py") == "/app/missing.py"
    assert here("/data/out") == str(tmp_path / "volumes" / "out")
    assert here("/database") == "/database"
    assert here("/dev/shm/x") == "/dev/shm/x"
    assert here("--output_dir") == "--output_dir"


def test_a_script_of_ones_own_and_its_companions_are_led_here(tmp_path):
    """WORKDIR is the project's folder, and rank.py lies in the one above it."""
    (tmp_path / "Dockerfile").write_text(
        "FROM python\nWORKDIR /workspace/project\nCOPY --chown=1000:1000 . .\n"
        "COPY --chown=1000:1000 --from=launch rank.py carry.py /workspace/\n"
    )
    (tmp_path / "rank.py").write_text("")
    here = LedHere({}, {}, tmp_path / "job.yaml", tmp_path / "volumes")
    assert here("/workspace/rank.py") == str(tmp_path / "rank.py")
    assert here("/workspace/project/rank.py") == str(tmp_path / "rank.py")
