from dataclasses import replace
from pathlib import Path

import pytest
from clean_machine import words
from stacks import IPEX_ERA, TODAY, machine

from cputune.doctor.checkfile import FILE_CHECKS, check_file
from cputune.doctor.files.shell import LETTERS_AT_MOST, read_launches
from cputune.doctor.finding import Severity
from cputune.doctor.registry import all_checks
from cputune.errors import UsageError
from cputune.facts import Launcher
from cputune.host import Host

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


def codes(text, name, packages=TODAY, **more):
    return {finding.code for finding in check_file(text, name, machine(packages, **more))}


def only(text, name, packages=TODAY, **more):
    (finding,) = check_file(text, name, machine(packages, **more))
    return finding


def with_mpi(dialect, packages=TODAY):
    launcher = Launcher(name="mpirun", path="/usr/bin/mpirun", dialect=dialect)
    return replace(machine(packages), launchers=(launcher,))


def script(line, *, before="export OMP_NUM_THREADS=1 MASTER_ADDR=127.0.0.1"):
    return f"{before}\n{line}\n"


class TestAccelerate:
    def test_a_good_file_has_no_finding(self):
        assert codes(GOOD_YAML, "config.yaml") == set()

    def test_bf16_on_a_cpu_without_it(self):
        assert codes(GOOD_YAML, "c.yaml", isa=("avx2", "avx512f")) == {"file-precision"}

    def test_bf16_of_one_rank_needs_use_cpu(self):
        text = "distributed_type: 'NO'\nmixed_precision: bf16\nnum_processes: 1\nuse_cpu: false\n"
        assert only(text, "c.yaml").evidence.startswith("c.yaml:4: mixed_precision: bf16")
        assert codes(text, "c.yaml", accelerators=("nvidia",)) == set()

    @pytest.mark.parametrize(
        ("accelerate", "expected"), [("1.7.0", set()), ("1.8.1", {"file-key-ignored"})]
    )
    def test_ipex_config_where_accelerate_knows_it(self, accelerate, expected):
        text = GOOD_YAML + "ipex_config:\n  ipex: true\n"
        assert codes(text, "c.yaml", {**IPEX_ERA, "accelerate": accelerate}) == expected

    def test_without_accelerate_the_file_is_judged_by_todays(self):
        finding = only(GOOD_YAML + "tp_config: {}\n", "c.yaml", {})
        assert "accelerate 1.15.0 (not installed; today's stack)" in finding.evidence


