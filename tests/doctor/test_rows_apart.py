"""The rows of known errors are apart: none takes a text that is another row's, unless it is a
more general row that is tried later."""

from __future__ import annotations

from pathlib import Path

from rows import every_row

from cputune.doctor.symptoms import explain, rows_of, symptoms
from cputune.text.documents import toml

HERE = Path(__file__).parent

SPECIAL_ROWS = {
    "address-space": ("folder-noexec",),
    "attribute-absent": (
        "chat-template-older",
        "config-attribute",
        "dataset-dict",
        "interface",
        "loss-none",
        "namespace",
        "optimizer-mode",
        "peft-not-applied",
        "tokenizer-slow-absent",
        "wrapped-model",
    ),
    "autograd-inplace": ("buffers-broadcast",),
    "barrier": (
        "barrier-while-mapping",
        "collectives-of-logs",
    ),
    "batch-mismatch": (
        "batch-images",
        "batch-labels",
        "batch-of-text",
        "column-of-text",
    ),
    "best-metric": (
        "best-metric-loss",
        "best-metric-of-a-set",
    ),
    "best-metric-loss": ("best-metric-of-a-set",),
    "binary-incompatible": (
        "numpy-abi",
        "numpy-older-size",
    ),
    "bus-error": ("shm-object",),
    "cannot-allocate": (
        "map-large",
        "maps-many",
        "static-tls",
    ),
    "ccl-error": (
        "ccl-affinity",
        "ccl-provider",
    ),
    "chat-template": (
        "chat-system",
        "chat-turns",
    ),
    "choice-unknown": (
        "optimizer-unknown",
        "report-to",
    ),
    "columns-removed": ("model-wrapped",),
    "compile-cpp": ("compile-shared-cache",),
    "compile-error": ("wheel-headers",),
    "compile-failed": (
        "compile-cpp",
        "no-compiler",
    ),
    "configuration-file": (
        "deepspeed-config",
        "omegaconf-key",
        "yaml-broken",
    ),
    "cuda-extension": (
        "deepspeed-cuda-home",
        "liger",
    ),
    "cuda-not-compiled": (
        "cuda-asked",
        "map-location",
        "torchrun-gpus",
        "unsloth",
    ),
    "data-build": ("data-columns-differ",),
    "data-cast": (
        "data-columns-differ",
        "data-null-column",
    ),
    "data-collate": ("data-collate-none",),
    "data-compressed": ("hub-compressed",),
    "data-encoding": (
        "data-binary",
        "data-compressed",
        "hub-compressed",
    ),
    "data-parse": (
        "csv-fields",
        "json-document",
        "json-lines",
        "json-nothing",
        "json-quotes",
        "json-types",
        "parquet-broken",
    ),
    "data-verify": (
        "data-checksum",
        "data-part",
        "data-splits-expected",
    ),
    "deepspeed-config": (
        "deepspeed-mismatch",
        "deepspeed-zero3",
    ),
    "file-absent": (
        "checkpoint-incomplete",
        "compile-error",
        "compile-shared-cache",
        "cuda-build",
        "cuda-linker",
        "dataset-name",
        "exec-interpreter",
        "extension-header",
        "extension-not-built",
        "library-absent",
        "library-mkl-absent",
        "library-of-mpi",
        "lock-removed",
        "metric-absent",
        "musl",
        "numactl-absent",
        "oneccl-library",
        "slurm-spool",
        "srun-without-pmi",
        "start-absent",
        "wheel-headers",
    ),
    "file-truncated": ("weights-pointer",),
    "forward-argument": (
        "forward-labels",
        "forward-loss-count",
        "forward-peft-task",
        "forward-token-types",
    ),
    "gloo-dtype-of-launch": ("gloo-dtype",),
    "gloo-interface": ("gloo-hostname",),
    "host-name": (
        "host-of-rank-0",
        "master-name",
    ),
    "hub-forbidden": (
        "hub-gated-refused",
        "hub-push-right",
        "hub-storage",
    ),
    "hub-gated": ("hub-gated-refused",),
    "hub-login": (
        "hub-gated",
        "hub-gated-refused",
        "hub-token",
        "repo-unknown",
    ),
    "hub-unreachable": (
        "certificate",
        "hub-offline",
        "hub-offline-cause",
        "index-unreachable",
        "pip-timeout",
    ),
    "illegal-instruction": ("ipex-avx2",),
    "index-refused": ("ipex-index",),
    "input-output": ("terminal-gone",),
    "json-number": (
        "json-grad-norm",
        "json-state",
    ),
    "json-state": ("json-grad-norm",),
    "json-type": (
        "json-config",
        "json-grad-norm",
        "json-number",
        "json-state",
    ),
    "killed": (
        "evicted-for-memory",
        "killed-in-pod",
        "killed-in-step",
    ),
    "kubernetes-config": ("kubernetes-volume",),
    "kubernetes-file": ("kubernetes-immutable",),
    "kubernetes-forbidden": ("kubernetes-quota",),
    "kubernetes-image": ("image-tag",),
    "kubernetes-restart": ("kubernetes-init",),
    "kubernetes-volume": (
        "kubernetes-claim",
        "kubernetes-multi-attach",
    ),
    "library-absent": (
        "library-mkl-absent",
        "library-of-mpi",
        "oneccl-library",
    ),
    "library-mkl": ("mkl-without-openmp",),
    "libstdcxx": ("libstdcxx-conda",),
    "linker": ("cuda-linker",),
    "lock-wait": ("database-locked",),
    "map-types": (
        "json-document",
        "json-types",
        "map-objects",
    ),
    "maps-many": ("map-large",),
    "metric-absent": (
        "metric-package",
        "metric-sklearn",
    ),
    "metric-package": ("metric-sklearn",),
    "metrics-kind": ("metrics-multilabel",),
    "mixed-dtype": (
        "labels-whole",
        "tensor-double",
    ),
    "mlflow-failed": (
        "mlflow-changed",
        "mlflow-length",
    ),
    "mpi-daemons": (
        "mpi-hostfile",
        "mpi-no-ssh",
    ),
    "mpi-init": ("srun-without-pmi",),
    "mpi-slots": ("mpi-slots-of-slurm",),
    "namespace": ("interface",),
    "nan": ("nan-sklearn",),
    "no-matching": (
        "index-no-network",
        "local-release",
        "no-release",
    ),
    "no-release": ("index-no-network",),
    "no-space": ("shm-full",),
    "none-value": (
        "loss-none",
        "tokenizer-slow-absent",
    ),
    "not-imported": (
        "accelerate-name",
        "notebook-export",
        "parallelism-config",
        "torch-name",
    ),
    "nothing-trained": ("checkpoint-gradient",),
    "numpy-abi": ("numpy-older-size",),
    "omp-error": (
        "omp-shm",
        "openmp-two",
    ),
    "optional-package": (
        "accelerate-missing",
        "bitsandbytes-absent",
        "deepspeed",
        "metric-package",
        "metric-sklearn",
        "quantized-training",
        "remote-flash",
        "remote-packages",
        "torch-not-found",
        "tracker-absent",
    ),
    "parser-words": (
        "interface",
        "notebook-words",
    ),
    "path-none": ("tokenizer-file-none",),
    "peer-closed": ("istio",),
    "peft-modules": ("lora-none",),
    "permission": (
        "attributes-denied",
        "home-root",
        "lock-of-another",
        "pip-rights",
        "start-denied",
    ),
    "pickle-broken": (
        "download-incomplete",
        "lfs-pointer",
        "pickle-empty",
        "pickle-page",
    ),
    "pip-conflict": (
        "conda-unsatisfiable",
        "pip-impossible",
        "pip-pair",
    ),
    "read-only": ("image-read-only",),
    "remote-packages": ("remote-flash",),
    "repo-absent": (
        "path-as-name",
        "repo-file-absent",
        "repo-unknown",
    ),
    "save-shared": (
        "save-shared-accelerate",
        "save-shared-trainer",
    ),
    "slurm-refused": (
        "slurm-account",
        "slurm-bind-inherited",
        "slurm-credential",
        "slurm-first-line",
        "slurm-line-ends",
        "slurm-node",
        "slurm-processors",
        "slurm-request",
        "slurm-script",
        "slurm-script-absent",
    ),
    "slurm-request": ("slurm-processors",),
    "ssh": (
        "host-with-slots",
        "ssh-port",
        "ssh-silent",
    ),
    "start-absent": ("slurm-spool",),
    "state-model": (
        "state-classes",
        "state-divided",
        "state-lora",
        "state-position-ids",
        "state-prefix",
        "state-sizes",
        "state-vocabulary",
    ),
    "state-sizes": (
        "state-classes",
        "state-divided",
        "state-vocabulary",
    ),
    "state-vocabulary": ("state-divided",),
    "syntax": (
        "syntax-characters",
        "syntax-fstring",
        "syntax-python2",
    ),
    "tensor-dtype": (
        "embedding-floats",
        "labels-whole",
        "mixed-dtype",
        "numpy-bfloat16",
        "tensor-double",
    ),
    "tensor-shapes": (
        "batch-dimension",
        "cat-sizes",
        "image-channels",
        "linear-sizes",
        "view-labels",
    ),
    "tensor-target": ("labels-whole",),
    "timed-out": (
        "init-file-left",
        "ranks-missing",
        "store-silent",
    ),
    "token-id": (
        "position-range",
        "vocabulary-range",
    ),
    "tokenizer-class": (
        "tokenizer-case",
        "tokenizer-v5",
    ),
    "tokenizer-newer": ("tokenizer-part",),
    "undefined-symbol": (
        "ipex-symbol",
        "library-mkl",
        "mkl-symbol",
        "mkl-without-openmp",
        "oneccl-symbol",
        "torchaudio-torch",
    ),
    "unknown-model": ("unknown-model-project",),
    "uv-no-wheel": ("uv-no-torch",),
    "variable-absent": (
        "variable-of-slurm",
        "variable-of-torchrun",
    ),
    "wandb-silent": (
        "wandb-login",
        "wandb-right",
    ),
    "weights-only": (
        "weights-only-random",
        "weights-only-text",
        "weights-only-yours",
    ),
    "wheel-build": (
        "wheel-cmake",
        "wheel-compiler",
        "wheel-flash",
        "wheel-isolated",
        "wheel-pyyaml",
        "wheel-rust",
    ),
    "wheel-isolated": ("wheel-flash",),
}
"""For a general row those that say more about some of the texts that it knows."""


