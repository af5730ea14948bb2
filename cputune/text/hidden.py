"""Hides values that must not be stored or shown: tokens, passwords, keys, credentials in addresses.

Of the arguments of a script or a launcher, only what a name or a shape marks as a secret is hidden.
Variables and the output of scripts follow a stricter rule: every name that contains a word for a
secret counts, and so do commands that carry a password (``sshpass -p``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import count, pairwise

# The replacement of such a value.
HIDDEN = "(hidden)"

_SHAPES = re.compile(
    r"""
    \bhf_[A-Za-z0-9]{8,}                          # Hugging Face
    | \bgh[opusr]_[A-Za-z0-9]{16,} | \bgithub_pat_\w{16,} | \bglpat-[\w-]{16,}
    | \bsk-[\w-]{16,} | \bxox[abeoprs]-[\w-]{8,} | \b(?:npm_|pypi-|dop_v1_|ya29\.)[\w-]{16,}
    | \b(?:hvs|hvb)\.[\w-]{16,} | \bdapi[0-9a-f]{32}
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
    | \bsshpass\s+-p\s*\S+ | \bplink\b[^\n]*?\s-pw\s+\S+ | \bcurl\b[^\n]*?\s-u\s*[^\s:]+:\S+
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
# A key of AWS, or a line of a private key.
_BASE64 = re.compile(r"(?:(?<![\w+/=.-])|(?<=\\n))[A-Za-z0-9+/]{40,}={0,2}")
_RUN = re.compile(r"[A-Za-z0-9]{16,}")