class TestScripts:
    def test_a_good_script_has_no_finding(self):
        assert codes(GOOD_SCRIPT, "run.sh") == set()

    def test_accelerate_in_each_rank_of_an_mpirun_is_told_the_cpu(self):
        told = "mpirun -n 2 -ppn 2 accelerate launch {} --num_processes 2 run_qa.py --bf16"
        assert "file-use-cpu" in codes(script(told.format("")), "run.sh")
        for cpu in ("--cpu", "--config_file a.yaml"):
            assert "file-use-cpu" not in codes(script(told.format(cpu)), "run.sh")

    @pytest.mark.parametrize("launcher", ["torchrun --nproc-per-node 2", "mpirun -n 2"])
    def test_ranks_without_a_thread_count(self, launcher):
        text = script(f"{launcher} train.py --use_cpu", before="export MASTER_ADDR=a")
        finding = only(text, "run.sh")
        assert finding.code == "file-threads-unset"
        assert finding.command == "export OMP_NUM_THREADS=2"

    def test_an_assignment_that_is_not_exported_reaches_nobody(self):
        text = "OMP_NUM_THREADS=2\ntorchrun --nproc-per-node 2 t.py --use_cpu\n"
        assert codes(text, "run.sh") == {"file-threads-unset"}

    @pytest.mark.parametrize(
        ("dialect", "options", "expected"),
        [
            ("intelmpi", "-n 2 -x A=B --bind-to none", {"file-mpi-dialect"}),
            ("mpich", "-n 2 -genv A B -bind-to user:0,1", set()),
            ("mpich", "-n 2 -perhost 2", {"file-mpi-dialect"}),
            ("openmpi4", "-n 2 -genv A B --bind-to none", {"file-mpi-dialect"}),
            ("openmpi4", "-n 2 -bind-to none", set()),
            ("openmpi5", "-n 2 -bind-to none", {"file-mpi-dialect"}),
            ("openmpi5", "-n 2 -x A=B", {"file-openmpi-one-core"}),
            ("openmpi5", "-n 2 --map-by ppr:2:node:pe=2", set()),
        ],
    )
    def test_the_dialect_of_the_mpirun_that_is_here(self, dialect, options, expected):
        text = script(f"mpirun {options} python t.py --use_cpu")
        found = check_file(text, "run.sh", with_mpi(dialect))
        assert {finding.code for finding in found} == expected

    def test_a_script_that_speaks_every_dialect_is_not_told_off_for_one(self):
        text = script(
            "case $dialect in\n  hydra) launch=(mpirun -n 2 -genv A B) ;;\n"
            "  *) launch=(mpirun -n 2 -x A=B --bind-to none)\n"
            "     launch+=(--allow-run-as-root) ;;\nesac\n"
            '"${launch[@]}" python t.py --use_cpu'
        )
        found = check_file(text, "run.sh", with_mpi("intelmpi"))
        assert found == ()

    def test_ccl_needs_mpi_and_workers_where_it_lives(self):
        packages = {**IPEX_ERA, "oneccl_bind_pt": "2.8.0"}
        line = "torchrun --nproc-per-node 2 t.py --use_cpu --ddp_backend ccl"
        found = check_file(script(line), "run.sh", machine(packages))
        assert [finding.code for finding in found] == ["file-backend", "file-backend"]
        assert found[0].command == "export CCL_WORKER_COUNT=1"
        assert found[1].severity is Severity.WARNING
        line = "mpirun -n 2 -genv CCL_WORKER_COUNT 1 python t.py --use_cpu --ddp_backend ccl"
        assert codes(script(line), "run.sh", packages) == set()

    @pytest.mark.parametrize(
        ("packages", "expected"),
        [
            (IPEX_ERA, set()),
            ({**IPEX_ERA, "accelerate": "1.10.1"}, {"file-flag-ignored"}),
            ({**IPEX_ERA, "torch": "2.6.0"}, {"file-flag-refused"}),
            ({**IPEX_ERA, "transformers": "4.57.6"}, {"file-flag-refused"}),
        ],
    )
    def test_use_ipex_by_what_is_installed(self, packages, expected):
        assert codes(script("python t.py --use_cpu --use_ipex"), "run.sh", packages) == expected

    def test_variables_arrays_continuations_and_here_documents_are_read(self):
        text = """
NP=2
args=(
  --use_cpu   # the CPU's
  --no_cuda
)
cat <<EOF > hosts
don't python x.py --fp16
EOF
if true; then
  OMP_NUM_THREADS=1 torchrun --nproc-per-node ${NP} \\
     train.py "${args[@]}" --epochs $(nproc)
fi
"""
        finding = only(text, "run.sh")
        assert finding.evidence.startswith("run.sh:11: --no_cuda is refused")

    def test_without_transformers_flags_are_not_judged(self):
        assert codes(script("python t.py --no_cuda --fp16"), "run.sh", {}) == set()


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
    ("num_processes: 4", "num_processes: many"),
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
    "torchrun --nproc-per-node 2 run_qa.py --output_dir out",
    "torchrun --nproc_per_node=auto run_qa.py --use_cpu",
    "OMP_NUM_THREADS=4 torchrun --nproc-per-node 2 run_qa.py --use_cpu",
    "python run_qa.py --use_cpu --ddp_backend gloo",
    "accelerate launch --cpu --num_processes 2 train.py",
    "accelerate launch --cpu --mpirun_ccl 1 train.py",
    "accelerate launch --cpu --mixed_precision fp16 train.py",
    "ipexrun --nprocs-per-node 1 train.py",
    "mpirun -n 2 numactl -m 0 python train.py --use_cpu",
    "mpirun -n 2 -x FOO=1 python train.py --use_cpu",
    "mpirun -ppn 4 -n 4 -x FOO=1 python train.py --use_cpu",
    f"OMP_NUM_THREADS=4 taskset -c 0 {RANKS}",
)
VARIABLES = (
    # in front of a launch, and exported before it
    "OMP_NUM_THREADS=abc",
    "MKL_NUM_THREADS=1 OMP_NUM_THREADS=2",
    "OMP_THREAD_LIMIT=1 OMP_NUM_THREADS=2",
    "KMP_AFFINITY=compact",
    "OMP_PROC_BIND=close",
    "GOMP_CPU_AFFINITY=0-3",
    "CCL_WORKER_AFFINITY=900",
    "OMP_PLACES='{900}'",
    "LD_PRELOAD=/a/libiomp5.so:/a/libgomp.so.1",
)
JOBS = (
    # and what is written otherwise in it
    (PYTORCHJOB, ('"2"', "2")),
    (PYTORCHJOB, ('"2"', "auto")),
    (PYTORCHJOB, ('  nprocPerNode: "2"\n', "")),
    (PYTORCHJOB, ("Master", "Worker")),
    (PYTORCHJOB, ("- name: pytorch", "- name: main")),
    (PYTORCHJOB, ('"4"', "4")),
    (PYTORCHJOB, ("requests: {cpu: 8", "requests: {cpu: 4")),
    (PYTORCHJOB, ("mountPath: /dev/shm", "mountPath: /data")),
    (PYTORCHJOB, ('"4"', '"8"')),
    (PYTORCHJOB, ('"--bf16"', '"--use_ipex"')),
    (PYTORCHJOB, ('"--use_cpu", "--bf16"', '"--output_dir", "o"')),
    (TRAINJOB, ("    numProcPerNode: 2\n", "")),
    (TRAINJOB, ("Node: 2\n    com", 'Node: "2"\n    com')),
    (TRAINJOB, ("OMP_NUM", "PET_NUM")),
    (TRAINJOB, (", memory: 32Gi", "")),
    (TRAINJOB, ("cpu: 8", "cpu: 8500m")),
)
GOLDEN = Path(__file__).parent.parent / "golden" / "files.txt"