def texts() -> list[tuple[str, str]]:
    """The name of a row and a text that it explains."""
    lines = (HERE / "reported_errors.txt").read_text(encoding="utf-8").splitlines()
    pairs = [tuple(line.split("\t", 1)) for line in lines]
    threads = toml((HERE / "public_errors.toml").read_text(encoding="utf-8"))["errors"]
    return [(name, text) for name, text in pairs] + [(row["is"], row["text"]) for row in threads]


def also_known_by() -> set[tuple[str, str]]:
    """Pairs of a general row and the row whose text it would take, too."""
    pairs = set()
    for name, text in texts():
        explanation = explain(text)
        for other in rows_of(explanation.failure):
            if other != name:
                pairs.add((other, name))
    return pairs


def test_a_row_takes_no_text_of_another_row() -> None:
    allowed = {(general, name) for general, names in SPECIAL_ROWS.items() for name in names}
    assert also_known_by() == allowed


def test_general_rows_are_tried_last() -> None:
    places = {one.name: place for place, one in enumerate(symptoms())}
    for general, names in SPECIAL_ROWS.items():
        for name in names:
            assert name == "interface" or places[name] < places[general], name


def test_most_rows_have_a_text() -> None:
    names = {one.name for one in symptoms()}
    seen = {name for name, _ in texts()}
    assert len(names & seen) / len(names) > 0.9, sorted(names - seen)


