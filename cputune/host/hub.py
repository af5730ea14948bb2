"""The model hub: whether it answers, and the variables that forbid to ask it."""

from __future__ import annotations

from collections.abc import Mapping

HUB = "https://huggingface.co"
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def hub_reachable(environment: Mapping[str, str], timeout_seconds: float = 3.0) -> bool:
    """Whether the model hub answers. It is asked once."""
    if any(environment.get(name, "").lower() in ("1", "true", "yes", "on") for name in OFFLINE):
        return False
    import urllib.request  # with TLS and mail it is a tenth of what the doctor imports
    from http.client import HTTPException

    address = environment.get("HF_ENDPOINT") or HUB
    try:
        request = urllib.request.Request(address, method="HEAD")
        with urllib.request.urlopen(request, timeout=timeout_seconds):
            return True
    # A proxy's refusal (HTTPError) is an OSError; a malformed answer is an HTTPException.
    except (OSError, ValueError, HTTPException):
        return False
