"""The variables that ranks are started with: the plan's, and nothing that would override it."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping

from cputune.carrier.cleared import is_cleared
from cputune.plan import Plan
from cputune.stack import Versions, ipex_off

LOADED_ONCE = ("LD_PRELOAD", "MALLOC_CONF", "KMP_BLOCKTIME")
"""Variables of a plan that are read when a library is loaded: a forked rank has them from
the process that it is forked of, and cannot change them."""

HUB = "https://huggingface.co"
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def switched_off(plan: Plan, versions: Mapping[str, str]) -> dict[str, str]:
    """What a plan must switch off beside these versions, which map distribution names to them.

    Some releases of accelerate use IPEX wherever it is installed, unless they are told not to.
    """
    return {} if plan.as_found or plan.ipex else ipex_off(Versions.from_names(versions))


def base_environment(
    outer: Mapping[str, str], plan: Plan, *, offline: bool, versions: Mapping[str, str]
) -> dict[str, str]:
    """What is common to all ranks of all plans that load the same libraries.

    As found, the outer environment stays as it is. With ``offline`` the hub's clients
    look only into their caches, at once, where they would try for minutes.
    """
    if plan.as_found:
        variables = dict(outer)
    else:
        variables = {name: value for name, value in outer.items() if not is_cleared(name)}
        planned = plan.environment()
        variables.update(switched_off(plan, versions))
        variables.update({name: planned[name] for name in LOADED_ONCE if name in planned})
    if offline:
        for name, value in OFFLINE.items():
            variables.setdefault(name, value)
    return variables


def rank_environment(base: Mapping[str, str], plan: Plan, rank: int, port: int) -> dict[str, str]:
    """The variables of one rank. A job of one rank has no rank numbers, as without us."""
    variables = dict(base)
    variables.update(plan.environment())
    if plan.world_size > 1 and not plan.as_found:
        variables.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(plan.world_size),
            LOCAL_WORLD_SIZE=str(plan.processes_per_node),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
        )
    return variables


def hub_reachable(environment: Mapping[str, str], timeout_seconds: float = 3.0) -> bool:
    """Whether the model hub answers; one request, so that trials need not find out each."""
    if any(environment.get(name, "").lower() in ("1", "true", "yes", "on") for name in OFFLINE):
        return False
    address = environment.get("HF_ENDPOINT") or HUB
    request = urllib.request.Request(address, method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=timeout_seconds) as answer:
            return bool(answer.status < 500)
    except (OSError, ValueError):  # a proxy's refusal (HTTPError) is an OSError too
        return False