ELSEWHERE = (
    # A program that is no rank listens, connects or asks for a name.
    "OSError: [Errno 98] Address already in use: tensorboard could not bind to port 6006",
    "BrokenPipeError: [Errno 32] Broken pipe",
    # Not the limit that these words are mostly about.
    "BlockingIOError: [Errno 11] Resource temporarily unavailable: 'cache.lock'",
    "IndexError: index 3 is out of bounds for dimension 0 with size 3",
    "RuntimeError: The sizes of both lists should be the same",
    "RuntimeError: Invalid scalar type",
    # A connection of which nothing says that it is one between ranks.
    "RuntimeError: the cache server said: Connection refused",
    # No program is started here.
    "error: cannot reach https://registry.example.org: connect() timed out",
)


@every_row("text", ELSEWHERE)
def test_without_the_evidence_that_a_row_needs_the_answer_is_not_known(text: str) -> None:
    explanation = explain(text)
    assert not explanation.is_known, explanation.symptom.name


def test_the_nearest_thread_is_named_if_the_evidence_is_missing() -> None:
    explanation = explain("RuntimeError: Invalid scalar type")
    assert explanation.symptom.source == "pytorch/pytorch#111131"
    assert "nearest" in explanation.symptom.cause


SHARED = """\
Traceback (most recent call last):
  File "train.py", line 9, in <module>
    {code}
  File "{file}", line 57, in {function}
    {inner}
{error}
"""
FULL = "OSError: [Errno 28] No space left on device"
NO_MEMORY = "OSError: [Errno 12] Cannot allocate memory"
NO_WAY = "OSError: [Errno 113] No route to host"
DENIED = "PermissionError: [Errno 13] Permission denied"