def judged(title, text, name):
    found = check_file(text, name, machine(TODAY))
    said = [words(one, BY_CODE[one.code], code=True) for one in found]
    return "\n".join((f"== {title}", *(said or ["nothing\n"])))


def changed_into(good, change, name):
    assert change[0] in good
    title = f"{name}: {' becomes '.join(map(repr, change))}"
    return judged(title, good.replace(*change, 1), name)


def test_files_are_judged_as_was_reviewed(request):
    found = [changed_into(GOOD_YAML, change, "config.yaml") for change in CONFIGURATIONS]
    found += [judged(line, script(line), "run.sh") for line in LAUNCHES]
    for variables in VARIABLES:
        there = judged(variables, script(f"{variables} {RANKS}"), "run.sh")
        assert there == judged(variables, script(f"export {variables}; {RANKS}"), "run.sh")
        found.append(there)
    found += [changed_into(job, change, f"{job.split()[3]}.yaml") for job, change in JOBS]
    said = "\n".join(found)
    if request.config.getoption("--update-golden"):
        GOLDEN.write_text(said, encoding="utf-8")
    assert said == GOLDEN.read_text(encoding="utf-8")


class TestKubernetes:
    @pytest.mark.parametrize("text", [PYTORCHJOB, TRAINJOB])
    def test_a_good_job_has_no_finding(self, text):
        assert codes(text, "job.yaml") == set()

    def test_the_example_of_the_guides_leaves_the_ranks_open(self):
        text = PYTORCHJOB.replace('  nprocPerNode: "2"\n', "  elasticPolicy: {minReplicas: 1}\n")
        text = text.replace("Master", "Worker").replace("replicas: 1\n", "replicas: 4\n")
        assert codes(text, "job.yaml") == {"file-ranks-auto", "file-k8s-elastic"}

    def test_a_command_inside_a_shell_is_read(self):
        text = PYTORCHJOB.replace(
            '["torchrun", "train.py", "--use_cpu", "--bf16"]',
            '["bash", "-c", "cd /w && torchrun train.py --use_cpu --no_cuda"]',
        )
        assert codes(text, "job.yaml") == {"file-flag-refused"}