# An argument's name, in lower case, that ends in a word for a secret: ``hub_token``.
#
# ``pad_token``, ``sort_key`` and ``num_pass`` do not match.
_ARGUMENT = re.compile(
    r"(?:.*_)?(?:\w*(?:password|passwd|passphrase|secrets?|credentials?|apikey|jwt|pwd)|auth|pw"
    r"|creds?|bearer|cookies?|otp|sas|dsn|webhook|authorization|pass_?(?:code|key|phrase|word)"
    r"|session_?id"
    r"|(?:api|secret|access|private|ssh|hf|wandb|account|encryption|signing|license|master|auth"
    r"|admin|comet|neptune|openai|anthropic|azure|aws|clearml|kaggle|swanlab|deploy)_?keys?"
    r"|(?:hub|hf|huggingface|auth|access|api|refresh|session|wandb|jwt|id|bot|git|github|gitlab"
    r"|slack|vault|oauth|bearer|telegram|discord|personal|neptune|comet|kaggle|databricks|azure|aws"
    r"|registry|secret|security|modelscope|clearml|sas|sso|mfa|ci|deploy|npm|pypi)_?token"
    r"|pswd|psw|passw|mfa|totp|(?:otp|mfa|totp|pin)_?code|conn(?:ection)?_?str(?:ing)?"
    r"|(?:git|github|gitlab|gh|ado|azure|devops|hub|hf|my|user)_?pat|(?:user|login|sim|device)_?pin)"
    r"|token"
)
# Words before ``pass`` that make it a count, not a password.
_COUNTED = frozenset(["n", "num", "one", "two", "single", "multi", "first", "forward", "backward"])
# A variable's name, in lower case, that contains a word for a secret: ``slack_token``.
_VARIABLE = re.compile(
    r".*(?:key|keys|token|pass|pwd|auth|pw|pat|sas|dsn|creds?|connection_string)"
    r"|(?:.*_)?\w*(?:passw(?:or)?ds?|passphrase|passcode|passkey|secrets?|credentials?|cookies?|jwt"
    r"|bearer|otp|webhook|token|auth_config)(?:_.*)?"
)
_FOLDERS = frozenset(["PWD", "OLDPWD"])
# Signs of a pattern: ``--pat '*.txt'`` is one, and no personal access token.
_ANY_OF = re.compile(r"[*?\[\]{}()^$|\\]")
# Words with numbers that name a model, a data set, a part or a precision: ``resnet50``.
_MODEL = re.compile(
    r"(?:\w*net|vgg|gpt|bert|vit|t|llama|qwen|opt|yolo|swin|deit|clip|xlm|mt|squad|fold|gpu|cpu|bf"
    r"|fp|int|float|uint|v|part|run|exp|stage|phase|seed)\w{0,3}?\d+[a-z]{0,2}",
    re.IGNORECASE,
)
# ``-pVALUE``, as database clients take a password.
_SHORT = re.compile(r"-[pP](.{6,})")
_NO_SECRET = re.compile(
    r"\W{0,4}|true|false|yes|no|none|null|auto|<[^<>]*>|\[[A-Z0-9_]+\]|\$\{?\w+\}?", re.IGNORECASE
)
# A path of a file. The place of a key is not a secret.
_PATH = re.compile(r"(?:~|\.{0,2})(?:/[\w.@+~-]+){2,}/?|[\w./~-]+\.(?:json|pem|ya?ml|txt|crt|key)")
# A name with its password: ``jane:letmein``.
_PAIR = re.compile(r"[^\s:/]+:(?!\d+$)[^\s:/]{3,}")
# Words in the names of arguments whose values are long and random, but not secret.
_DIGESTS = frozenset(
    ["revision", "commit", "sha", "sha256", "md5", "hash", "digest", "checksum", "id", "ref"]
)
_FLAG = re.compile(r"--[A-Za-z][\w.-]*|-[A-Za-z](?:\d+|[A-Za-z_-]*)")
# ``--name=value``; ``NAME=value`` of ``mpirun -x``; ``group.name=value`` of Hydra.
_ASSIGNED = re.compile(
    r"(?P<before>--?|[+~]*(?:[\w@/-]+\.)*)(?P<name>[A-Za-z_][\w.-]*)=(?P<value>[^=].*)", re.DOTALL
)
_SECRET_VARIABLE = re.compile(
    r"""(?P<said>\b(?P<name>[A-Z][A-Z0-9_]{2,127})(?:=|["']\s*:\s*))"""
    r"""(?P<value>"[^"\n]*"|'[^'\n]*'|[^\s"',;]+)"""
)
_SECRET_ARGUMENT = re.compile(
    r"""(?P<said>(?<![\w-])--(?P<name>[A-Za-z][\w.-]{1,63})(?:[ =]|["'],\s*["']))"""
    r"""(?P<value>(?![A-Z_]+\b|\[)[^\s"',\]]{3,})"""
)
# The password in I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS. A short number is ssh's port.
_EXTRA = re.compile(r"(?:^|\s)-p\s*(?!\d{1,5}(?:\s|$))\S+")


def looks_secret(text: str) -> bool:
    """Whether a text contains something that has the shape of a secret."""
    if _SHAPES.search(text) or any(map(_is_key, _BASE64.finditer(text))):
        return True
    return any(is_secret_name(match["name"]) for match in _SECRET_ARGUMENT.finditer(text))


def _is_key(match: re.Match[str]) -> bool:
    """Whether a base64 run is a key. A path has more slashes, a digest has only one case."""
    return _is_mixed(match[0]) and match[0].count("/") * 16 <= len(match[0])


def _is_mixed(run: str) -> bool:
    return all(re.search(kind, run) for kind in ("[a-z]", "[A-Z]", r"\d"))


def looks_random(text: str) -> bool:
    """Whether a text contains a long run of letters and digits, as keys do, except paths and CPU
    masks.
    """
    return not text.startswith("/") and any(_is_mixed(run) or _is_hex(run) for run in _runs(text))


def _runs(text: str) -> list[str]:
    runs: list[str] = []
    for run in _RUN.findall(text):
        if not run.startswith("0x"):
            runs.append(run)
    return runs


def _is_hex(run: str) -> bool:
    return len(run) >= 32 and bool(re.search(r"\d", run) and re.search("[a-z]", run))


