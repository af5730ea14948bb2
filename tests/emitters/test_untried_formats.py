"""Formats that nobody here can start: read by parsers and schemas, their words by fakes."""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import check_jsonschema
import jsonschema
import pytest
import yaml
from emit_machines import one_socket, script_workload, two_sockets_smt
from local_pods import expand
from scripts import shellcheck
from test_emit_contract import FAKE, HOSTILE, Launch

from cputune import cpulist
from cputune.emitters import UNTRIED_FORMATS, Cluster, EmittedFile, emit
from cputune.errors import UsageError
from cputune.verifier.artefact import consumers_of, format_of
from cputune.workload import Workload

COMPOSE_SPEC = Path(check_jsonschema.__file__).parent / "builtin_schemas/vendor/compose-spec.json"
SCRIPTS = [name for name, one in UNTRIED_FORMATS.items() if one.script]
ASKED = Cluster(queue="long", account="nlp", time_limit="1-02:30:00", job_name="bert")


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    made = Launch(tmp_path)
    (made.bin / "docker").write_text(FAKE)
    (made.bin / "docker").chmod(0o755)
    return made


def files_of(format: str, *arguments: str, **options: Any) -> tuple[EmittedFile, ...]:
    case = one_socket()
    return emit(
        case.result,
        format,
        facts=case.facts,
        workload=script_workload(*arguments) if arguments else None,
        **options,
    )


@pytest.mark.parametrize("format", UNTRIED_FORMATS)
def test_they_say_that_nobody_started_them(format: str) -> None:
    for case in (one_socket(), two_sockets_smt())[: 1 if format == "mpijob" else 2]:
        main = emit(case.result, format, nodes=1)[0]
        assert any(note.startswith(f"{format}: ") for note in main.notes)
        assert main.name == UNTRIED_FORMATS[format].main
        assert format_of(main.text) == format
        assert consumers_of(format) == UNTRIED_FORMATS[format].consumers


def test_shellcheck_reads_the_scripts(tmp_path: Path) -> None:
    paths = []
    for format in SCRIPTS:
        for nodes in (1,) if format == "docker" else (1, 2):
            path = tmp_path / f"{format}-{nodes}.sh"
            path.write_text(files_of(format, nodes=nodes)[0].text)
            subprocess.run(["bash", "-n", str(path)], check=True, timeout=20)
            paths.append(path)
    assert shellcheck(*paths) == ""


@pytest.mark.parametrize("format", SCRIPTS)
def test_hostile_words_arrive_in_scripts_as_they_are(format: str, launch: Launch) -> None:
    files = files_of(format, *HOSTILE)
    words, _ = launch.run(files, "more words")
    assert words[words.index("run_qa.py") + 1 :][: len(HOSTILE)] == list(HOSTILE)
    assert words[-1] == "more words"
    assert not (launch.directory / "executed").exists()


def directives(text: str, sign: str) -> list[str]:
    lines = [line.removeprefix(sign) for line in text.splitlines() if line.startswith(sign)]
    return [word for line in lines for word in shlex.split(line)]


def test_bsub_reads_the_directives() -> None:
    parser = argparse.ArgumentParser()
    for option in ("-J", "-n", "-R", "-W", "-oo", "-q", "-P"):
        parser.add_argument(option)
    parser.add_argument("-x", action="store_true")
    asked = parser.parse_args(directives(files_of("lsf", nodes=2, cluster=ASKED)[0].text, "#BSUB "))
    assert (asked.J, asked.q, asked.P, asked.x, asked.W) == ("bert", "long", "nlp", True, "26:30")
    assert (asked.n, asked.R) == ("16", "span[ptile=8]")


def test_qsub_reads_the_directives() -> None:
    parser = argparse.ArgumentParser()
    for option in ("-N", "-j", "-q", "-A"):
        parser.add_argument(option)
    parser.add_argument("-l", action="append")
    asked = parser.parse_args(directives(files_of("pbs", nodes=2, cluster=ASKED)[0].text, "#PBS "))
    assert (asked.N, asked.q, asked.A, asked.j) == ("bert", "long", "nlp", "oe")
    assert asked.l == [
        "select=2:ncpus=8:mpiprocs=2:ompthreads=4",
        "place=scatter:excl",
        "walltime=26:30:00",
    ]


