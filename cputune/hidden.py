"""Values that must not be written down: tokens, passwords, keys, addresses that hold one."""

from __future__ import annotations

import re
from collections.abc import Sequence

HIDDEN = "(hidden)"
"""What stands in the place of such a value."""

_SHAPES = re.compile(
    r"""
    \bhf_[A-Za-z0-9]{8,}                          # Hugging Face
    | \bgh[opusr]_[A-Za-z0-9]{16,} | \bgithub_pat_\w{16,} | \bglpat-[\w-]{16,}
    | \bsk-[\w-]{16,} | \bxox[abeoprs]-[\w-]{8,} | \b(?:npm_|pypi-|dop_v1_|ya29\.)[\w-]{16,}
    | \b(?:AKIA|ASIA|AROA)[0-9A-Z]{16}\b | \bAIza[\w-]{30,}
    | \beyJ[\w-]{8,}\.[\w-]{8,}                   # a JSON web token
    | -----BEGIN\ [A-Z ]*PRIVATE\ KEY
    | \b[a-z][a-z0-9+.-]*://[^\s/@]*:[^\s/@]+@    # an address with a password
    | \b(?:Bearer|Basic)\ [\w.+/=-]{8,}
    """,
    re.VERBOSE | re.IGNORECASE,
)
_RUN = re.compile(r"[A-Za-z0-9_+=-]{24,}")
_MASK = re.compile(r"(0x)?[0-9a-fA-F]+|[\d_-]+")

_FLAG = re.compile(
    r"-+(?:\w+[-_])*(?:pass(?:word|wd|phrase)|pwd|secret|(?:api|secret|access|private)[-_]?key"
    r"|credentials?|jwt|bearer)",
    re.IGNORECASE,
)
_TOKEN_FLAG = re.compile(
    r"-+(?:(?:\w+[-_])?(?:hub|hf|huggingface|auth|access|api|refresh|session|wandb)[-_])?token",
    re.IGNORECASE,
)
_NO_TOKEN = re.compile(r"true|false|yes|no|none|\d*|<.*>|\[.*\]", re.IGNORECASE)
_TELLING = re.compile(r"TOKEN|KEY|SECRET|PASS|PWD|CREDENTIAL|JWT|BEARER")


def looks_secret(text: str) -> bool:
    """Whether a text holds what can only be a secret, by its shape."""
    return _SHAPES.search(text) is not None


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
        word, before = argv[position], argv[position - 1]
        flag, equals, value = word.partition("=") if word.startswith("-") else (before, "", word)
        if not flag.startswith("-") or (not equals and "=" in before):
            flag = ""
        if word.startswith("-") and not equals:
            words.append(word)
        elif looks_secret(value) or _is_secret_of(flag, value):
            before = f"{flag}=" if equals else ""
            assigned = re.match(r"[A-Z][A-Z0-9_]*(?==)", value)
            if assigned and not equals:  # mpirun -x NAME=value
                flag, before, value = assigned[0], f"{assigned[0]}=", value[assigned.end() + 1 :]
            name = _variable(flag, value, found)
            found[name] = value
            words.append(f"{before}${{{name}}}")
        else:
            words.append(word)
    return tuple(words), found


def _is_secret_of(flag: str, value: str) -> bool:
    if _TOKEN_FLAG.fullmatch(flag):
        return not _NO_TOKEN.fullmatch(value)
    return bool(value) and _FLAG.fullmatch(flag) is not None


def _variable(flag: str, value: str, taken: dict[str, str]) -> str:
    """A name for the variable that holds the value: the flag's, in capital letters."""
    name = re.sub(r"\W+", "_", flag.strip("-")).upper()
    if not re.fullmatch(r"[A-Z][A-Z0-9_]*", name) or not _TELLING.search(name):
        name = f"{name or 'TRAIN'}_SECRET" if name[:1].isalpha() or not name else "TRAIN_SECRET"
    unique, count = name, 2
    while taken.get(unique, value) != value:
        unique, count = f"{name}_{count}", count + 1
    return unique