def _is_shuffled(run: str) -> bool:
    """Whether kinds of characters alternate more often than in a name.

    Of 62 letters and digits drawn at random, 0.62 of the neighbours are of different kinds; in
    ``Qwen2VL7BInstruct`` 0.38.
    """
    if not _is_mixed(run):
        return False
    kinds = [(letter.isdigit(), letter.isupper()) for letter in run]
    changes = sum(kind != other for kind, other in pairwise(kinds))
    return changes >= 0.5 * (len(run) - 1)


def _words(name: str) -> list[str]:
    """Split ``HubToken``, ``hub-token`` and ``HUB_TOKEN`` into the same words."""
    return re.findall(r"[a-z0-9]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower())


def is_secret_name(name: str) -> bool:
    """Whether an argument's name marks its value as a secret: ``hub-token``."""
    parts = _words(name)[-4:]
    if parts[-1:] == ["pass"]:
        return _COUNTED.isdisjoint(parts[-2:-1])
    return bool(_ARGUMENT.fullmatch("_".join(parts)[-64:]))


def _looks_like_a_password(value: str) -> bool:
    """Whether a word behind ``-p`` is neither a number, a path, a name nor a precision."""
    if len(value) < 6 or "/" in value or re.fullmatch(r"[\d.,:e+-]+", value):
        return False
    if re.search(r"[!@#$%^&*~]", value):
        return True
    mixed = re.fullmatch(r"\w+", value) and re.search(r"\d", value) and re.search("[A-Za-z]", value)
    return bool(mixed) and "_" not in value and not _MODEL.fullmatch(value)


def _is_secret_by_short_name(name: str, value: str) -> bool:
    """Whether a value is one under a name that also means something else: p, pat, pin."""
    match name:
        case "p":
            return _looks_like_a_password(value)
        case "pat":
            return len(value) >= 8 and not _ANY_OF.search(value) and not _PATH.fullmatch(value)
        case "pin":
            return bool(re.fullmatch(r"\d{4,12}", value)) or _looks_like_a_password(value)
        case "u" | "userpass":
            return bool(_PAIR.fullmatch(value))
    return False


def is_secret_variable_name(name: str) -> bool:
    """Whether a variable's name marks its value as a secret: ``SLACK_TOKEN``."""
    joined = "_".join(_words(name)[-8:])[-64:]
    return name not in _FOLDERS and bool(_VARIABLE.fullmatch(joined))


def _is_secret_argument(name: str, value: str) -> bool:
    if _NO_SECRET.fullmatch(value):
        return False
    parts = _words(name)
    if is_secret_name(name):
        if parts == ["pwd"]:
            return not value.startswith("/")
        is_place = parts[-1] in ("key", "keys", "credentials", "creds", "auth")
        return not (is_place and _PATH.fullmatch(value))
    if parts[-1:] in (["user"], ["login"], ["account"]) and _PAIR.fullmatch(value):
        return True
    if looks_secret(value):
        return True
    if value.startswith("/") or not _DIGESTS.isdisjoint(parts):
        return False
    runs = _runs(value)
    return any(map(_is_shuffled, runs)) or ("/" not in value and any(map(_is_hex, runs)))


def is_secret_variable(name: str, value: str) -> bool:
    if _NO_SECRET.fullmatch(value):
        return False
    if name.endswith("EXEC_EXTRA_ARGS") and _EXTRA.search(value):
        return True
    if looks_secret(value):
        return True
    if is_secret_variable_name(name):
        is_path = _PATH.fullmatch(value) and not any(map(_is_shuffled, _runs(value)))
        return not is_path and not re.fullmatch(r"\d{1,3}", value)
    return "revision" not in _words(name) and looks_random(value)


def without_secrets(text: str, variables: Mapping[str, str]) -> str:
    """The output of a script without what has the shape of a secret, and without the values of
    secret variables, also as a traceback quotes them.
    """
    for value in sorted(_forms(variables), key=len, reverse=True):
        if len(value) > 5:
            text = text.replace(value, HIDDEN)
        else:
            text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", HIDDEN, text)
    text = _BASE64.sub(lambda match: HIDDEN if _is_key(match) else match[0], text)
    text = _SECRET_VARIABLE.sub(_without_variable, text)
    text = _SECRET_ARGUMENT.sub(_without_argument, text)
    return _SHAPES.sub(HIDDEN, text)


def _forms(variables: Mapping[str, str]) -> set[str]:
    """Return every spelling of the values that must not be shown."""
    forms = set[str]()
    for name, value in variables.items():
        if len(value) > 2 and is_secret_variable(name, value):
            forms |= {value, repr(value)[1:-1], json.dumps(value)[1:-1]}
            forms.update(line for line in value.splitlines() if len(line) > 15)
    return forms


def _without_variable(match: re.Match[str]) -> str:
    value = match["value"].strip("\"'")
    if value == HIDDEN or not is_secret_variable(match["name"], value):
        return match[0]
    return match["said"] + HIDDEN


def _without_argument(match: re.Match[str]) -> str:
    shown = _NO_SECRET.fullmatch(match["value"]) or not is_secret_name(match["name"])
    if shown:
        return match[0]
    return match["said"] + HIDDEN


def hide_arguments(
    argv: Sequence[str], *, secret: Collection[str] = (), variables: Mapping[str, str] | None = None
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Replace each secret in a command by ``${NAME}``; also return the values by these names.

    ``secret``: more names of arguments whose values are secrets. ``variables``: the environment,
    whose name is used if it has the same value.
    """
    named = {"_".join(_words(name)) for name in secret}
    held = {value: name for name, value in (variables or {}).items() if _is_holder(name, value)}
    shown, secrets, flag = list(argv[:1]), dict[str, str](), ""
    of_script = False  # before it -p is a launcher's: of srun the partition
    for before, word in pairwise(argv):
        of_script = of_script or before.endswith(".py") or flag == "m"
        if _FLAG.fullmatch(word) and not looks_secret(word):
            shown.append(word)
            flag = word.strip("-")
            continue
        is_named = "_".join(_words(flag)) in named
        if is_secret_name(flag) or is_named:
            assigned = None
        else:
            assigned = _ASSIGNED.fullmatch(word)
        name, value = flag, word
        if assigned:
            name, value = assigned["name"], assigned["value"]
        # mpirun -x, env: NAME=value; -genv has NAME and value in two words.
        variable = re.fullmatch(r"[A-Z][A-Z0-9_]*", name) and not (assigned and assigned["before"])
        if variable:
            hidden = is_secret_variable(name, value)
        else:
            hidden = _is_secret_argument(name, value)
            short = _SHORT.fullmatch(word)
            if of_script and short:
                name, value = "p", short[1]
            if of_script and not _NO_SECRET.fullmatch(value):
                hidden = hidden or _is_secret_by_short_name("_".join(_words(name)), value)
        if flag in ("env", "genv"):
            flag = word
        else:
            flag = ""
        if hidden or is_named or "_".join(_words(name)) in named:
            holder = held.get(value) or _variable(name, value, secrets)
            secrets[holder] = value
            word = word.removesuffix(value) + f"${{{holder}}}"
        shown.append(word)
    return tuple(shown), secrets


def _is_holder(name: str, value: str) -> bool:
    """Whether a variable may be the source of a secret: ``--hub_token "$HF_TOKEN"``."""
    return len(value) > 5 and bool(re.fullmatch(r"[A-Z][A-Z0-9_]*", name))


def _variable(flag: str, value: str, taken: Mapping[str, str]) -> str:
    name = re.sub(r"\W+", "_", flag).upper()
    if not re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
        name = "TRAIN"
    if not re.search("TOKEN|KEY|SECRET|PASS|PWD|CREDENTIAL|JWT|BEARER|OTP|COOKIE", name):
        name += "_SECRET"
    for number in count(1):
        free = name
        if number > 1:
            free = f"{name}_{number}"
        if taken.get(free, value) == value:
            return free
    raise AssertionError("count() does not end")
