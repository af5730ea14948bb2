"""Files beside launch scripts: pods, compose, requirements, hosts, images."""

from __future__ import annotations

from dataclasses import replace

from golden_texts import Golden
from rows import every_row
from stacks import TODAY, machine

from cputune import UsageError
from cputune.doctor.checkfile import check_file, fix_file
from cputune.host.facts import Launcher

FACTS = machine(TODAY, cores=2)


def codes(text: str, name: str) -> set[str]:
    return {finding.code for finding in check_file(text, name, FACTS)}


def pod(kind: str, threads: int, before: str = "", indent: str = "") -> str:
    lines = f"""\
containers:
  - name: train
    command: [torchrun, --nproc-per-node, "2", train.py, --do_train, --use_cpu, --output_dir, out]
    env:
      - {{name: OMP_NUM_THREADS, value: "{threads}"}}
    resources:
      limits: {{cpu: 8, memory: 16Gi}}
"""
    body = "".join(f"{indent}{line}\n" for line in lines.splitlines())
    return f"apiVersion: v1\nkind: {kind}\nmetadata: {{name: x}}\nspec:\n{before}{body}"


TEMPLATE = "  jobTemplate:\n    spec:\n      template:\n        spec:\n"
JOBS = {
    "Pod": pod("Pod", 8, indent="  "),
    "Job": pod("Job", 8, "  template:\n    spec:\n", "      "),
    "CronJob": pod("CronJob", 8, TEMPLATE, "          "),
}


def test_an_mpijob_is_judged_by_the_cpus_of_its_workers() -> None:
    text = """\
kind: MPIJob
spec:
  slotsPerWorker: 2
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      template:
        spec:
          containers:
            - name: launcher
              command: [mpirun, -n, "4", --map-by, "ppr:2:node", -x, OMP_NUM_THREADS=8,
                -x, MASTER_ADDR=worker-0, python, train.py, --do_train, --use_cpu]
    Worker:
      replicas: 2
      template:
        spec:
          containers:
            - resources: {limits: {cpu: 8, memory: 16Gi}}
"""
    assert codes(text, "mpi.yaml") == {"ranks-oversubscribed"}
    assert codes(text.replace("=8", "=4"), "mpi.yaml") == set()
    anywhere = text.replace('--map-by, "ppr:2:node", ', "").replace("=8", "=4")
    for workers, found in ((2, set()), (1, {"ranks-oversubscribed"})):
        by = anywhere.replace("replicas: 2", f"replicas: {workers}")
        assert codes(by, "mpi.yaml") == found


def test_a_pod_with_gpus_is_not_judged_by_rules_for_cpus() -> None:
    job = JOBS["Job"].replace("--use_cpu, ", "--bf16, ").replace('"8"', '"4"')
    assert codes(job, "job.yaml") == {"file-use-cpu", "ranks-alone"}
    assert codes(job.replace("{cpu: 8,", "{nvidia.com/gpu: 1, cpu: 8,"), "job.yaml") == set()


def test_ranks_in_other_pods_are_not_judged_by_the_cpus_of_mpirun() -> None:
    job = JOBS["Job"].replace("torchrun, --nproc-per-node", "mpirun, --host, $HOSTS, -np")
    assert "ranks-oversubscribed" in codes(job.replace("--host, $HOSTS, ", ""), "job.yaml")
    assert "ranks-oversubscribed" not in codes(job, "job.yaml")


COMPOSE = """\
services:
  db: {image: postgres}
  train:
    image: train:1
    command: torchrun --nproc-per-node 2 run_glue.py --do_train --no_cuda --output_dir out
    environment:
      - OMP_NUM_THREADS=4
    cpus: 8
"""


def test_loader_workers_of_a_service_need_shared_memory() -> None:
    text = COMPOSE.replace("--no_cuda", "--use_cpu --dataloader_num_workers 2")
    assert codes(text, "compose.yaml") == {"file-compose-shm"}
    assert codes(text + "    shm_size: 2gb\n", "compose.yaml") == set()


