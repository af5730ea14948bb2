"""Values that must not be written down: tokens, passwords, keys, and whatever might be one.

Of a script's arguments only what is known to be harmless is shown: numbers and switches, paths that
are there, names in the form of the model hub, and words behind an argument of which it is known
that anybody may read them. Everything else becomes a variable. Of a launcher's words, of variables
and of what a script writes, what a name or a shape says is a secret is hidden.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from itertools import count

from cputune.stack.tables import load

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
_NUMBER = re.compile(r"[-+[(]?\.?\d[\d.,:/x e+-]*[\])]?", re.IGNORECASE)
_HUB = re.compile(r"[A-Za-z][\w.-]*/[A-Za-z][\w.]*(?:-[\w.]+)+")
"""``google-bert/bert-base-uncased``: an organisation, and a name of several parts."""
_PATHS = frozenset({"dir", "file", "folder", "path"})
"""Last words of arguments that take a path."""
_FLAG = re.compile(r"--[A-Za-z][\w.-]*|-[A-Za-z](?:\d+|[A-Za-z_-]*)")
_ASSIGNED = re.compile(
    r"(?:--?|[+~]*(?:[\w@/-]+\.)*)(?P<name>[A-Za-z_][\w.-]*)=(?P<value>[^=].*)", re.DOTALL
)
"""``--name=value``; ``NAME=value``, as ``mpirun -x`` takes it; ``group.name=value`` of Hydra."""


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


def says_secret(name: str) -> bool:
    """Whether a name ends in a word for a secret: ``HF_TOKEN``, ``hub-token``, ``dbPassword``."""
    return bool(_SECRET_NAME.fullmatch("_".join(_words(name)[-4:])[-64:]))


def _is_secret(name: str, value: str) -> bool:
    """Whether a name or the shape of a value says so: the rule for launchers and variables."""
    if _NO_SECRET.fullmatch(value):
        return False
    words = _words(name)
    if looks_secret(value) or says_secret(name) or _PERSONAL.intersection(words):
        return True
    return bool(name) and "revision" not in words and looks_random(value)


def _is_harmless(name: str, value: str) -> bool:
    """Whether it is known of an argument of a script that anybody may read it."""
    if _is_secret(name, value):
        return False
    if any(shape.fullmatch(value) for shape in (_NO_SECRET, _NUMBER, _HUB)):
        return True
    words = _words(name)
    named = "_".join(words) in load().harmless or not _PATHS.isdisjoint(words[-1:])
    return named or os.path.exists(value)


def without_secrets(text: str, variables: Mapping[str, str]) -> str:
    """A text that a script wrote, without what looks like a secret, and without the values of
    the variables that may not be shown.
    """
    values = {
        value
        for name, value in variables.items()
        if len(value) > 5 and not value.startswith("/")
        if not _PERSONAL.intersection(_words(name)) and _is_secret(name, value)
    }
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    text = _BASE64.sub(lambda found: HIDDEN if _is_key(found) else found[0], text)
    return _SHAPES.sub(HIDDEN, text)


def hide_arguments(
    argv: Sequence[str], *, own: int | None = None
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The words of a command with ``${NAME}`` for each value that may not be shown, and those.

    From ``own`` on they are the script's arguments; what stands before, all where it is None, is a
    launcher's.
    """
    words, found, flag = list(argv[:1]), dict[str, str](), ""
    for position, word in enumerate(argv[1:], 1):
        arguments = own is not None and position >= own
        if _FLAG.fullmatch(word) and not _is_secret("", word):
            words.append(word)
            flag = word.strip("-")
            continue
        flag = "" if position == own else flag
        assigned = None if says_secret(flag) else _ASSIGNED.fullmatch(word)
        name, value = (assigned["name"], assigned["value"]) if assigned else (flag, word)
        # -genv has NAME and value; some flags have several values.
        several = flag.replace("-", "_") in load().several
        flag = word if flag in ("env", "genv") else flag if several else ""
        if _is_harmless(name, value) if arguments else not _is_secret(name, value):
            words.append(word)
        else:
            variable = _variable(name, value, found)
            found[variable] = value
            words.append(word.removesuffix(value) + f"${{{variable}}}")
    return tuple(words), found


def _variable(flag: str, value: str, taken: Mapping[str, str]) -> str:
    """A name for the variable that holds the value: the flag's, in capital letters."""
    name = re.sub(r"\W+", "_", flag).upper()
    if not re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
        name = "TRAIN"
    if not re.search("TOKEN|KEY|SECRET|PASS|PWD|CREDENTIAL|JWT|BEARER|OTP|COOKIE", name):
        name += "_SECRET"
    names = (name if number == 1 else f"{name}_{number}" for number in count(1))
    return next(one for one in names if taken.get(one, value) == value)
