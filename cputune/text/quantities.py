"""Quantities of a cluster as users type them: memory of a pod, time limit of a Slurm job."""

from __future__ import annotations

import re

from cputune.errors import UsageError

_BYTES = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
}
"""Bytes by the suffix of a Kubernetes quantity
(https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/)."""

LEAST_BYTES = 64 * 2**20
"""Smallest accepted memory of a pod. A process that imports torch needs more."""

_QUANTITY = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)([A-Za-z]*)")
_SLURM_TIME = re.compile(r"(?:\d+-)?\d+(?::[0-5]?\d){0,2}|UNLIMITED|INFINITE")
_TYPED_TIME = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


def bytes_of(quantity: object) -> float | None:
    """Convert a Kubernetes quantity such as ``8Gi`` or ``500M`` to bytes. None if it is not one."""
    match = _QUANTITY.fullmatch(str(quantity).strip())
    if match is None or match[2] not in _BYTES:
        return None
    return float(match[1]) * _BYTES[match[2]]


def kubernetes_memory(text: str) -> str:
    """Write the memory of a pod as Kubernetes does: ``8GB`` is ``8G``, ``8GiB`` is ``8Gi``.

    Raises UsageError for other text, and for less than ``LEAST_BYTES``.
    """
    match = _QUANTITY.fullmatch("".join(text.split()))
    if match is None:
        raise UsageError(f"--memory {text!r} is not an amount of memory", hint="--memory 32Gi")
    number, suffix = match[1], match[2]
    meant = suffix
    if len(suffix) > 1 and suffix[-1] in "Bb":  # 8GB, 8gib
        meant = suffix[0].upper() + suffix[1:-1].lower()
    if meant not in _BYTES:  # Docker reads 8g as 8 GiB, Kubernetes rejects it
        raise UsageError(
            f"--memory {text!r}: {suffix!r} is not a Kubernetes unit (Mi, Gi, Ti, M, G, T)",
            hint=f"--memory {number}Gi",
        )
    bytes_asked = float(number) * _BYTES[meant]
    if bytes_asked < LEAST_BYTES:
        raise UsageError(
            f"--memory {text!r} is {bytes_asked:.0f} bytes, too little to train (at least 64Mi)",
            hint=f"--memory {number}Gi",
        )
    return number + meant


def slurm_time(text: str) -> str:
    """Write a time limit as Slurm reads it: ``4h`` becomes ``04:00:00``. Raises UsageError."""
    words = text.strip()
    if _SLURM_TIME.fullmatch(words.upper()):
        if words.strip("0:-") == "":
            raise UsageError("--time must be more than 0", hint="--time 04:00:00")
        return words
    match = _TYPED_TIME.fullmatch(words.lower())
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
