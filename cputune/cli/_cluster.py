"""What only the user knows of a cluster, from the options of `emit`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from cputune.emitters import Cluster, SecretKey, Toleration
from cputune.errors import UsageError


def cluster_of(options: Mapping[str, Any]) -> Cluster:
    """The cluster that the options of `emit` describe. Raises UsageError."""
    read: dict[str, Any] = {
        "node_selector": tuple(_pair(p, "--node-selector") for p in options["node_selector"]),
        "labels": tuple(_pair(p, "--label") for p in options["labels"]),
        "tolerations": tuple(map(_toleration, options["tolerations"])),
        "secret_variables": tuple(map(_secret_key, options["secret_variables"])),
    }
    names = {field.name for field in fields(Cluster)} - set(read)
    return Cluster(**read, **{name: options[name] for name in names})


def _pair(text: str, option: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"{text!r} is no label", hint=f"{option} name=value")
    return key, value


def _toleration(text: str) -> Toleration:
    rest, _, effect = text.partition(":")
    key, equals, value = rest.partition("=")
    return Toleration(key=key, value=value if equals else None, effect=effect or None)


def _secret_key(text: str) -> SecretKey:
    variable, _, place = text.partition("=")
    secret, slash, key = place.partition("/")
    if not slash:
        raise UsageError(
            f"{text!r} names no key of a Secret", hint="--secret-env HF_TOKEN=my-secret/token"
        )
    return SecretKey(variable=variable, secret=secret, key=key)