@pytest.mark.parametrize("mpi", ["openmpi5", "mpich"])
@pytest.mark.parametrize("format", ["lsf", "pbs"])
def test_mpirun_is_told_the_hosts_of_the_job(format: str, mpi: str, launch: Launch) -> None:
    nodes = launch.directory / "nodes"
    nodes.write_text("b1\nb1\nb2\nb2\n")
    job = {"LSB_MCPU_HOSTS": "b1 8 b2 8", "PBS_NODEFILE": str(nodes)}
    files = files_of(format, "--lr", "1", nodes=2, mpi=mpi)
    words, variables = launch.run(files, mpi=mpi, environment=job)
    option = "--hostfile" if mpi == "openmpi5" else "-f"
    listed = Path(words[words.index(option) + 1]).read_text()
    assert listed == ("b1 slots=2\nb2 slots=2\n" if mpi == "openmpi5" else "b1:2\nb2:2\n")
    assert "MASTER_ADDR=b1" in words or ("MASTER_ADDR", "b1") in itertools.pairwise(words)
    nodes.write_text("b1\n")
    with pytest.raises(AssertionError, match="the job has 1 hosts, the plan is for 2"):
        launch.run(files, mpi=mpi, environment={**job, "LSB_MCPU_HOSTS": "b1 8"})
    assert variables


@pytest.mark.parametrize("format", ["lsf", "pbs"])
@pytest.mark.parametrize("fields", [{"queue": "a b"}, {"account": "a;b"}, {"time_limit": "soon"}])
def test_what_a_directive_cannot_carry_is_refused(format: str, fields: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        files_of(format, cluster=Cluster(**fields))


def test_docker_has_the_cpus_of_the_plan_and_their_memory(launch: Launch) -> None:
    case = two_sockets_smt()
    files = emit(case.result, "docker", facts=case.facts, nodes=1)
    words, _ = launch.run(files)
    plan = case.result.best.plan
    wanted = {cpu for own in (*plan.cpus, *plan.ccl_cpus) for cpu in own}
    assert set(cpulist.parse(words[words.index("--cpuset-cpus") + 1])) == wanted
    assert words[words.index("--cpuset-mems") + 1] == "0-1"
    with pytest.raises(UsageError, match="a container is on one machine"):
        emit(case.result, "docker", nodes=2)


def test_the_compose_file_is_of_the_specification() -> None:
    schema = json.loads(COMPOSE_SPEC.read_text())
    for workload in (script_workload(*HOSTILE), Workload.from_recipe("bert-base-squad")):
        files = emit(one_socket().result, "compose", workload=workload)
        document = yaml.safe_load(files[0].text)
        jsonschema.validate(document, schema)
        service = document["services"]["train"]
        assert service["cpuset"] == "0-7"
    files = files_of("compose", *HOSTILE)
    words = yaml.safe_load(files[0].text)["services"]["train"]["command"]
    words = [word.replace("$$", "$") for word in words]
    assert words[words.index("run_qa.py") + 1 :][: len(HOSTILE)] == list(HOSTILE)


TASK = {
    # of SkyPilot 0.14, sky/utils/schemas.py, the keys that are emitted
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string"},
        "num_nodes": {"type": "integer"},
        "workdir": {"type": "string"},
        "resources": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"cpus": {"type": "string"}, "memory": {"type": "string"}},
        },
        "setup": {"type": "string"},
        "run": {"type": "string"},
        "secrets": {"type": "object", "additionalProperties": {"type": ["string", "null"]}},
    },
}


