"""Quantities of a cluster as users type them: memory of a pod, time limit of a Slurm job."""

from __future__ import annotations

import re
from fractions import Fraction

from cputune.errors import UsageError

# Factors by the suffix of a Kubernetes quantity
# (https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/).
_SUFFIXES = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}

# A process that imports torch needs more.
LEAST_BYTES = 64 * 2**20

_AMOUNT = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)([A-Za-z]*)")
_QUANTITY = re.compile(
    r"([0-9]{1,18}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})(?:(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE])|[eE](\+?-?[0-9]{1,2}))?"
)
_SLURM_TIME = re.compile(r"(?:\d+-)?\d+(?::[0-5]?\d){0,2}|UNLIMITED|INFINITE")
_TYPED_TIME = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


def quantity_of(text: object) -> Fraction | None:
    """A Kubernetes quantity as an exact number; None if it is not one."""
    if isinstance(text, bool):
        match = None
    else:
        match = _QUANTITY.fullmatch(str(text).strip())
    if match is None:
        return None
    number = Fraction(match[1])
    if match[3] is not None:
        return number * Fraction(10) ** int(match[3])
    return number * _SUFFIXES[match[2] or ""]


def bytes_of(quantity: object) -> float | None:
    """Convert a Kubernetes quantity such as ``8Gi`` or ``500M`` to bytes. None if it is not one."""
    number = quantity_of(quantity)
    if number is None:
        return None
    return float(number)


def cpus_of(quantity: object) -> float:
    """CPUs of a Kubernetes quantity: ``4``, ``"500m"``; 0 if it is not one."""
    return float(quantity_of(quantity) or 0)


def kubernetes_memory(text: str) -> str:
    """``8GB`` is ``8G``, ``8GiB`` is ``8Gi``. Raises UsageError, also below ``LEAST_BYTES``."""
    match = _AMOUNT.fullmatch("".join(text.split()))
    if match is None:
        raise UsageError(f"--memory {text!r} is not an amount of memory", hint="--memory 32Gi")
    number, suffix = match[1], match[2]
    meant = suffix
    if len(suffix) > 1 and suffix[-1] in "Bb":  # 8GB, 8gib
        meant = suffix[0].upper() + suffix[1:-1].lower()
    # 8g is 8 GiB for Docker, and nothing for Kubernetes; 8m would be 8 thousandths of a byte.
    if meant not in _SUFFIXES or meant in ("n", "u", "m"):
        raise UsageError(
            f"--memory {text!r}: {suffix!r} is not a Kubernetes unit (Mi, Gi, Ti, M, G, T)",
            hint=f"--memory {number}Gi",
        )
    bytes_asked = float(number) * float(_SUFFIXES[meant])
    if bytes_asked < LEAST_BYTES:
        raise UsageError(
            f"--memory {text!r} is {bytes_asked:.0f} bytes, too little to train (at least 64Mi)",
            hint=f"--memory {number}Gi",
        )
    return number + meant


def slurm_time(text: str) -> str:
    """``4h`` becomes ``04:00:00``. Raises UsageError."""
    typed = text.strip()
    if _SLURM_TIME.fullmatch(typed.upper()):
        if typed.strip("0:-") == "":
            raise UsageError("--time must be more than 0", hint="--time 04:00:00")
        return typed
    match = _TYPED_TIME.fullmatch(typed.lower())
    if match is None or not any(match.groups()):
        raise UsageError(
            f"--time {text!r} is not a Slurm time limit", hint="--time 04:00:00, or --time 4h"
        )
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if total == 0:
        raise UsageError("--time must be more than 0", hint="--time 04:00:00")
    hours, rest = divmod(total, 3600)
    return f"{hours:02}:{rest // 60:02}:{rest % 60:02}"
