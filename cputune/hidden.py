"""Values that must not be written down: tokens, passwords, keys, addresses that hold one.

One rule (``may_show``) for whatever has a name: a flag, a variable, a key of a configuration. A
value is shown where it is a number, a path, a choice that the script itself names, an ordinary
word behind a flag, or where the name is known to take a word that anybody may read; else it is
hidden. Text without names (what a
script writes) is cleaned by shape, and of the values that the rule hides.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

HIDDEN = "(hidden)"
"""What stands in the place of such a value."""

_SHAPES = re.compile(
    r"""
    \bhf_[A-Za-z0-9]{8,}                          # Hugging Face
    | \bgh[opusr]_[A-Za-z0-9]{16,} | \bgithub_pat_\w{16,} | \bglpat-[\w-]{16,}
    | \bsk-[\w-]{16,} | \bxox[abeoprs]-[\w-]{8,} | \b(?:npm_|pypi-|dop_v1_|ya29\.)[\w-]{16,}
    | \b(?:AKIA|ASIA|AROA)[0-9A-Z]{16}\b | \bAIza[\w-]{30,} | \bSG\.[\w-]{16,}\.[\w-]{16,}
    | \beyJ[\w-]{8,}\.[\w.-]{8,}                  # a JSON web token
    | -----BEGIN\ [A-Z ]*PRIVATE\ KEY(?:.*?-----END\ [A-Z ]*KEY-----|[-A-Za-z0-9+/=\s\\]*)
    | \bAGE-SECRET-KEY-1\w+
    | \b[a-z][a-z0-9+.-]{0,20}://(?!git@)[^\s/@'"]+@   # an address with a password, or a token
    | (?:hooks\.slack\.com/services|discord(?:app)?\.com/api/webhooks)/[\w/-]{8,}
    | (?<=[?&])(?:sig|signature|token|\w+[-_]token|key|x-amz-\w+(?:-token)?)=[^\s&'"]{6,}
    | \b(?:Bearer|Basic)\ [\w.+/=-]{8,} | \bAuthorization['"]?[:=]\s*['"]?[^\s'"][^'"\n]{7,}
    | (?:passw(?:or)?d|passphrase|secret|(?:api|access|account|private|secret)[-_]?key)
      ["']?\s*[:=]\s*["']?(?!\$|["'\s])[^\s"',;}]{3,}
    | token["']?\s*[:=]\s*["']?(?=[\w.+/-]*\d)[\w.+/-]{12,}
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_AWS_KEY = re.compile(
    r"(?<![\w/+=-])(?=\S{0,39}[a-z])(?=\S{0,39}[A-Z])(?=\S{0,39}\d)[A-Za-z0-9][A-Za-z0-9/+]{39}"
    r"(?![\w/+=-])"
)
"""The secret key of AWS: forty letters, digits, slashes and plus signs, of either case."""
_BODY = re.compile(
    r"(?:(?<![\w+/=.-])|(?<=\\n))(?:[A-Za-z0-9+/]{60,}={0,2}(?:\\r|\\n|\s)*)+"
    r"(?:[A-Za-z0-9+/]{1,63}={1,2}(?![\w+/=])|[A-Za-z0-9+/]*\s*-----END[A-Z ]*-----)?"
)
"""Lines of base64, as the body of a private key has them, without its first line too."""
_RUN = re.compile(r"[A-Za-z0-9_+=-]{24,}")
_MASK = re.compile(r"(0x)?[0-9a-fA-F]+|[\d_-]+")

_SECRET_NAME = re.compile(
    r"(?:[a-z0-9]+_)*(?:\w*pass(?:word|wd|wort|phrase|code|_?key)?|\w*pwd|pw|\w*pass_(?:phrase|word|code)"
    r"|\w*(?:passphrase|secrets?|credentials?)|creds?|\w*jwt|bearer|cookies?|otp|pin|pat|apikey|login|sas|dsn"
    r"|webhook|session_?id|\w*auth|authorization|(?:api|secret|access|private|ssh|hf)_?key)"
)
"""A name, in small letters, that ends in a word for a secret: its value is none by no means."""
_TOKEN_NAME = re.compile(
    r"(?:\w+_)?(?:hub|hf|huggingface|auth|access|api|refresh|session|wandb|jwt|id|bot|github)_?token|token"
)
_KNOWN = """
activation algorithm architecture args augmentation backend benchmark bias border bucket category
checkpoint checkpoints class classes collator color column columns config configs corpus criterion
dataset datasets debug device devices dim direction dir dirs distribution domain dtype dynamo
encoding engine env epoch eval experiment ext extension family feature features field fields file
filename files filter folder format framework fsdp fusion group groups heads implementation impl
init initialization instruction interface interpolation kernel kind kwargs label labels lang
language languages layer layers length level limit loader logger logging loss map mapping markers
mask mem method metric metrics mixture mode model models module modules name names node nodes
norm normalization objective objectives op optim optimizer options order ordering out output
padding partition path paths pattern pipeline place places policy pooling pooler precision prefix
preset priority problem processor profile project prompt quant quantization reduction repr role
sampler sampling schedule scheduler score scope seed shape side size sort source space species
split splits stage strategy style subset suffix tag tags target targets task tasks teacher template
text tokenizer trainer trainers transform type types unit variant verbosity version weights with
wandb replica context parameters storage save
"""
_LAST = frozenset(_KNOWN.split())
"""Last words of names whose values anybody may read: ``--optim``, ``--lr_scheduler_type``."""
_WHOLE = """
ddp_backend deepspeed fp16_opt_level fsdp hub_revision image_key jit label_key metric_for_best_model
model_revision report_to resume_from_checkpoint revision code_revision run_id sort_key text_key
tf32 tp tpu_name rdzv_endpoint rdzv_id stopping_criteria
model_id hub_model_id space_id bucket_id static_space_id trackio_space_id trackio_bucket_id
trackio_static_space_id eos_token pad_token bos_token unk_token mask_token image_token
cls_token sep_token
"""
_EXACT = frozenset(_WHOLE.split())
"""Whole names of the same kind; a revision is a long hexadecimal number."""
_PERSONAL = frozenset(
    {"user", "users", "username", "login", "account", "session", "pass", "email", "host"}
)
_NUMBER = re.compile(
    r"(?:[-+]?\.?\d[\d.,:_/x%-]*(?:e[-+]?\d+)?(?:[a-z]{1,3})?|0x[0-9a-f]{1,40}|[-+]?(?:inf|nan))"
    r"|[\[(]?[-+\d., e]+[\])]?|\[?0x[0-9a-f,x]+\]?",
    re.IGNORECASE,
)
_PATH = re.compile(
    r"(?:~|\.{1,2})?/[^\n\r@]*|\.{1,2}|[\w.+-]{1,60}(?:/[\w.+-]{1,60})+/?"
    r"|[\w.+-]+\.(?:py|ipynb|json|jsonl|csv|tsv|txt|parquet|arrow|ya?ml|toml|pth?|bin|safetensors|model"
    r"|gz|zip|zst|xz|bz2|tar|pkl|np[yz]|h5|hdf5|onnx|log|db|sqlite|ckpt|conf|cfg|ini|sh|md|html|xml|so"
    r"|pem|key|crt|wav|jpe?g|png)"
    r"|[a-z][a-z0-9+]{1,10}://(?:git@)?[\w.-]+(?::\d+)?(?:/[\w./-]*)?",
    re.IGNORECASE,
)
MOST_PATH = 4096
"""Bytes of a path (PATH_MAX in linux/limits.h)."""
_NO_SECRET = re.compile(
    r"\W{0,4}|true|false|yes|no|none|null|auto|<[^<>]*>|\[[A-Z0-9_]+\]", re.IGNORECASE
)
_ORDINARY = re.compile(
    r"(?=[^_-]*[aeiouy])[A-Z]?[a-z]{0,12}(?:[-_](?=[^_-]*[aeiouy])[A-Z]?[a-z]{0,12}){0,3}"
)
"""A word of a language, or some: what people choose from. Longer runs of letters are passwords."""
_TELLING = re.compile(r"TOKEN|KEY|SECRET|PASS|PWD|CREDENTIAL|JWT|BEARER|OTP|COOKIE")
_ASSIGNED = re.compile(r"[+~]*(?:[\w@/-]+\.)*(?P<name>[A-Za-z_][\w-]*)=(?P<value>\S*)")
"""``NAME=value``, as ``mpirun -x`` and ``env`` take it, or ``group.name=value`` as Hydra does."""


_VARIABLES = """
ACCELERATE_CPU_AFFINITY ACCELERATE_DEBUG_MODE ACCELERATE_DISTRIBUTED_TYPE ACCELERATE_DYNAMO_BACKEND
ACCELERATE_GRADIENT_ACCUMULATION_STEPS ACCELERATE_LOG ACCELERATE_LOG_LEVEL
ACCELERATE_MIXED_PRECISION ACCELERATE_TORCH_DEVICE ACCELERATE_USE_CPU ACCELERATE_USE_DEEPSPEED
ACCELERATE_USE_FSDP ACCELERATE_USE_IPEX ACCELERATE_USE_MEGATRON_LM ACCELERATE_USE_XPU

ATEN_CPU_CAPABILITY ATEN_NUM_THREADS

CCL_ALLGATHERV CCL_ALLREDUCE CCL_ALLTOALL CCL_ALLTOALLV CCL_ATL_HMEM CCL_ATL_SHM
CCL_ATL_SYNC_COLL CCL_ATL_TRANSPORT CCL_BARRIER CCL_BCAST CCL_CONFIGURATION CCL_FUSION
CCL_FUSION_BYTES_THRESHOLD CCL_HCOLL CCL_ITT_LEVEL CCL_KVS_CONNECTION_TIMEOUT CCL_KVS_IFACE
CCL_KVS_IP_PORT CCL_KVS_MODE CCL_LOCAL_RANK CCL_LOCAL_SIZE CCL_LOG_LEVEL CCL_MAX_SHORT_SIZE
CCL_MNIC CCL_MNIC_COUNT CCL_MNIC_NAME CCL_MPI_LIBRARY_PATH CCL_OFI_LIBRARY_PATH CCL_PRIORITY
CCL_PROCESS_LAUNCHER CCL_REDUCE CCL_REDUCE_SCATTER CCL_ROOT CCL_SPIN_COUNT CCL_WORKER_AFFINITY
CCL_WORKER_COUNT CCL_WORKER_MEM_AFFINITY CCL_WORKER_OFFLOAD CCL_WORKER_WAIT CCL_YIELD

DNNL_CPU_ISA_HINTS DNNL_DEFAULT_FPMATH_MODE DNNL_MAX_CPU_ISA DNNL_PRIMITIVE_CACHE_CAPACITY
DNNL_VERBOSE ONEDNN_CPU_ISA_HINTS ONEDNN_DEFAULT_FPMATH_MODE ONEDNN_MAX_CPU_ISA
ONEDNN_PRIMITIVE_CACHE_CAPACITY ONEDNN_VERBOSE LRU_CACHE_CAPACITY DS_ACCELERATOR TF32_OVERRIDE

FI_LOG_LEVEL FI_PROVIDER FI_PROVIDER_PATH FI_TCP_IFACE FI_SOCKETS_IFACE FI_VERBS_IFACE
FI_PSM2_DISCONNECT FI_UNIVERSE_SIZE
GLOO_DEVICE_TRANSPORT GLOO_SOCKET_IFNAME TP_SOCKET_IFNAME

GOMP_CPU_AFFINITY GOMP_SPINCOUNT GOMP_STACKSIZE KMP_AFFINITY KMP_BLOCKTIME
KMP_DUPLICATE_LIB_OK KMP_FORKJOIN_BARRIER_PATTERN KMP_FORKJOIN_BARRIER KMP_HW_SUBSET
KMP_INIT_AT_FORK KMP_LIBRARY KMP_PLAIN_BARRIER KMP_PLAIN_BARRIER_PATTERN KMP_REDUCTION_BARRIER
KMP_REDUCTION_BARRIER_PATTERN KMP_SETTINGS KMP_STACKSIZE KMP_TPAUSE KMP_WARNINGS
MKL_CBWR MKL_DEBUG_CPU_TYPE MKL_DOMAIN_NUM_THREADS MKL_DYNAMIC MKL_ENABLE_INSTRUCTIONS
MKL_INTERFACE_LAYER MKL_NUM_THREADS MKL_THREADING_LAYER MKL_VERBOSE
NUMEXPR_MAX_THREADS NUMEXPR_NUM_THREADS OPENBLAS_CORETYPE OPENBLAS_NUM_THREADS
OMP_CANCELLATION OMP_DISPLAY_AFFINITY OMP_DISPLAY_ENV OMP_DYNAMIC OMP_MAX_ACTIVE_LEVELS OMP_NESTED
OMP_NUM_THREADS OMP_PLACES OMP_PROC_BIND OMP_SCHEDULE OMP_STACKSIZE OMP_THREAD_LIMIT
OMP_WAIT_POLICY VECLIB_MAXIMUM_THREADS

I_MPI_ADJUST_ALLREDUCE I_MPI_ASYNC_PROGRESS I_MPI_DEBUG I_MPI_FABRICS I_MPI_HYDRA_BOOTSTRAP
I_MPI_HYDRA_IFACE I_MPI_OFI_LIBRARY_INTERNAL I_MPI_OFI_PROVIDER I_MPI_PIN I_MPI_PIN_CELL
I_MPI_PIN_DOMAIN I_MPI_PIN_MODE I_MPI_PIN_ORDER I_MPI_PIN_PROCESSOR_LIST
I_MPI_PIN_RESPECT_CPUSET I_MPI_PIN_RESPECT_HCA I_MPI_PMI_LIBRARY I_MPI_ROOT I_MPI_SHM
MPICH_ASYNC_PROGRESS MPICH_VERSION_DISPLAY MPI_LOCALNRANKS MPI_LOCALRANKID
OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE OMPI_COMM_WORLD_NODE_RANK
OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_MCA_btl OMPI_MCA_hwloc_base_binding_policy
OMPI_MCA_orte_bind_to_core OMPI_MCA_rmaps_base_mapping_policy OMPI_UNIVERSE_SIZE OMPI_VERSION
OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM PRTE_MCA_rmaps_default_mapping_policy
PRTE_MCA_hwloc_default_binding_policy PMI_RANK PMI_SIZE PMIX_RANK PMIX_VERSION

PET_LOCAL_ADDR PET_MASTER_ADDR PET_MASTER_PORT PET_MAX_RESTARTS PET_NNODES PET_NODE_RANK
PET_NPROC_PER_NODE PET_RDZV_BACKEND
SLURM_CPUS_ON_NODE SLURM_CPUS_PER_TASK SLURM_CPU_BIND SLURM_CPU_BIND_LIST SLURM_CPU_BIND_TYPE
SLURM_CPU_BIND_VERBOSE SLURM_DISTRIBUTION SLURM_HINT SLURM_JOB_CPUS_PER_NODE SLURM_JOB_NUM_NODES
SLURM_LOCALID SLURM_MEM_BIND SLURM_MEM_BIND_TYPE SLURM_MEM_PER_CPU SLURM_MEM_PER_NODE
SLURM_MPI_TYPE SLURM_NNODES SLURM_NODEID SLURM_NPROCS SLURM_NTASKS SLURM_NTASKS_PER_NODE
SLURM_NTASKS_PER_SOCKET SLURM_PROCID SLURM_STEP_NUM_NODES SLURM_STEP_NUM_TASKS
SLURM_STEP_TASKS_PER_NODE SLURM_TASKS_PER_NODE SLURM_THREADS_PER_CORE SLURM_WHOLE
TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_RUN_ID
TORCHELASTIC_USE_AGENT_STORE TORCHINDUCTOR_CPP_WRAPPER TORCHINDUCTOR_FREEZING
TORCHINDUCTOR_MAX_AUTOTUNE TORCH_ALLOW_TF32_CUBLAS_OVERRIDE TORCH_CPP_LOG_LEVEL
TORCH_CPU_ALLOCATOR TORCH_CPU_CAPABILITY TORCH_DISTRIBUTED_DEBUG TORCH_LOGS
TORCH_SHOW_CPP_STACKTRACES
GROUP_RANK GROUP_WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT NODE_RANK RANK
ROLE_RANK ROLE_WORLD_SIZE WORLD_SIZE

CONDA_PREFIX CXX VIRTUAL_ENV LD_LIBRARY_PATH LD_PRELOAD GLIBC_TUNABLES MALLOC_ARENA_MAX MALLOC_CONF
TCMALLOC_MAX_TOTAL_THREAD_CACHE_BYTES TCMALLOC_RELEASE_RATE CUDA_VISIBLE_DEVICES
KUBERNETES_SERVICE_HOST TOKENIZERS_PARALLELISM container
HF_HOME HF_HUB_CACHE LANG LC_ALL LC_CTYPE PYTHONPATH TMPDIR TRANSFORMERS_CACHE
"""
KNOWN_VARIABLES = frozenset(_VARIABLES.split())
"""Variables that concern training, and are known to hold no secret."""


def looks_secret(text: str) -> bool:
    """Whether a text holds what can only be a secret, by its shape."""
    return any(shape.search(text) for shape in (_SHAPES, _AWS_KEY)) or _has_body(text)


def _has_body(text: str) -> bool:
    return any(_is_body(found) for found in _BODY.finditer(text))


def _is_body(found: re.Match[str]) -> bool:
    """Not a long path: of base64 every 64th letter is a slash; nor a digest, of one case."""
    run = found[0]
    mixed = re.search(r"[a-z]", run) and re.search(r"[A-Z]", run) and re.search(r"\d", run)
    return bool(mixed) and run.count("/") * 16 <= len(run)


def _ordinary(name: str, value: str) -> bool:
    """A word of a language behind a flag that says nothing of a secret, and is no single letter."""
    return len(name) > 2 and not _TELLING.search(name.upper()) and bool(_ORDINARY.fullmatch(value))


def may_show(name: str, value: str, choices: Collection[str] = (), *, flag: bool = False) -> bool:
    """Whether a value may be written down: the rule for flags, variables and keys alike.

    ``choices`` are values that the script itself names (``script.choices``). A ``flag`` may take
    an ordinary word, which a file that has to run as it is then holds.
    """
    if not value or re.fullmatch(r"\$\{\w+\}", value) or name in KNOWN_VARIABLES:
        return not looks_secret(value)
    if looks_secret(value):
        return False
    words = re.findall(r"[a-z0-9]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower())
    whole = "_".join(words[-4:])[-64:]
    plain = _NO_SECRET.fullmatch(value) is not None
    if plain or _SECRET_NAME.fullmatch(whole) or _TOKEN_NAME.fullmatch(whole):
        return plain or (
            bool(_TOKEN_NAME.fullmatch(whole)) and bool(re.fullmatch(r"\d{0,3}", value))
        )
    if whole in _EXACT or value in choices or _NUMBER.fullmatch(value):
        return True
    if looks_random(value):
        return False
    personal = _PERSONAL & set(words)
    if words[-1:] and not personal and (words[-1] in _LAST or (flag and _ordinary(name, value))):
        return True
    return len(value) < MOST_PATH and _PATH.fullmatch(value) is not None


def without_secrets(text: str, variables: Mapping[str, str]) -> str:
    """A text that a script wrote, without what looks like a secret, and without the values of
    the variables that may not be shown.
    """
    values = {
        value
        for name, value in variables.items()
        if len(value) > 5 and not may_show(name, value) and _is_worth_hiding(name, value)
    }
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    text = _BODY.sub(lambda found: HIDDEN if _is_body(found) else found[0], text)
    return _AWS_KEY.sub(HIDDEN, _SHAPES.sub(HIDDEN, text))


def _is_worth_hiding(name: str, value: str) -> bool:
    """Not a word of a language, which would go from every line that a script writes."""
    telling = _TELLING.search(name.upper()) or re.search(
        r"(?:^|_)(?:AUTH|PW|PAT|DSN)$", name.upper()
    )
    odd = re.search(r"\d", value) and re.search(r"[A-Za-z]", value) and len(value) > 7
    return not value.startswith("/") and bool(telling or odd)


def looks_random(text: str) -> bool:
    """Whether a text holds a long run of letters and digits, as keys do. Paths are exempt.

    Masks of CPUs are long too: hexadecimal digits after ``0x``.
    """
    if text.startswith("/"):
        return False
    runs = (run for run in _RUN.findall(text) if not (_MASK.fullmatch(run) and _is_mask(run)))
    return any(re.search(r"\d", run) and re.search(r"[A-Za-z]", run) for run in runs)


def _is_mask(run: str) -> bool:
    return run.startswith("0x") or not re.search(r"[A-Za-z]", run)


def hide_arguments(
    argv: Sequence[str], *, own: int = 1, choices: Collection[str] = ()
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The words of a command with ``${NAME}`` for each value that may not be shown, and those.

    The words from ``own`` on are the script's; the flags before them are a launcher's, all
    known, so that of those only a value whose name or shape says so is a secret.
    """
    words, found = list(argv[:1]), dict[str, str]()
    for position in range(1, len(argv)):
        last = argv[position - 1]
        if position > 1 and argv[position - 2] in ("-env", "-genv"):  # mpirun -genv NAME value
            last = f"--{last}="
        before, name, value = _parted(argv[position], last)
        assigned = before != "" or last.endswith("=")
        if position < own and name and not assigned and not _says_secret(name):
            shown = not looks_secret(value)
        else:
            shown = (
                may_show(name, value, choices, flag=not assigned or before.startswith("-"))
                if name
                else not looks_secret(value)
            )
        if shown:
            words.append(argv[position])
        else:
            variable = _variable(name, value, found)
            found[variable] = value
            words.append(f"{before}${{{variable}}}")
    return tuple(words), found


def _says_secret(name: str) -> bool:
    whole = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[-64:]
    return bool(_SECRET_NAME.fullmatch(whole) or _TOKEN_NAME.fullmatch(whole))


def _parted(word: str, last: str) -> tuple[str, str, str]:
    """What stands before a value in a word, the name that it belongs to ("" for none), and it."""
    if re.match(r"-{1,4}(?!-)", word) and not _NUMBER.fullmatch(word):
        flag, equals, value = word.partition("=")
        return (f"{flag}=", flag.strip("-"), value) if equals else ("", "", word)
    name = last.strip("-=") if last.startswith("-") and ("=" not in last or last[-1] == "=") else ""
    assigned = _ASSIGNED.fullmatch(word)
    if assigned is None or (name and _says_secret(name)):
        return "", name, word
    return word[: assigned.start("value")], assigned["name"], assigned["value"]


def _variable(flag: str, value: str, taken: dict[str, str]) -> str:
    """A name for the variable that holds the value: the flag's, in capital letters."""
    name = re.sub(r"\W+", "_", flag.strip("-")).upper()
    if not re.fullmatch(r"[A-Z][A-Z0-9_]*", name) or not _TELLING.search(name):
        name = f"{name or 'TRAIN'}_SECRET" if name[:1].isalpha() or not name else "TRAIN_SECRET"
    unique, count = name, 2
    while taken.get(unique, value) != value:
        unique, count = f"{name}_{count}", count + 1
    return unique
