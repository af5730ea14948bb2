"""``doctor --check-file``: files of every kind, the good ones, and each with one thing wrong."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from clean_machine import words
from golden_texts import Golden
from rows import every_row
from stacks import IPEX_ERA, TODAY, machine

from cputune import UsageError
from cputune.doctor.checkfile import check_file, fix_file
from cputune.doctor.registry import all_checks
from cputune.host import Host, LiveHost
from cputune.host.facts import Launcher
from cputune.launch.shell import LETTERS_AT_MOST, read_launches

BY_CODE = {check.code: check for check in all_checks()}
GOOD_YAML = """\
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: MULTI_CPU
main_process_ip: 10.0.0.1
main_process_port: 29500
mixed_precision: bf16
mpirun_config:
  mpirun_hostfile: hostfile
num_machines: 2
num_processes: 4
use_cpu: true
"""
GOOD_SCRIPT = """\
#!/bin/bash
export MASTER_ADDR=127.0.0.1 MASTER_PORT=29500  # the first host's
export OMP_NUM_THREADS=2
mpirun -n 2 -ppn 2 python run_qa.py \\
  --output_dir out \\
  --use_cpu --bf16 --ddp_backend gloo
"""
PYTORCHJOB = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: bert
spec:
  nprocPerNode: "2"
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      template:
        spec:
          containers:
            - name: pytorch
              image: bert
              command: ["torchrun", "train.py", "--use_cpu", "--bf16"]
              env:
                - name: OMP_NUM_THREADS
                  value: "4"
              resources:
                limits: {cpu: 8, memory: 32Gi}
                requests: {cpu: 8, memory: 32Gi}
              volumeMounts:
                - {name: dshm, mountPath: /dev/shm}
          volumes:
            - name: dshm
              emptyDir: {medium: Memory}
"""
TRAINJOB = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: bert}
spec:
  runtimeRef: {name: torch-distributed}
  trainer:
    numNodes: 2
    numProcPerNode: 2
    command: ["torchrun", "train.py", "--use_cpu"]
    env:
      - {name: OMP_NUM_THREADS, value: "4"}
    resourcesPerNode:
      limits: {cpu: 8, memory: 32Gi}
