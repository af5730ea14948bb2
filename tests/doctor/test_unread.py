"""What a launch file names beside itself: it is read, or the finding says that it was not."""

from __future__ import annotations

import pytest
from rows import every_row
from stacks import TODAY, machine

from cputune import Diagnosis, UsageError
from cputune.doctor.checkfile import check_file, fix_text, scripts_not_read
from cputune.host import Host
from cputune.launch.shell import read_launches, read_shell
from cputune.report.next_step import Examined, next_step

FACTS = machine(TODAY)
GOOD = "export OMP_NUM_THREADS=2\n{}python train.py --use_cpu\n"


class FakeHost(Host):
    """Files that can be read, by their names."""

    def __init__(self, files=None):
        self.files = files or {}

    def read_text(self, path):
        try:
            return self.files[path]
        except KeyError as error:
            raise FileNotFoundError(path) from error


def found(text, name="run.sh", **files):
    host = FakeHost({key.replace("_", "."): value for key, value in files.items()})
    return check_file(text, name, FACTS, host)


def codes(text, name="run.sh", **files):
    return {finding.code for finding in found(text, name, **files)}


@every_row(
    ("line", "evidence"),
    [
        ("source env.sh\n", "run.sh:2: sources env.sh"),
        (". $HERE/env.sh\n", "run.sh:2: sources $HERE/env.sh"),
        ("export $SETTING\n", "run.sh:2: export $SETTING"),
        ("docker run --rm image:1 run.sh\n", "run.sh:2: starts docker run"),
        ("srun bash inner.sh\n", "run.sh:2: starts inner.sh"),
        ("./prepare.sh\n", "run.sh:2: starts ./prepare.sh"),
        ("uv run train.py\n", "run.sh:2: starts train.py"),
        ("  $RUN_IT --epochs 2\n", "run.sh:2: starts $RUN_IT"),
        ("sbatch --nodes 2 job.sbatch\n", "run.sh:2: starts job.sbatch"),
    ],
)
def test_what_is_not_read_is_said(line, evidence):
    (finding,) = found(GOOD.format(line))
    assert (finding.code, finding.evidence) == ("file-unread", evidence)
    diagnosis = Diagnosis(facts=FACTS, findings=(finding,))
    step = next_step(diagnosis, Examined(file="run.sh"))
    assert "as it is" not in step
    assert "not read" in step


def test_a_script_that_is_not_here_is_named():
    host = FakeHost(files={"here.py": ""})
    text = "python here.py\npython there.py\npython $NAME.py\npython -m pkg.train\n"
    absent = scripts_not_read(text, "run.sh", FACTS, host)
    assert absent == (
        "there.py (not here)",
        "$NAME.py (only running shows it)",
        "the module pkg.train",
    )
    step = next_step(Diagnosis(facts=FACTS, findings=(), unread=absent), Examined(file="run.sh"))
    assert step == f"nothing: no fault was found; not read: {', '.join(absent)}"


def test_a_command_that_is_not_understood_is_not_judged():
    line = 'srun bash -c "torchrun --rdzv_conf=a=\\$(((N)) && echo 0) --nnodes=2 t.py"\n'
    (finding,) = found(GOOD.format(line))
    assert finding.evidence == "run.sh:2: a command that is not understood"
    with pytest.raises(UsageError, match="line 1: a command that is not understood"):
        found(line)


@every_row(
    "line",
    [
        "source /opt/venv/bin/activate\n",
        "module load python\n",
        "chmod +x run.sh\n",
        "cp a.sh b.sh\n",
        "echo bash run.sh\n",
        "docker ps\n",
        "bash -c 'echo x'\n",
    ],
)
def test_what_sets_up_or_prints_has_no_remark(line):
    assert "file-unread" not in codes(GOOD.format(line))


def test_a_sourced_file_is_followed():
    text = "source env.sh\ntorchrun --nproc_per_node $RANKS train.py --use_cpu\n"
    env = "RANKS=2\nexport OMP_NUM_THREADS=8\nif true; then export A=1; fi\n"
    assert codes(text, env_sh=env) == {"ranks-oversubscribed", "threads-affinity"}
    findings = found(text, env_sh=env)
    assert any(one.evidence.endswith("; env.sh:2 sets OMP_NUM_THREADS") for one in findings)
    (launch,) = read_shell(text, "run.sh", beside={"env.sh": env}.get).launches
    assert (launch.ranks, launch.environment["OMP_NUM_THREADS"]) == (2, "8")
    # The file itself cannot be changed: the launch gets a line of its own.
    after, _ = fix_text(text, "run.sh", FACTS, FakeHost({"env.sh": env}))
    assert after.startswith("source env.sh\nexport OMP_NUM_THREADS=2\n")


def test_a_sourced_file_that_sources_itself_ends():
    text = GOOD.format("source env.sh\n")
    assert codes(text, env_sh="source env.sh\nexport A=1\n") == {"file-unread"}


