"""What official guides have people type, as today's versions take it."""

import subprocess

import pytest
import yaml
from stacks import IPEX_ERA, TODAY, machine

from cputune.doctor.checkfile import check_file
from cputune.doctor.finding import Severity
from cputune.doctor.migration import migrate
from cputune.errors import UsageError

ARGUMENTS = """\
 --model_name_or_path google-bert/bert-large-uncased \\
 --dataset_name squad \\
 --do_train \\
 --do_eval \\
 --per_device_train_batch_size 12  \\
 --learning_rate 3e-5  \\
 --num_train_epochs 2  \\
 --max_seq_length 384 \\
 --doc_stride 128  \\
 --output_dir /tmp/debug_squad/ \\
"""
ONE_PROCESS_OLD = f"python run_qa.py \\\n{ARGUMENTS} --use_ipex \\\n --bf16 --no_cuda\n"
TWO_HOSTS = f"""\
ccl_path=$(python -c "from oneccl_bindings_for_pytorch import cwd; print(cwd)")
source $ccl_path/env/setvars.sh
export CCL_WORKER_COUNT=1
export MASTER_ADDR=10.0.0.1 #node0 ip
mpirun -f hostfile -n 4 -ppn 2 \\
-genv OMP_NUM_THREADS=23 \\
python3 run_qa.py \\
{ARGUMENTS} --no_cuda \\
 --ddp_backend ccl \\
 --use_ipex \\
 --bf16
"""
FOUR_HOSTS = """\
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_CPU
downcast_bf16: 'no'
ipex_config:
  ipex: true
machine_rank: 0
main_process_ip: 10.0.0.1
main_process_port: 29500
main_training_function: main
mixed_precision: bf16
mpirun_config:
  mpirun_ccl: '1'
  mpirun_hostfile: /home/user/hostfile
num_machines: 4
num_processes: 16
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
"""
PYTORCHJOB = """\
apiVersion: "kubeflow.org/v1"
kind: PyTorchJob
metadata:
  name: transformers-pytorchjob
spec:
  elasticPolicy:
    rdzvBackend: c10d
    minReplicas: 1
    maxReplicas: 4
    maxRestarts: 10
  pytorchReplicaSpecs:
    Worker:
      replicas: 4  # The number of worker pods
      restartPolicy: OnFailure
      template:
        spec:
          containers:
            - name: pytorch
              image: <image name>:<tag>
              imagePullPolicy: IfNotPresent
              command: ["/bin/bash", "-c"]
              args:
                - >-
                  cd /workspace/transformers;
                  pip install -r /workspace/examples/pytorch/question-answering/requirements.txt;
                  source /usr/lib/dist-packages/oneccl_bindings_for_pytorch/env/setvars.sh;
                  torchrun /workspace/examples/pytorch/question-answering/run_qa.py
                  --model_name_or_path distilbert/distilbert-base-uncased
                  --dataset_name squad --do_train --do_eval
                  --per_device_train_batch_size 12
                  --output_dir /tmp/pvc-mount/output_$(date +%Y%m%d_%H%M%S)
                  --no_cuda --ddp_backend ccl --bf16;
              env:
                - name: LD_PRELOAD
                  value: "/usr/lib/x86_64-linux-gnu/libtcmalloc.so.4.5.9:/usr/local/lib/libiomp5.so"
                - name: TRANSFORMERS_CACHE
                  value: "/tmp/pvc-mount/transformers_cache"
                - name: HF_DATASETS_CACHE
                  value: "/tmp/pvc-mount/hf_datasets_cache"
                - name: LOGLEVEL
                  value: "INFO"
                - name: CCL_WORKER_COUNT
                  value: "1"
                - name: OMP_NUM_THREADS
                  value: "240"
              resources:
                limits: {cpu: 240, memory: 128Gi}
                requests: {cpu: 240, memory: 128Gi}
              volumeMounts:
                - {name: pvc-volume, mountPath: /tmp/pvc-mount}
                - {mountPath: /dev/shm, name: dshm}
          restartPolicy: Never
          nodeSelector:
            node-type: gnr
          volumes:
            - name: pvc-volume
              persistentVolumeClaim: {claimName: transformers-pvc}
            - name: dshm
              emptyDir: {medium: Memory}
"""
DOCKERFILE = """\
FROM intel/intel-optimized-pytorch:2.4.0-pip-multinode

RUN apt-get update -y && \\
    apt-get install -y --no-install-recommends --fix-missing google-perftools libomp-dev

WORKDIR /workspace

# Download and extract the transformers code
ARG HF_TRANSFORMERS_VER="4.46.0"
RUN pip install --no-cache-dir \\
    transformers==${HF_TRANSFORMERS_VER} oneccl_bind_pt==2.4.0 \\
    intel_extension_for_pytorch==2.4.0 && \\
    mkdir transformers
"""
GUIDES = {
    # name: (text, what is gone, what has come)
    "old.sh": (ONE_PROCESS_OLD, ("--use_ipex", "--no_cuda"), ("--bf16 --use_cpu",)),
    "hosts.sh": (TWO_HOSTS, ("ccl", "CCL_", "setvars", "ipex"), ("--use_cpu \\\n", "--bf16")),
    "four.yaml": (FOUR_HOSTS, ("ipex", "mpirun_ccl"), ("use_cpu: true", "mpirun_hostfile: /home")),
    "job.yaml": (
        PYTORCHJOB,
        ("CCL_", "setvars", "--no_cuda", " ccl", "TRANSFORMERS_CACHE"),
        ('nprocPerNode: "1"', "--use_cpu --ddp_backend gloo --bf16;", "HF_HUB_CACHE"),
    ),
    "Dockerfile": (DOCKERFILE, ("oneccl_bind_pt", "intel_extension"), ("transformers==${HF",)),
}