"""


def codes(text, name="run.sh", packages=TODAY, *, host=None, **more):
    return {finding.code for finding in check_file(text, name, machine(packages, **more), host)}


def script(line, *, before="export OMP_NUM_THREADS=2 MASTER_ADDR=127.0.0.1"):
    return f"{before}\n{line}\n"


@every_row("text", [GOOD_YAML, GOOD_SCRIPT, PYTORCHJOB, TRAINJOB])
def test_a_good_file_has_no_finding(text):
    assert codes(text, "file") == set()


CONFIGURATIONS = (
    # what is written otherwise in GOOD_YAML
    ("use_cpu: true", "use_cpu: true\nipex_config:\n  ipex: true"),
    ("distributed_type: MULTI_CPU", "distributed_type: FSDP"),
    ("debug: false", "debgu: false"),
    ("  mpirun_hostfile: hostfile", "  mpirun_hostfile: hostfile\n  mpirun_ccl: '1'"),
    ("mpirun_config:\n  mpirun_hostfile: hostfile\n", ""),
    ("MULTI_CPU", "'NO'"),
    ("use_cpu: true", "use_cpu: false"),
    ("use_cpu: true\n", ""),
    ("bf16", "fp16"),
    ("num_processes: 4", "num_processes: 5"),
    ("10.0.0.1", "127.0.0.1"),
    ("main_process_ip: 10.0.0.1\n", ""),
    ("MULTI_CPU", "MULTI_GPU"),
    ("num_processes: 4", "num_processes: 64"),
)
RANKS = "python train.py --use_cpu"
LAUNCHES = (
    "python run_qa.py --use_cpu --use_ipex",
    "python run_qa.py --no-cuda",
    "mpirun -n 2 python run_qa.py --use_cpu --ddp_backend=ccl",
    "python run_qa.py --fp16",
    "python run_qa.py --bf16",
    "python train.py --use_cpu --no_cuda",
    "torchrun --nproc-per-node 2 run_qa.py --output_dir out",
    "torchrun --nproc-per-node 2 train.py",
    "mpirun -n 2 -ppn 2 accelerate launch --num_processes 2 run_qa.py --bf16",
    "mpirun -n 2 -ppn 2 accelerate launch --cpu --num_processes 2 run_qa.py --bf16",
    "mpirun -n 2 -ppn 2 accelerate launch --config_file a.yaml run_qa.py --bf16",
    "torchrun --nproc_per_node=auto run_qa.py --use_cpu",
    "OMP_NUM_THREADS=4 torchrun --nproc-per-node 2 run_qa.py --use_cpu",
    "unset OMP_NUM_THREADS; torchrun --nproc-per-node 2 train.py --use_cpu",
    f"unset OMP_NUM_THREADS; mpirun -n 2 {RANKS}",
    f"OMP_NUM_THREADS=1 {RANKS}",
    "python run_qa.py --use_cpu --ddp_backend gloo",
    "accelerate launch --cpu --num_processes 2 train.py",
    "accelerate launch --cpu --num_processes 9 --mpirun_hostfile h train.py",
    "accelerate launch --cpu --num_cpu_threads_per_process 8 train.py",
    "accelerate launch --cpu --mpirun_ccl 1 train.py",
    "accelerate launch --cpu --mixed_precision fp16 train.py",
    "mpirun -n 2 numactl -m 0 python train.py --use_cpu",
    f"OMP_NUM_THREADS=4 taskset -c 0,1 {RANKS}",
    f"OMP_NUM_THREADS=4 numactl --physcpubind=0-2 -m 0 {RANKS}",
    f"OMP_NUM_THREADS=4 numactl -N 0 {RANKS}",
    # Loopback is no address for two machines, and one on a single machine.
    f"mpirun -hosts a,b -n 2 {RANKS}",
    f"mpirun -n 4 -ppn 2 {RANKS}",
    f"#SBATCH --nodes=2\nsrun {RANKS}",
    f"#SBATCH -N 2\nmpirun -n 4 {RANKS}",
    "torchrun --nnodes 2 --nproc-per-node 2 --master-addr localhost train.py --use_cpu",
    "torchrun --nnodes 2 --nproc-per-node 2 train.py --use_cpu",
    f"#SBATCH --nodes=1\nsrun {RANKS}",
    "torchrun --nnodes 2 --rdzv-endpoint $HEAD:29500 train.py --use_cpu",
    f"#SBATCH -N 2\n{RANKS}",
    # Ranks that are numbered need an address.
    f"unset MASTER_ADDR; mpirun -n 2 {RANKS}",
    f"unset MASTER_ADDR; mpirun -n 2 -f somewhere {RANKS}",
    f"unset MASTER_ADDR; RANK=0 WORLD_SIZE=2 {RANKS}",
    f"export OMP_NUM_THREADS=$(nproc) MASTER_PORT=$port; {RANKS}",
)
MPIRUNS = (
    # the dialect of the mpirun that is here, and the options of another
    ("intelmpi", "-n 2 -x A=B --bind-to none"),
    ("mpich", "-n 2 -genv A B -bind-to user:0,1"),
    ("mpich", "-n 2 -perhost 2"),
    ("openmpi4", "-n 2 -genv A B --bind-to none"),
    ("openmpi4", "-n 2 -bind-to none"),
    ("openmpi5", "-n 2 -bind-to none"),
    ("openmpi5", "-n 2 -x A=B"),
    ("openmpi5", "-n 2 --map-by ppr:2:node:pe=2"),
)
VARIABLES = (
    # in front of a launch, and exported before it
    "OMP_NUM_THREADS=abc",
    "MKL_NUM_THREADS=1 OMP_NUM_THREADS=2",
    "OMP_THREAD_LIMIT=1 OMP_NUM_THREADS=2",
    "OMP_PROC_BIND=close",
    "GOMP_CPU_AFFINITY=0-3",
    "ONEDNN_MAX_CPU_ISA=AVX2",
    "LD_PRELOAD=/a/libiomp5.so:/a/libgomp.so.1",
)
COMMAND = '["torchrun", "train.py", "--use_cpu", "--bf16"]'
THREADS = """                - name: OMP_NUM_THREADS
                  value: "4"