class TestBadInput:
    @pytest.mark.parametrize(
        ("text", "name"),
        [
            ("a: [1, 2", "bad.yaml"),
            ("\tuse_cpu: true", "bad.yaml"),
            ("", "empty.yaml"),
            ("", "empty.sh"),
            ("hello: world", "other.yaml"),
            ("[1, 2]", "list.yaml"),
            ("echo hello", "none.sh"),
            ("# the image\nARG A\nCMD python train.py", "train.Dockerfile"),
            ("FROM python:3.12\nCMD python train.py", "image"),
            ('python "train.py', "quote.sh"),
            ("\0\1\2", "binary.yaml"),
            ("\0\1\2", "binary"),
            ("use_cpu: &a [*a]", "self.yaml"),
            ("kind: PyTorchJob\n\x07: 1", "control.yaml"),
            ("use_cpu: true\n" + "a: " + "[" * 5000, "deep.yaml"),
        ],
    )
    def test_what_is_not_understood_is_said_with_a_hint(self, text, name):
        with pytest.raises(UsageError) as caught:
            check_file(text, name, machine(TODAY))
        assert name in str(caught.value)
        assert caught.value.hint

    def test_a_few_lines_that_stand_for_billions_of_values_are_refused(self):
        lines = ["use_cpu: true", "a: &a [1,1,1,1,1,1,1,1,1]"]
        for before, after in zip("abcdefghi", "bcdefghij", strict=True):
            lines.append(f"{after}: &{after} [{','.join([f'*{before}'] * 9)}]")
        with pytest.raises(UsageError, match="too many values"):
            check_file("\n".join(lines), "bomb.yaml", machine(TODAY))

    def test_a_long_file_with_an_open_quote_is_read_once(self):
        text = "python t.py '" + "a b\n" * 100_000
        with pytest.raises(UsageError, match="never closed"):
            check_file(text, "long.sh", machine(TODAY))

    @pytest.mark.parametrize(
        "text",
        [
            "kind: PyTorchJob\nspec: 5\n",
            "kind: PyTorchJob\nmetadata: []\nspec: {pytorchReplicaSpecs: [1]}\n",
            "kind: PyTorchJob\nspec: {pytorchReplicaSpecs: {Master: {template: {spec: "
            "{containers: [1, {name: pytorch, env: 7, command: 5}]}}}}}\n",
            "kind: TrainJob\nspec: {trainer: {env: [1, {value: 2}], numProcPerNode: [2]}}\n",
            "distributed_type: [MULTI_CPU]\nnum_processes: {a: 1}\nmpirun_config: 5\n",
            "mixed_precision: 5\nuse_cpu: [1]\nipex_config: text\n1: 2\n",
            f"kind: PyTorchJob\nspec: {{nprocPerNode: '{'9' * 5000}'}}\n",
        ],
    )
    def test_values_of_the_wrong_kind_are_findings_at_most(self, text):
        assert isinstance(check_file(text, "odd.yaml", machine(TODAY)), tuple)


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


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (
            "run.sh",
            OF_TWO_HOSTS,
            (
                *("run.sh:2: $ccl_path/env/setvars.sh", "CCL_WORKER_COUNT=1; accelerate"),
                *("--no_cuda", "--ddp_backend ccl", "--use_ipex"),
            ),
        ),
        (
            "job.yaml",
            OF_A_JOB,
            ("--no_cuda", "--ddp_backend ccl", "CCL_WORKER_COUNT=1;"),
        ),
        ("config.yaml", OF_FOUR_HOSTS, ("ipex_config is known from", "mpirun_ccl is not read")),
    ],
)
def test_each_old_word_of_a_guide_is_named(name, text, words):
    found = check_file(text, name, machine(TODAY))
    said = [one.evidence for one in found]
    assert [word for word in words if not any(word in one for one in said)] == [], said
    assert all(one.source and one.remedy for one in found)