@every_row(
    ("text", "ranks", "threads"),
    [
        ("torchrun --nproc_per_node ${1:-2} train.py", 2, None),
        ("N=${2:-16}\nOMP_NUM_THREADS=$N torchrun --nproc_per_node $1 t.py", None, "16"),
        ("S='OMP_NUM_THREADS=3'\nexport $S\npython t.py", 1, "3"),
        ("export OMP_NUM_THREADS=${T:=4}\npython t.py", 1, "4"),
    ],
)
def test_defaults_and_exported_words_are_read(text, ranks, threads):
    (launch,) = read_launches(text, "run.sh")
    assert (launch.ranks, launch.threads) == (ranks, threads)


CONFIGURATION = """\
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_CPU
num_processes: 4
num_machines: 2
main_process_ip: {address}
main_process_port: 29500
use_cpu: true
mpirun_config:
  mpirun_hostfile: hosts
"""


def test_the_configuration_of_accelerate_is_opened():
    text = (
        "export OMP_NUM_THREADS=2\n"
        "accelerate launch --config_file a.yaml --num_machines 2 --num_processes 4 train.py\n"
    )
    assert codes(text, a_yaml=CONFIGURATION.format(address="10.0.0.1")) == set()
    loopback = found(text, a_yaml=CONFIGURATION.format(address="127.0.0.1"))
    assert {one.code for one in loopback} == {"master-loopback"}
    assert any(one.evidence.startswith("a.yaml:5") for one in loopback)
    assert not any(one.edits for one in loopback if one.evidence.startswith("a.yaml"))
    # What is typed takes precedence over the file.
    typed = text.replace("train.py", "--main_process_ip 127.0.0.1 train.py")
    line = "--main_process_ip 127.0.0.1"
    findings = found(typed, a_yaml=CONFIGURATION.format(address="10.0.0.1"))
    assert [line in one.evidence for one in findings] == [True]
    assert codes(text) == {"file-unread"}
    assert codes(text, a_yaml="[1, 2]") == {"file-unread"}


def test_one_configuration_for_all_machines_gives_them_one_number():
    header = "#SBATCH --nodes=2\n#SBATCH --cpus-per-task=2\nexport SRUN_CPUS_PER_TASK=2\n"
    text = header + "{}accelerate launch --config_file a.yaml {}train.py\n"
    content = CONFIGURATION.format(address="10.0.0.1") + "machine_rank: 0\n"
    assert "node-rank-fixed" in codes(text.format("srun ", ""), a_yaml=content)
    assert "node-rank-fixed" not in codes(text.format("", ""), a_yaml=content)
    numbered = text.format("srun ", "--machine_rank $RANK ")
    assert "node-rank-fixed" not in codes(numbered, a_yaml=content)
    assert "node-rank-fixed" not in codes(content, "a.yaml")


VOLCANO = """\
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: train}
spec:
  tasks:
    - name: worker
      replicas: 2
      template:
        spec:
          containers:
            - name: train
              command: [torchrun, --nproc-per-node, "2", train.py, --do_train, --use_cpu]
              env:
                - {name: OMP_NUM_THREADS, value: "8"}
              resources:
                limits: {cpu: 8, memory: 16Gi}
"""


@pytest.mark.parametrize("kind", ["kind: Job", "kind: JobSet", "kind: RayJob"])
def test_containers_of_a_kind_that_is_not_known_are_judged(kind):
    text = VOLCANO.replace("kind: Job", kind)
    assert codes(text, "job.yaml") == {"ranks-oversubscribed"}
    assert codes(text.replace('"8"', '"4"'), "job.yaml") == set()


IMAGE = """\
FROM python:3.12-slim AS base
RUN pip install torch==2.13.0 transformers==5.23.0 accelerate==1.15.0
ARG THREADS=abc
ENV {variables}
FROM {last}
{command}
"""


@every_row(
    ("variables", "last", "wanted"),
    [
        ("OMP_NUM_THREADS=abc", "base", {"threads-malformed"}),
        ("OMP_NUM_THREADS=$THREADS", "base", {"threads-malformed"}),
        ("OMP_NUM_THREADS 4", "base", set()),
        ("OMP_NUM_THREADS=abc", "python:3.12-slim", set()),
    ],
)
def test_variables_of_an_image_are_judged(variables, last, wanted):
    text = IMAGE.format(variables=variables, last=last, command="")
    assert codes(text, "Dockerfile") & {"threads-malformed"} == wanted


def test_the_words_of_cmd_are_arguments_of_entrypoint():
    command = 'ENTRYPOINT ["torchrun", "--nproc_per_node=2"]\nCMD ["run_qa.py", "--use_ipex"]'
    text = IMAGE.format(variables="A=1", last="base", command=command)
    assert "file-flag-refused" in codes(text, "Dockerfile")
    after, _ = fix_text(text, "Dockerfile", FACTS)
    assert 'CMD ["run_qa.py"]' in after


@pytest.mark.parametrize(
    "line",
    [
        'export KMP_SETTING="KMP_AFFINITY=granularity=fine,compact,1,0"\n',
        "export KMP_SETTING=1\necho $KMP_SETTING\n",
    ],
)
def test_a_variable_of_the_files_own_is_not_called_mistyped(line):
    assert codes(GOOD.format(line)) == set()
    assert codes(GOOD.format("export KMP_SETTING=1\n")) == {"variable-mistyped"}
