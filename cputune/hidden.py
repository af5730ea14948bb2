"""Values that must not be written down: tokens, passwords, keys, addresses that hold one.

A value is hidden where its name says so (``--password``, ``HF_TOKEN``), where it has the shape of a
key that is known, and where it is a long run of letters of both cases and digits. What a script
writes is cleaned of the values of such variables, and by shape.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

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
_BASE64 = re.compile(r"(?:(?<![\w+/=.-])|(?<=\\n))[A-Za-z0-9+/]{40,}={0,2}")
"""A key of AWS, or a line of a private key."""
_RUN = re.compile(r"[A-Za-z0-9]{16,}")

_SECRET_NAME = re.compile(
    r"(?:.*_)?(?:\w*(?:pass|password|passwd|passphrase|secrets?|credentials?|jwt|pwd|auth)"
    r"|pw|creds?|bearer|cookies?|otp|apikey|login|sas|dsn|webhook|authorization"
    r"|pass_?(?:code|key|phrase|word)|session_?id|(?:api|secret|access|private|ssh|hf|wandb)_key)"
    r"|(?:.*_)?(?:hub|hf|huggingface|auth|access|api|refresh|session|wandb|jwt|id|bot|github)_token"
    r"|token|pin|pat"
)
"""A name, in small letters, that ends in a word for a secret."""
_PERSONAL = frozenset({"user", "users", "username", "account", "email"})
_NO_SECRET = re.compile(
    r"\W{0,4}|true|false|yes|no|none|null|auto|<[^<>]*>|\[[A-Z0-9_]+\]|\$\{\w+\}", re.IGNORECASE
)
_NUMBER = re.compile(r"[-+]?\.?\d[\d.,:e+-]*")
_ASSIGNED = re.compile(r"[+~]*(?:[\w@/-]+\.)*(?P<name>[A-Za-z_][\w-]*)=(?P<value>\S*)")
"""``NAME=value``, as ``mpirun -x`` and ``env`` take it, or ``group.name=value`` as Hydra does."""

_FAMILIES = re.compile(
    r"(?:ACCELERATE|ATEN|CCL|DNNL|FI|GLOO|GOMP|I_MPI|KMP|MALLOC|MKL|MPICH|MPI|NUMEXPR|OMP|OMPI|ONEDNN"
    r"|OPENBLAS|PET|PMI|PMIX|PRTE|TCMALLOC|TORCHELASTIC|TORCHINDUCTOR|TORCH|VECLIB)_[A-Za-z0-9_]+"
    r"|SLURM_(?:CPUS?|DISTRIBUTION|HINT|JOB_CPUS|JOB_NUM_NODES|LOCALID|MEM|MPI_TYPE|NNODES|NODEID"
    r"|NPROCS|NTASKS|PROCID|STEP_NUM|STEP_TASKS|TASKS|THREADS|WHOLE)(?:_\w+)?"
)
_OTHERS = """
CONDA_PREFIX CUDA_VISIBLE_DEVICES CXX DS_ACCELERATOR GLIBC_TUNABLES GROUP_RANK GROUP_WORLD_SIZE
HF_HOME HF_HUB_CACHE KUBERNETES_SERVICE_HOST LANG LC_ALL LC_CTYPE LD_LIBRARY_PATH LD_PRELOAD
LOCAL_RANK LOCAL_WORLD_SIZE LRU_CACHE_CAPACITY MASTER_ADDR MASTER_PORT NODE_RANK PYTHONPATH RANK
ROLE_RANK ROLE_WORLD_SIZE TF32_OVERRIDE TMPDIR TOKENIZERS_PARALLELISM TP_SOCKET_IFNAME
TRANSFORMERS_CACHE VIRTUAL_ENV WORLD_SIZE container
"""
_KNOWN = frozenset(_OTHERS.split())


def concerns_training(name: str) -> bool:
    """Whether a variable is one of what trains and launches, and no secret by its name."""
    return name in _KNOWN or (bool(_FAMILIES.fullmatch(name)) and not _says_secret(name))


def looks_secret(text: str) -> bool:
    """Whether a text holds what can only be a secret, by its shape."""
    return bool(_SHAPES.search(text)) or any(map(_is_key, _BASE64.finditer(text)))


def _is_key(found: re.Match[str]) -> bool:
    """Not a long path: of base64 every 64th letter is a slash; nor a digest, of one case."""
    return _is_mixed(found[0]) and found[0].count("/") * 16 <= len(found[0])


def _is_mixed(run: str) -> bool:
    return all(re.search(kind, run) for kind in ("[a-z]", "[A-Z]", r"\d"))


def looks_random(text: str) -> bool:
    """Whether a text holds a long run of letters and digits, as keys do. Paths are exempt.

    Masks of CPUs are long too: hexadecimal digits after ``0x``.
    """
    if text.startswith("/"):
        return False
    runs = (run for run in _RUN.findall(text) if not run.startswith("0x"))
    return any(
        _is_mixed(run) or (len(run) >= 32 and re.search(r"\d", run) and re.search("[a-z]", run))
        for run in runs
    )


def _words(name: str) -> list[str]:
    """``HubToken``, ``hub-token`` and ``HUB_TOKEN`` alike."""
    return re.findall(r"[a-z0-9]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower())


def _says_secret(name: str) -> bool:
    return bool(_SECRET_NAME.fullmatch("_".join(_words(name)[-4:])[-64:]))


def _may_show(name: str, value: str) -> bool:
    """Whether a value may be written down: the rule for flags and variables alike."""
    if _NO_SECRET.fullmatch(value):
        return True
    words = _words(name)
    if looks_secret(value) or _says_secret(name) or _PERSONAL.intersection(words):
        return False
    return not name or "revision" in words or not looks_random(value)


def without_secrets(text: str, variables: Mapping[str, str]) -> str:
    """A text that a script wrote, without what looks like a secret, and without the values of
    the variables that may not be shown.
    """
    values = {
        value
        for name, value in variables.items()
        if len(value) > 5 and not value.startswith("/")
        if not (_PERSONAL.intersection(_words(name)) or _may_show(name, value))
    }
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    text = _BASE64.sub(lambda found: HIDDEN if _is_key(found) else found[0], text)
    return _SHAPES.sub(HIDDEN, text)


def hide_arguments(argv: Sequence[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """The words of a command with ``${NAME}`` for each value that may not be shown, and those."""
    words, found = list(argv[:1]), dict[str, str]()
    for position in range(1, len(argv)):
        last = argv[position - 1]
        if position > 1 and argv[position - 2] in ("-env", "-genv"):  # mpirun -genv NAME value
            last = f"--{last}="
        before, name, value = _parted(argv[position], last)
        if _may_show(name, value):
            words.append(argv[position])
        else:
            variable = _variable(name, value, found)
            found[variable] = value
            words.append(f"{before}${{{variable}}}")
    return tuple(words), found


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
    if not re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
        name = "TRAIN"
    if not re.search("TOKEN|KEY|SECRET|PASS|PWD|CREDENTIAL|JWT|BEARER|OTP|COOKIE", name):
        name += "_SECRET"
    unique, count = name, 2
    while taken.get(unique, value) != value:
        unique, count = f"{name}_{count}", count + 1
    return unique