def test_requirements_are_a_stack(golden: Golden) -> None:
    text = (
        "# stack\ntorch==2.2.0\ntransformers[torch] == 5.23.0  # newest\nnumpy\n"
        "accelerate==1.8.0\nintel-extension-for-pytorch\n"
    )
    assert codes(text, "requirements.txt") == {"file-package-ended"}
    done = fix_file(text, "requirements-cpu.txt", FACTS)
    assert "intel" not in done.text
    assert "torch==2.13.0" in done.text
    assert "accelerate==1.15.0" in done.text
    assert {one.code for one in done.unfixed} == {"file-unpinned"}
    with golden.raises(UsageError):
        check_file("requests==2\n", "requirements.txt", FACTS)


def test_versions_of_an_environment_of_conda_are_compared() -> None:
    text = (
        "name: x\ndependencies:\n  - python=3.8\n  - pytorch=2.13.0\n  - pip:\n"
        "    - transformers==4.40.0\n"
    )
    found = check_file(text, "environment.yml", FACTS)
    assert "file-pins" in {one.code for one in found}
    assert all(one.edits == () for one in found)


@every_row(
    ("dialect", "text", "faults"),
    [
        ("mpich", "node1 slots=2\nnode2 slots=2\n", 2),
        ("openmpi5", "node1:2\n", 1),
        ("openmpi5", "node1 slots=2\nnode1 slots=2\n", 0),  # the slots of both lines
        ("openmpi5", "me@node[1-2] slots=2\nlocalhost\n", 1),
        ("mpich", "localhost\nnode2\n", 1),
        ("mpich", "node1:2\nnode2:2\n", 0),
        ("openmpi4", "node1 slots=2  # the first\n\nnode2 slots=2\n", 0),
    ],
)
def test_a_file_of_hosts_is_in_the_words_of_its_mpirun(
    dialect: str, text: str, faults: int
) -> None:
    launcher = Launcher(name="mpirun", path="/usr/bin/mpirun", dialect=dialect)
    facts = replace(FACTS, launchers=(launcher,))
    found = check_file(text, "hostfile", facts)
    assert [one.code for one in found] == ["file-hosts"] * faults
    # The launch that was emitted beside it takes the file of its own mpirun.
    of_loopback = "localhost" in text
    assert bool(check_file(text, "launch/hosts.hydra", facts)) == of_loopback


@every_row(
    ("before", "after"),
    [
        ("RUN pip install intel-extension-for-pytorch\n", ""),
        ("RUN python -m pip install -f URL oneccl_bind_pt\n", ""),
        ("RUN apt-get update && pip install intel-extension-for-pytorch\n", "RUN apt-get update\n"),
        ("RUN pip install oneccl_bind_pt && make\n", "RUN make\n"),
        (
            "RUN pip install requests intel-extension-for-pytorch\n",
            "RUN pip install requests\n",
        ),
    ],
)
def test_no_pip_is_left_that_installs_nothing(before: str, after: str) -> None:
    text = "FROM python:3.12\n{}CMD python train.py --use_cpu\n"
    assert fix_file(text.format(before), "Dockerfile", FACTS).text == text.format(after)


@every_row(
    ("image", "packages", "found"),
    [
        ("python:3.8-slim", "torch transformers", True),
        ("docker.io/library/python:3.9", "torch", True),
        ("python:3.12", "torch", False),
        ("python:3.9", "torch==2.8.0", False),
        ("huggingface/transformers-pytorch-cpu:latest", "torch==2.13.0", True),
    ],
)
def test_images_that_have_ended(image: str, packages: str, found: bool) -> None:
    text = f"FROM {image}\nRUN pip install {packages}\n"
    codes = [one.code for one in check_file(text, "Dockerfile", FACTS)]
    assert ("file-image-ended" in codes) is found