"""
JOBS = (
    # and what is written otherwise in it
    (PYTORCHJOB, ('"2"', "auto")),
    (PYTORCHJOB, ('  nprocPerNode: "2"\n', "")),
    (PYTORCHJOB, ("Master", "Worker")),
    (PYTORCHJOB.replace("replicas: 1", "replicas: 2"), ("Master", "Worker")),
    (PYTORCHJOB, ('"torchrun"', '"python"')),
    (PYTORCHJOB, ("emptyDir: {medium: Memory}", "hostPath: {path: /dev/shm}")),
    (TRAINJOB, ('"torchrun"', '"python"')),
    (
        PYTORCHJOB.replace("Master", "Worker").replace("replicas: 1", "replicas: 4"),
        ("  nproc", "  elasticPolicy: {minReplicas: 1, maxReplicas: 4}\n  nproc"),
    ),
    (
        PYTORCHJOB.replace("Master", "Worker").replace("replicas: 1", "replicas: 4"),
        ("  nproc", "  elasticPolicy: {minReplicas: 4, maxReplicas: 4}\n  nproc"),
    ),
    (PYTORCHJOB, ("requests: {cpu: 8", "requests: {cpu: 4")),
    (PYTORCHJOB, ("mountPath: /dev/shm", "mountPath: /data")),
    (PYTORCHJOB, ('"4"', '"8"')),
    (PYTORCHJOB, ('"4"', '"$(nproc) + 1"')),
    (PYTORCHJOB, ('"4"', "many")),
    (PYTORCHJOB, (THREADS, THREADS + THREADS.replace("OMP", "MKL").replace("4", "3"))),
    (PYTORCHJOB, (THREADS, THREADS + THREADS.replace("OMP_NUM_THREADS", "CCL_WORKER_AFFINITY"))),
    (PYTORCHJOB, ('"--bf16"', '"--use_ipex"')),
    (PYTORCHJOB, ('"--use_cpu", "--bf16"', '"--output_dir", "o"')),
    (PYTORCHJOB, (COMMAND, '["bash", "train.sh"]')),
    (PYTORCHJOB, (COMMAND, '["bash", "-c", "cd /w && torchrun train.py --use_cpu --no_cuda"]')),
    (TRAINJOB, ("    numProcPerNode: 2\n", "")),
    (TRAINJOB, ("OMP_NUM", "NO_NUM")),
    (TRAINJOB, (", memory: 32Gi", "")),
    (TRAINJOB, ("cpu: 8", "cpu: 8500m")),
)
OF_TWO_HOSTS = """\
ccl_path=$(python -c "from oneccl_bindings_for_pytorch import cwd; print(cwd)")
source $ccl_path/env/setvars.sh
export CCL_WORKER_COUNT=1
export MASTER_ADDR=10.0.0.1 #node0 ip
mpirun -f hostfile -n 4 -ppn 2 \\
-genv OMP_NUM_THREADS=1 \\
python3 run_qa.py \\
 --per_device_train_batch_size 12  \\
 --no_cuda \\
 --ddp_backend ccl \\
 --use_ipex \\
 --bf16
