"""Values that must not be written down: tokens, passwords, keys, addresses that hold one."""

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
    | -----BEGIN\ [A-Z ]*PRIVATE\ KEY(?:.*?-----END\ [A-Z ]*KEY-----)?
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
_RUN = re.compile(r"[A-Za-z0-9_+=-]{24,}")
_MASK = re.compile(r"(0x)?[0-9a-fA-F]+|[\d_-]+")

_FLAG = re.compile(
    r"-+(?:[A-Za-z0-9]+[-_.])*(?:\w*pass(?:word|wd|phrase)|pwd|secret|credentials?|jwt|bearer"
    r"|(?:api|secret|access|private)[-_]?key)",
    re.IGNORECASE,
)
_TOKEN_FLAG = re.compile(
    r"-+(?:\w+\.)*"
    r"(?:(?:\w+[-_])?(?:hub|hf|huggingface|auth|access|api|refresh|session|wandb)[-_])?token",
    re.IGNORECASE,
)
_KEY_FLAG = re.compile(
    r"-+(?:[A-Za-z0-9]+[-_.])*(?:key|token|auth|pat|sas|dsn|webhook)", re.IGNORECASE
)
"""Flags whose value is a secret where it looks like one: ``--key`` may also name a column."""
_NO_TOKEN = re.compile(r"true|false|yes|no|none|\d*|<.*>|\[.*\]", re.IGNORECASE)
_TELLING = re.compile(r"TOKEN|KEY|SECRET|PASS|PWD|CREDENTIAL|JWT|BEARER")
_SECRET_VARIABLE = re.compile(
    r"(?:.*_)?(?:\w*TOKEN|\w*KEY|\w*SECRET|\w*PASS|\w*PASSWORD|\w*PASSWD|\w*PASSPHRASE|PWD"
    r"|CREDENTIALS?|JWT|BEARER|AUTH)",
    re.IGNORECASE,
)
_ASSIGNED = re.compile(r"[+~]*(?:[\w@/-]+\.)*(?P<name>[A-Za-z_][\w-]*)=(?P<value>\S*)")
"""``NAME=value``, as ``mpirun -x`` and ``env`` take it, or ``group.name=value`` as Hydra does."""


def looks_secret(text: str) -> bool:
    """Whether a text holds what can only be a secret, by its shape."""
    return _SHAPES.search(text) is not None or _AWS_KEY.search(text) is not None


def without_secrets(text: str, variables: Mapping[str, str]) -> str:
    """A text that a script wrote, without what looks like a secret, and without the values of
    the variables whose names tell that they hold one.
    """
    values = {
        value
        for name, value in variables.items()
        if len(value) > 5 and _SECRET_VARIABLE.fullmatch(name) and not value.startswith("/")
    }
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return _AWS_KEY.sub(HIDDEN, _SHAPES.sub(HIDDEN, text))


def without_password(address: str) -> str:
    """The address of a server without its password, and without parameters that may be one.

    A password may hold any sign, so whatever stands before the last @ is taken for it.
    """
    rest = re.sub(r"^[\w.+-]*://", "", address, flags=re.ASCII)
    scheme = address.removesuffix(rest)
    who, at, where = rest.rpartition("@")
    place, _, query = where.partition("?")
    kept = [p for p in query.split("&") if p and not _TELLING.search(p.partition("=")[0].upper())]
    options = "?" + "&".join(kept) if kept else ""
    return f"{scheme}{who.partition(':')[0]}{at}{place}{options}"


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


def hide_arguments(argv: Sequence[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """The words of a command with ``${NAME}`` for each secret, and the values by name.

    A secret is told by its shape, or by the flag before it (``--hub_token``, ``--api-key``).
    """
    words, found = list(argv[:1]), dict[str, str]()
    for position in range(1, len(argv)):
        last = argv[position - 1]
        if position > 1 and argv[position - 2] in ("-env", "-genv"):  # mpirun -genv NAME value
            last = f"--{last}"
        before, flag, value = _parted(argv[position], last)
        if looks_secret(value) or _is_secret_of(flag, value):
            name = _variable(flag, value, found)
            found[name] = value
            words.append(f"{before}${{{name}}}")
        else:
            words.append(argv[position])
    return tuple(words), found


def _parted(word: str, last: str) -> tuple[str, str, str]:
    """What of a word may be a secret, the flag that it belongs to, and what stands before it."""
    if word.startswith("-"):
        flag, equals, value = word.partition("=")
        return f"{flag}{equals}", flag, value
    flag = last if last.startswith("-") and "=" not in last else ""
    assigned = _ASSIGNED.fullmatch(word)
    if assigned is None or _is_secret_of(flag, word):
        return "", flag, word
    return word[: assigned.start("value")], f"--{assigned['name']}", assigned["value"]


def _is_secret_of(flag: str, value: str) -> bool:
    if not value or value.startswith("${"):
        return False
    if _TOKEN_FLAG.fullmatch(flag):
        return not _NO_TOKEN.fullmatch(value)
    pair = ":" in value and flag.lower().endswith("auth")
    if _KEY_FLAG.fullmatch(flag) and (pair or looks_random(value)):
        return True
    return _FLAG.fullmatch(flag) is not None


def _variable(flag: str, value: str, taken: dict[str, str]) -> str:
    """A name for the variable that holds the value: the flag's, in capital letters."""
    name = re.sub(r"\W+", "_", flag.strip("-")).upper()
    if not re.fullmatch(r"[A-Z][A-Z0-9_]*", name) or not _TELLING.search(name):
        name = f"{name or 'TRAIN'}_SECRET" if name[:1].isalpha() or not name else "TRAIN_SECRET"
    unique, count = name, 2
    while taken.get(unique, value) != value:
        unique, count = f"{name}_{count}", count + 1
    return unique