@pytest.mark.parametrize("name", GUIDES)
def test_the_guides_are_brought_to_today(name, tmp_path):
    text, gone, come = GUIDES[name]
    facts = machine(TODAY)
    if "Docker" not in name:
        assert check_file(text, name, facts, here=False), "the doctor finds nothing to change"
    found = migrate(text, name, facts)
    assert [word for word in gone if word in found.text] == []
    assert [word for word in come if word not in found.text] == []
    assert [one for one in found.left if one.severity is Severity.ERROR] == []
    assert all(one.why and one.source and one.line for one in found.changes)
    assert migrate(found.text, name, facts).changes == () or "Docker" in name
    if name.endswith(".sh"):
        subprocess.run(["bash", "-n"], input=found.text, text=True, check=True, timeout=10)
        assert "\n\n" not in found.text
    if name.endswith(".yaml"):
        assert yaml.safe_load(found.text)


def test_in_its_own_era_a_launch_stays_as_it_is():
    assert migrate(TWO_HOSTS, "hosts.sh", machine(IPEX_ERA)).text == TWO_HOSTS


def test_a_list_of_words_stays_a_list():
    text = PYTORCHJOB.replace('["/bin/bash", "-c"]', '["torchrun", "run_qa.py", "--no_cuda"]')
    head, _, tail = text.partition("              args:\n")
    text = head + '              args: ["--ddp_backend", "ccl", "--use_ipex", "--bf16"]\n'
    text += tail[tail.index("              env:") :]
    job = yaml.safe_load(migrate(text, "job.yaml", machine(TODAY)).text)
    container = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    assert container["command"] == ["torchrun", "run_qa.py", "--use_cpu"]
    assert container["args"] == ["--ddp_backend", "gloo", "--bf16"]


def test_comments_and_other_words_stay():
    text = "# --no_cuda was old\nexport A=1 # x\npython run_qa.py --no_cuda --no_cuda_graph x\n"
    found = migrate(text, "x.sh", machine(TODAY))
    assert found.text == text.replace(".py --no_cuda ", ".py --use_cpu ")


def test_what_is_no_launch_is_refused():
    with pytest.raises(UsageError):
        migrate("echo hello\n", "x.sh", machine(TODAY))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("hostfile", "a:2\nb slots=2\n", "no mpirun reads both"),
        ("hosts.txt", "localhost:2\nb:2\n", "is each of them itself"),
        ("hostfile", "a b c\n", "cannot read"),
        ("nodes", "a slots=2\na slots=2\n", None),
        ("hostfile", "a:2\nb:2\n", None),
        ("Dockerfile", "FROM x\nRUN pip install torch\n", "brings CUDA"),
        (
            "Dockerfile",
            'FROM x\nCMD ["python", "run_qa.py", "--no_cuda"]\n',
            ":2: --no_cuda",
        ),
        ("x", "ARG A=1\nFROM x\nENV OMP_NUM_THREADS 4x\n", "OMP_NUM_THREADS='4x'"),
        ("Dockerfile", "FROM x\nRUN pip install torch==2.6.0 -i x/cpu transformers==2.0\n", None),
        ("Dockerfile", "FROM x\nRUN echo pip\n", None),
    ],
)
def test_host_files_and_dockerfiles_are_understood(name, text, said):
    found = [one.evidence for one in check_file(text, name, machine(TODAY))]
    if said is None:
        assert [one for one in found if "each of them" in one or "CUDA" in one] == []
    else:
        assert any(said in one for one in found), found