def test_in_its_own_era_no_word_is_old():
    packages = {**IPEX_ERA, "oneccl_bind_pt": "2.8.0"}
    assert codes(OF_TWO_HOSTS.replace("--no_cuda", "--use_cpu"), "run.sh", packages) == set()


def test_every_check_of_files_tells_its_story_once():
    assert len({check.code for check in FILE_CHECKS}) == len(FILE_CHECKS)
    assert all(check.story and check.source and check.remedy for check in FILE_CHECKS)
    assert all(check(machine(TODAY)) == () for check in FILE_CHECKS)


class FakeHost(Host):
    """A live machine with these programs, files and variables, and nothing else."""

    live = True

    def __init__(self, programs=("mpirun", "python", "torchrun"), files=(), variables=()):
        self.programs, self.files, self.variables = programs, dict(files), dict(variables)

    def which(self, program):
        return f"/bin/{program}" if program in self.programs else None

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


def on(text, *, facts=None, **host):
    """(code, severity) of what is found on a live machine; mpirun's own faults left out."""
    found = check_file(text, "run.sh", facts or machine(TODAY), FakeHost(**host))
    return {(finding.code, finding.severity.value) for finding in found}


class TestAround:
    """What stands around a launch: it was neither read nor judged."""

    @pytest.mark.parametrize(
        "launch",
        [
            f"mpirun -hosts a,b -n 2 {RANKS}",
            f"mpirun -n 4 -ppn 2 {RANKS}",
            f"mpirun -hosts a,b {RANKS}",
            f"#SBATCH --nodes=2\nsrun {RANKS}",
            f"srun -N 2 {RANKS}",
            f"#SBATCH -N 2\nmpirun -n 4 {RANKS}",
            "torchrun --nnodes 2 --nproc-per-node 2 --master-addr localhost train.py --use_cpu",
            "torchrun --nnodes 2 --nproc-per-node 2 train.py --use_cpu",
        ],
    )
    def test_loopback_is_no_address_for_two_machines(self, launch):
        assert ("file-master-addr", "error") in on(script(launch))

    @pytest.mark.parametrize(
        ("options", "command"),
        [
            ("-n 2 -hosts a,b", "export MASTER_ADDR=a MASTER_PORT=29500"),
            ("-n 2", "export MASTER_ADDR=127.0.0.1 MASTER_PORT=29500"),
            ("-n 2 -f somewhere", None),
        ],
    )
    def test_the_address_that_is_advised_is_the_first_machine(self, options, command):
        text = script(f"mpirun {options} {RANKS}", before="export OMP_NUM_THREADS=1")
        assert only(text, "run.sh").command == command

    @pytest.mark.parametrize(
        "launch",
        [
            f"mpirun -hosts a -n 2 {RANKS}",
            f"#SBATCH --nodes=1\nsrun {RANKS}",
            "torchrun --nnodes 2 --rdzv-endpoint $HEAD:29500 train.py --use_cpu",
            f"#SBATCH -N 2\n{RANKS}",
        ],
    )
    def test_loopback_is_an_address_on_one_machine(self, launch):
        assert "file-master-addr" not in codes(script(launch), "run.sh")

    def test_ranks_that_are_numbered_by_hand_need_an_address(self):
        text = script(f"RANK=0 WORLD_SIZE=2 {RANKS}", before="true")
        assert codes(text, "run.sh") == {"file-master-addr"}

    @pytest.mark.parametrize(
        ("preload", "dead"),
        [
            ("/lib/there.so", False),
            ("/lib/gone.so", True),
            ("/lib", True),
            ("libtcmalloc.so.4", True),
            ("libc.so.6", False),
            ("${CONDA_PREFIX}/lib/libtcmalloc.so", True),
            ("${PLACE}/there.so", False),
            ("$(dirname x)/lib/x.so", False),
            ("/usr/$LIB/libx.so", False),
        ],
    )
    def test_a_preload_that_cannot_be_loaded(self, preload, dead):
        text = script(f'export LD_PRELOAD="{preload}"\npython train.py --use_cpu')
        found = on(text, files={"/lib/there.so": ""}, variables={"PLACE": "/lib"})
        assert found == ({("preload-dead", "warning")} if dead else set())

    def test_what_only_running_would_show_is_not_judged(self):
        text = script('export OMP_NUM_THREADS=$(nproc) MASTER_PORT="$port"\n' + RANKS)
        assert codes(text, "run.sh") == set()

    def test_a_variable_that_the_file_unsets_is_not_held_against_it(self):
        facts = replace(machine(TODAY), environment={"OMP_NUM_THREADS": "64", "KMP_AFFINITY": "x"})
        text = script('unset "${!OMP_@}" KMP_AFFINITY\nOMP_NUM_THREADS=2 ' + RANKS, before="true")
        assert check_file(text, "run.sh", facts) == ()
        kept = check_file(script(RANKS, before="true"), "run.sh", facts)
        assert [finding.code for finding in kept] == ["file-oversubscribed"]

    @pytest.mark.parametrize("launch", [f"mpirun -n 1 {RANKS}", "torchrun train.py", RANKS])
    def test_a_launcher_that_is_not_installed(self, launch):
        text = script(launch)
        assert ("file-launcher-missing", "error") in on(text, programs=())
        assert ("file-launcher-missing", "error") not in on(text)

    @pytest.mark.parametrize(
        ("source", "found"),
        [
            ("parser.add_argument('--no_cuda', action='store_true')", set()),
            ("import argparse", set()),
            ("HfArgumentParser(TrainingArguments)", {("file-flag-refused", "error")}),
        ],
    )
    def test_a_script_with_a_parser_of_its_own_keeps_its_flags(self, source, found):
        text = script("python train.py --use_cpu --no_cuda")
        assert on(text, files={"train.py": source}) == found

    def test_of_a_script_that_cannot_be_read_less_is_said(self):
        text = script("python train.py --use_cpu --no_cuda")
        assert on(text) == {("file-flag-refused", "warning")}
        assert on(text.replace("train.py", "run_qa.py")) == {("file-flag-refused", "error")}


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("OMP_NUM_THREADS", "$(nproc) + 1", None),
        ("OMP_NUM_THREADS", "many", "threads-malformed"),
        ("MKL_NUM_THREADS", "3", "threads-mkl"),
        ("OMP_PROC_BIND", "close", "affinity-shrinks"),
        ("LD_PRELOAD", "${CONDA_PREFIX}/lib/libtcmalloc.so", "preload-dead"),
        ("LD_PRELOAD", "/usr/lib/libtcmalloc.so", None),
    ],
)
def test_the_variables_of_a_pod_are_judged_wherever_it_runs(name, value, code):
    threads = """                - name: OMP_NUM_THREADS
                  value: "4"
"""
    assert threads in PYTORCHJOB
    variable = threads.replace("OMP_NUM_THREADS", name).replace("4", value)
    both = variable if name == "OMP_NUM_THREADS" else threads + variable
    found = codes(PYTORCHJOB.replace(threads, both), "job.yaml")
    assert found == ({code} if code else set())


class TestReading:
    """The reader of scripts on its own: what it makes of quotes, and how long it takes."""

    @pytest.mark.parametrize(
        ("text", "arguments"),
        [
            ('python t.py "$(dirname "$0")/x" y', ("$?/x", "y")),
            ("python t.py 'a b'\"c d\" e\\ f ''", ("a bc d", "e f", "")),
            (
                "x=1 y=(a 'b c')\npython t.py $x ${x} ${z:-2} \"${y[@]}\"",
                ("1", "1", "2", "a", "b c"),
            ),
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

    def test_a_file_of_millions_of_letters_is_refused(self):
        with pytest.raises(UsageError, match="characters"):
            check_file("python t.py\n" + "#" * (1 << 20), "run.sh", machine(TODAY))