@every_row(
    ("file", "function", "error", "row"),
    [
        ("/usr/lib/python3.11/multiprocessing/synchronize.py", "__init__", FULL, "shm-full"),
        ("/usr/lib/python3.11/multiprocessing/shared_memory.py", "__init__", FULL, "shm-full"),
        ("/v/site-packages/torch/storage.py", "_share_fd_cpu_", FULL, "shm-full"),
        ("/usr/lib/python3.11/tempfile.py", "_mkstemp_inner", FULL, "no-space"),
        ("/v/site-packages/safetensors/torch.py", "save_file", FULL, "no-space"),
        ("/usr/lib/python3.11/multiprocessing/synchronize.py", "__init__", DENIED, "shm-denied"),
        ("/v/site-packages/torch/serialization.py", "save", DENIED, "permission"),
        ("pyarrow/io.pxi", "pyarrow.lib.memory_map", NO_MEMORY, "maps-many-called"),
        ("/v/site-packages/numpy/core/memmap.py", "__new__", NO_MEMORY, "maps-many-called"),
        ("/usr/lib/python3.11/multiprocessing/popen_fork.py", "_launch", NO_MEMORY, "fork-refused"),
        ("/v/site-packages/torch/nn/functional.py", "linear", NO_MEMORY, "cannot-allocate"),
        ("/v/site-packages/urllib3/connection.py", "_new_conn", NO_WAY, "hub-name"),
        ("/v/site-packages/torch/distributed/rendezvous.py", "_create", NO_WAY, "rank-0-no-way"),
        ("/usr/lib/python3.11/socket.py", "create_connection", NO_WAY, "no-way"),
    ],
)
def test_what_was_short_is_read_from_the_call(
    file: str, function: str, error: str, row: str
) -> None:
    text = SHARED.format(code="run()", file=file, function=function, inner="call()", error=error)
    explanation = explain(text)
    assert explanation.symptom.name == row