"""
OF_A_JOB = PYTORCHJOB.replace(
    'command: ["torchrun", "train.py", "--use_cpu", "--bf16"]',
    """command: ["/bin/bash", "-c"]
              args:
                - >-
                  cd /workspace; pip install -r requirements.txt;
                  torchrun /workspace/run_qa.py --do_train
                  --output_dir /tmp/pvc-mount/output_$(date +%Y%m%d)
                  --no_cuda --ddp_backend ccl --bf16;""",
).replace(
    "- name: OMP_NUM",
    """- name: CCL_WORKER_COUNT
                  value: "1"
                - name: OMP_NUM""",
)
OF_FOUR_HOSTS = GOOD_YAML.replace("hostfile\n", "hostfile\n  mpirun_ccl: '1'\n") + (
    "ipex_config:\n  ipex: true\n"
)
GOLDEN = Path(__file__).parent.parent / "golden" / "files.txt"


def judged(title, text, name, dialect=None):
    facts = machine(TODAY)
    if dialect is not None:
        mpirun = Launcher(name="mpirun", path="/usr/bin/mpirun", dialect=dialect)
        facts = replace(facts, launchers=(mpirun,))
    said = [words(one, BY_CODE[one.code], code=True) for one in check_file(text, name, facts)]
    return "\n".join((f"== {title}", *(said or ["nothing\n"])))


def changed_into(good, change, name):
    assert change[0] in good
    title = f"{name}: {' becomes '.join(map(repr, change))}"
    return judged(title, good.replace(*change, 1), name)


def test_files_are_judged_as_was_reviewed(request):
    found = [changed_into(GOOD_YAML, change, "config.yaml") for change in CONFIGURATIONS]
    found += [judged(line, script(line), "run.sh") for line in LAUNCHES]
    for dialect, options in MPIRUNS:
        line = f"mpirun {options} {RANKS}"
        found.append(judged(f"{dialect}: {line}", script(line), "run.sh", dialect))
    for variables in VARIABLES:
        there = judged(variables, script(f"{variables} {RANKS}"), "run.sh")
        assert there == judged(variables, script(f"export {variables}; {RANKS}"), "run.sh")
        found.append(there)
    found += [changed_into(job, change, f"{job.split()[3]}.yaml") for job, change in JOBS]
    found += [judged("of a guide, on two hosts", OF_TWO_HOSTS, "run.sh")]
    found += [judged("of a guide, a job", OF_A_JOB, "job.yaml")]
    found += [judged("of a guide, on four hosts", OF_FOUR_HOSTS, "config.yaml")]
    said = "\n".join(found)
    if request.config.getoption("--update-golden"):
        GOLDEN.write_text(said, encoding="utf-8")
    assert said == GOLDEN.read_text(encoding="utf-8")


def test_what_depends_on_the_machine():
    assert codes(GOOD_YAML, "c.yaml", isa=("avx2", "avx512f")) == {"bf16-slow"}
    alone = "distributed_type: 'NO'\nmixed_precision: bf16\nnum_processes: 1\nuse_cpu: false\n"
    assert codes(alone, "c.yaml") == {"file-use-cpu"}
    assert codes(alone, "c.yaml", accelerators=("nvidia",)) == set()


def test_without_packages_a_configuration_is_judged_by_todays_and_no_flag():
    (finding,) = check_file(GOOD_YAML + "tp_config: {}\n", "c.yaml", machine({}))
    assert "accelerate 1.15.0 (not installed; the newest of the tables)" in finding.evidence
    assert codes(script("python t.py --no_cuda --fp16"), packages={}) == set()


def test_use_ipex_by_what_is_installed():
    line = script("python t.py --use_cpu --use_ipex")
    assert codes(line, packages=IPEX_ERA) == set()
    assert codes(line, packages={**IPEX_ERA, "accelerate": "1.10.1"}) == {"file-flag-ignored"}
    assert codes(line, packages={**IPEX_ERA, "torch": "2.6.0"}) == {"file-flag-refused"}


def test_ccl_needs_mpi_and_workers_if_it_is_installed():
    packages = {**IPEX_ERA, "oneccl_bind_pt": "2.8.0"}
    line = "torchrun --nproc-per-node 2 t.py --use_cpu --ddp_backend ccl"
    (finding,) = check_file(script(line), "run.sh", machine(packages))
    assert (finding.code, finding.command) == ("file-backend", "export CCL_WORKER_COUNT=1")
    with_worker = script(line, before="export OMP_NUM_THREADS=1 CCL_WORKER_COUNT=1")
    assert codes(with_worker, packages=packages) == {"ccl-without-mpi"}
    line = "mpirun -n 2 -genv CCL_WORKER_COUNT 1 -genv OMP_NUM_THREADS 1 "
    line += "python t.py --use_cpu --ddp_backend ccl"
    assert codes(script(line), packages=packages) == set()
    assert codes(OF_TWO_HOSTS.replace("--no_cuda", "--use_cpu"), packages=packages) == set()


class TestBadInput:
    @every_row(
        ("text", "name"),
        [
            ("a: [1, 2", "bad.yaml"),
            ("\tuse_cpu: true", "bad.yaml"),
            ("", "empty.yaml"),
            ("hello: world", "other.yaml"),
            ("echo hello", "none.sh"),
            ("# the image\nARG A\nRUN make", "train.Dockerfile"),
            ("FROM python:3.12\nCMD bash", "image"),
            ('python "train.py', "quote.sh"),
            ("\0\1\2", "binary.yaml"),
            ("use_cpu: &a [*a]", "self.yaml"),
            ("kind: PyTorchJob\n\x07: 1", "control.yaml"),
            ("use_cpu: true\n" + "a: " + "[" * 5000, "deep.yaml"),
            ("python t.py '" + "a b\n" * 100_000, "long.sh"),
            ("python t.py\n" + "#" * (1 << 20), "of_millions.sh"),
        ],
    )
    def test_what_is_not_understood_is_said_with_a_hint(self, text, name):
        with pytest.raises(UsageError) as caught:
            check_file(text, name, machine(TODAY))
        assert name in str(caught.value)
        assert caught.value.hint

    def test_a_few_lines_that_stand_for_billions_of_values_are_refused(self, golden: Golden):
        lines = ["use_cpu: true", "a: &a [1,1,1,1,1,1,1,1,1]"]
        for before, after in zip("abcdefghi", "bcdefghij", strict=True):
            lines.append(f"{after}: &{after} [{','.join([f'*{before}'] * 9)}]")
        with golden.raises(UsageError):
            check_file("\n".join(lines), "bomb.yaml", machine(TODAY))

    @every_row(
        "text",
        [
            "kind: PyTorchJob\nspec: 5\n",
            "kind: PyTorchJob\nmetadata: []\nspec: {pytorchReplicaSpecs: [1]}\n",
            "kind: PyTorchJob\nspec: {pytorchReplicaSpecs: {Master: {template: {spec: "
            "{containers: [1, {name: pytorch, env: 7, command: 5}]}}}}}\n",
            "kind: TrainJob\nspec: {trainer: {env: [1, {value: 2}], numProcPerNode: [2]}}\n",
            "distributed_type: [MULTI_CPU]\nnum_processes: {a: 1}\nmpirun_config: 5\n",
            f"kind: PyTorchJob\nspec: {{nprocPerNode: '{'9' * 5000}'}}\n",
        ],
    )
    def test_values_of_the_wrong_kind_are_findings_at_most(self, text):
        assert isinstance(check_file(text, "odd.yaml", machine(TODAY)), tuple)


class FakeHost(Host):
    """A live machine with these files and variables, and nothing else."""

    live = True

    def __init__(self, files=(), variables=()):
        self.files, self.variables = dict(files), dict(variables)

    def read_text(self, path):
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    def knows(self, path):
        return True

    def exists(self, path):
        return path in self.files

    def environment(self):
        return self.variables


@every_row(
    ("preload", "dead"),
    [
        ("/lib/there.so", False),
        ("/lib/gone.so", True),
        ("libtcmalloc.so.4", True),
        ("libc.so.6", False),
        ("${PLACE}/there.so", False),
        ("$(dirname x)/lib/x.so", False),
        ("/usr/$LIB/libx.so", False),
    ],
)
def test_a_preload_that_cannot_be_loaded(preload, dead):
    text = script(f'export LD_PRELOAD="{preload}"\npython train.py --use_cpu')
    host = FakeHost(files={"/lib/there.so": ""}, variables={"PLACE": "/lib"})
    assert codes(text, host=host) == ({"preload-dead"} if dead else set())


def test_a_variable_that_the_file_unsets_is_no_fault():
    left = {"OMP_NUM_THREADS": "3", "OMP_PROC_BIND": "close"}
    text = script('unset "${!OMP_@}"\nOMP_NUM_THREADS=2 ' + f"mpirun -n 2 {RANKS}")
    assert codes(text, environment=left) == set()
    text = text.replace('unset "${!OMP_@}"', "").replace("OMP_NUM_THREADS=2", "")
    kept = codes(text, environment=left)
    assert kept == {"ranks-oversubscribed"}


def test_a_script_with_a_parser_of_its_own_keeps_its_flags():
    text = script("python train.py --use_cpu --no_cuda")
    for source in ("parser.add_argument('--no_cuda', action='store_true')", "import argparse"):
        assert codes(text, host=FakeHost(files={"train.py": source})) == set()
    parsed = FakeHost(files={"train.py": "HfArgumentParser(TrainingArguments)"})
    assert codes(text, host=parsed) == {"file-flag-refused"}


@every_row("flag", ["--bf16", "--ddp_backend nccl", "--optim adamw_bnb_8bit", "--tf32"])
def test_a_flag_of_the_scripts_own_dataclass_is_not_judged_as_trainers(flag):
    text = script(f"python train.py {flag} --lr 1")
    parser = "@dataclass\nclass Own:\n    lr: float = 1\nHfArgumentParser({})\n"
    own = FakeHost(files={"train.py": parser.format("Own")})
    trainers = FakeHost(files={"train.py": parser.format("TrainingArguments")})
    assert codes(text, host=own) == set()
    assert codes(text, host=trainers) != set()


class TestReading:
    """The reader of scripts on its own: what it makes of quotes, and how long it takes."""

    @every_row(
        ("text", "arguments"),
        [
            ('python t.py "$(dirname "$0")/x" y', ("$?/x", "y")),
            ("python t.py 'a b'\"c d\" e\\ f ''", ("a bc d", "e f", "")),
            ("x=1 y=(a 'b c')\npython t.py ${x} ${z:-2} \"${y[@]}\"", ("1", "2", "a", "b c")),
            ("python t.py a#b # c", ("a#b",)),
            ("cat <<'A' > b\ndon't python no.py\nA\npython t.py", ()),
            ("n=$(python -c '\nprint(1)\n')\npython t.py $n", ("$?",)),
        ],
    )
    def test_words(self, text, arguments):
        (launch,) = read_launches(text, "run.sh")
        assert launch.arguments == arguments
        assert launch.line == 1 + text[: text.rindex("python t.py")].count("\n")

    def test_a_variable_that_doubles_with_every_line_stays_small(self):
        text = "x=ab\n" + "x=$x$x\ny+=(${y[@]} a)\n" * 60 + "python t.py $x"
        (launch,) = read_launches(text, "run.sh")
        assert len(launch.arguments[0]) <= LETTERS_AT_MOST


def test_a_launcher_may_be_repeated_any_number_of_times():
    (launch,) = read_launches("mpirun -n 2 " * 3000 + "python train.py --bf16", "x.sh")
    assert (launch.launcher, launch.script, launch.ranks) == ("mpirun", "train.py", 2)
    assert launch.arguments == ("--bf16",)


@pytest.mark.parametrize(
    "line", ["source ~/none/etc/profile.d/conda.sh", ". /nowhere/venv/bin/activate"]
)
def test_an_environment_that_is_sourced_must_be_there(line: str):
    found = check_file(f"{line}\npython train.py\n", "x.sh", machine(TODAY), LiveHost())
    said = [one for one in found if one.code == "file-sourced-missing"]
    assert ("which does not exist" in said[0].evidence, said[0].edits) == (True, ())


@pytest.mark.parametrize(
    ("text", "name"), [("#!/bin/tcsh\npython t.py\n", "job.sh"), ("python t.py\n", "job.csh")]
)
def test_a_script_of_csh_is_refused(text: str, name: str) -> None:
    for reads in (check_file, fix_file):
        with pytest.raises(UsageError, match="is a script of csh") as refused:
            reads(text, name, machine(TODAY))
        assert refused.value.hint


def kubeflow_job(kind, command, ranks=""):
    """A job of two pods whose containers run this command."""
    text = TRAINJOB
    if kind == "PyTorchJob":
        worker = PYTORCHJOB[PYTORCHJOB.index("    Master") :].replace("Master", "Worker")
        text = PYTORCHJOB + worker
    text = re.sub(r" *n(um)?[pP]rocPerNode:.*\n", ranks, text)
    return re.sub(r"command: \[.*\]", f"command: {json.dumps(command)}", text)


FIELDS = {"PyTorchJob": '  nprocPerNode: "4"\n', "TrainJob": "    numProcPerNode: 4\n"}
CODES_OF_RANKS = {"ranks-auto", "ranks-alone", "file-k8s-ranks"}


@every_row("kind", FIELDS)
@every_row(
    ("command", "without", "with_four"),
    [
        # the command, and what is found if the job gives no number of ranks, and 4
        (["python", "-c", "import torch"], set(), set()),
        (["torchrun", "--nproc_per_node=2", "/opt/train.py"], set(), set()),
        (["bash", "-c", "torchrun --nproc-per-node 2 train.py"], set(), set()),
        (["torchrun", "/opt/train.py"], {"ranks-auto"}, set()),
        (["bash", "-c", "pip list && torchrun train.py"], {"ranks-auto"}, set()),
        (["bash", "run.sh"], {"ranks-auto"}, set()),
        (["mpirun", "-n", "2", "python", "train.py", "--use_cpu"], set(), set()),
        (["torchrun", "--nproc_per_node=2", "run_qa.py", "--do_train"], *[{"ranks-alone"}] * 2),
    ],
)
def test_ranks_of_a_job_are_judged_by_its_command(kind, command, without, with_four):
    for field, wanted in (("", without), (FIELDS[kind], with_four)):
        found = codes(kubeflow_job(kind, command, field), "job.yaml")
        assert found & CODES_OF_RANKS == wanted


@pytest.mark.parametrize("program", ["python", "/usr/bin/python3"])
def test_python_starts_one_process_in_each_pod(program):
    command = [program, "/opt/train.py", "--epochs", "1"]
    # The operator numbers the pods of a PyTorchJob; it does so for no TrainJob.
    for kind, field, wanted in (
        ("PyTorchJob", "", set()),
        ("PyTorchJob", FIELDS["PyTorchJob"], {"file-k8s-ranks"}),
        ("TrainJob", "", {"file-k8s-ranks"}),
        ("TrainJob", FIELDS["TrainJob"], {"file-k8s-ranks"}),
    ):
        text = kubeflow_job(kind, command, field)
        assert codes(text, "job.yaml") & CODES_OF_RANKS == wanted
    alone = kubeflow_job("PyTorchJob", command).replace("OMP_NUM_THREADS", "OTHER")
    assert codes(alone, "job.yaml") == {"quota-threads"}
    numbered = kubeflow_job("TrainJob", command).replace(
        "env:\n", "env:\n      - {name: RANK, value: '0'}\n      - {name: WORLD_SIZE, value: '2'}\n"
    )
    assert codes(numbered, "job.yaml") & CODES_OF_RANKS == set()


@pytest.mark.parametrize(
    "changes",
    [
        ("emptyDir: {medium: Memory}", "hostPath: {path: /dev/shm}"),
        ("emptyDir: {medium: Memory}", "persistentVolumeClaim: {claimName: shm}"),
        ("          volumes:", "          hostIPC: true\n          volumes:"),
    ],
)
def test_what_is_mounted_at_shared_memory_is_enough(changes):
    assert codes(PYTORCHJOB.replace(*changes), "job.yaml") == set()


def test_a_value_with_two_expansions_is_unknown_and_stays() -> None:
    """The grammar ends it at the second: a fix would cut the line there."""
    line = "export LD_PRELOAD=$PREFIX/lib/libiomp5.so:$PREFIX/lib/libtcmalloc.so\n"
    facts = machine(TODAY)
    text = f"{line}export OMP_NUM_THREADS=4\npython train.py --use_cpu --bf16\n"
    assert "preload-dead" not in {one.code for one in check_file(text, "a.sh", facts, LiveHost())}
    assert line in fix_file(text, "a.sh", facts, LiveHost()).text