def test_a_task_of_skypilot(tmp_path: Path) -> None:
    document = yaml.safe_load(files_of("skypilot", *HOSTILE, nodes=2)[0].text)
    jsonschema.validate(document, TASK)
    (tmp_path / "sky_workdir").mkdir()
    script, _, last = document["run"].rpartition("exec ")
    assert last == '"${launch[@]}" "${rank[@]}" -- "${train[@]}"\n'
    answer = subprocess.run(
        ["bash", "-c", script + 'printf \'%s\\0\' "${launch[@]}" "${train[@]}"'],
        env={
            "HOME": str(tmp_path),
            "PATH": "/usr/bin:/bin",
            "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
        }
        | {"SKYPILOT_NODE_RANK": "1"},
        capture_output=True,
        check=True,
        timeout=20,
    )
    words = answer.stdout.decode().split("\0")[:-1]
    assert words[words.index("run_qa.py") + 1 :][: len(HOSTILE)] == list(HOSTILE)
    assert words[words.index("--master-addr") + 1] == "10.0.0.1"
    assert words[words.index("--node-rank") + 1] == "1"


@pytest.mark.matrix
def test_skypilots_own_schema(tmp_path: Path) -> None:
    """The schema stands in the wheel as one literal."""
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest"]
    subprocess.run([*pip, str(tmp_path), "skypilot==0.14.1"], check=True, timeout=200)
    (wheel,) = tmp_path.glob("*.whl")
    tree = ast.parse(zipfile.ZipFile(wheel).read("sky/utils/schemas.py"))
    function = next(
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name == "get_task_schema"
    )
    returned = function.body[-1]
    assert isinstance(returned, ast.Return)
    assert returned.value is not None
    schema = eval(compile(ast.Expression(returned.value), "schemas.py", "eval"), _Names())
    for nodes in (1, 2):
        jsonschema.validate(yaml.safe_load(files_of("skypilot", nodes=nodes)[0].text), schema)


class _Names(dict[str, Any]):
    """Calls to other schemas, which say nothing of the keys that are emitted."""

    def __missing__(self, name: str) -> Any:
        return lambda *_, **__: {}


@pytest.mark.parametrize("nodes", [1, 3])
def test_an_mpijob_is_made_of_pods_that_kubernetes_takes(nodes: int, launch: Launch) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    document = yaml.safe_load(files_of("mpijob", *HOSTILE, nodes=nodes)[0].text)
    spec = document["spec"]
    assert (document["apiVersion"], spec["slotsPerWorker"]) == ("kubeflow.org/v2beta1", 2)
    assert {role: one["replicas"] for role, one in spec["mpiReplicaSpecs"].items()} == {
        "Launcher": 1,
        "Worker": nodes,
    }
    for role, one in spec["mpiReplicaSpecs"].items():
        pod = {"apiVersion": "v1", "kind": "Pod", **one["template"]}
        pod["metadata"] = {**pod["metadata"], "name": role.lower()}
        kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)
    container = spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    command = [expand(word, {}) for word in (*container["command"], *container["args"])]
    hosts = launch.directory / "hostfile"
    hosts.write_text("bert-worker-0.bert slots=2\nbert-worker-1.bert slots=2\n")
    command[2] = command[2].replace("/etc/mpi/hostfile", shlex.quote(str(hosts)))
    environment = {"PATH": f"{launch.bin}:/usr/bin:/bin", "FAKE_DUMP": str(launch.dump)}
    subprocess.run(command, env=environment, check=True, timeout=20)
    words = launch.dump.read_bytes().decode().split("\0")[:-1]
    assert words[words.index("run_qa.py") + 1 :][: len(HOSTILE)] == list(HOSTILE)
    assert words[1:3] == ["-n", str(2 * nodes)]
    said = launch.dump.with_suffix(".environment").read_text()
    assert "MASTER_ADDR=bert-worker-0.bert" in said
    assert "LOCAL_WORLD_SIZE=2" in said


def test_an_mpijob_of_oneccl_is_refused() -> None:
    with pytest.raises(UsageError, match="oneCCL wants Intel MPI"):
        emit(two_sockets_smt().result, "mpijob", nodes=1)
