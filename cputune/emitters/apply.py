"""The best plan in files that the user keeps already: what they held, and what they then hold.

Text to text, so that a diff can be shown before anything is written. Lines that say nothing of the
plan stay as they are; where a whole document has to be read and written again (compose), its
comments are lost, which the diff shows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import yaml

from cputune import cpulist
from cputune.carrier.command import carried
from cputune.emitters.accelerate import CONFIG
from cputune.emitters.words import typed
from cputune.errors import UsageError
from cputune.knobs import plan_arguments
from cputune.result import Result

Arguments = TypeVar("Arguments")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A kind of file; ``leaves`` says what of a plan it cannot carry."""

    write: Callable[[Result, str, Path, str | None], str]
    file: str | None
    leaves: str


def variables(result: Result) -> dict[str, str]:
    """What of the best plan variables carry."""
    return dict(
        typed(carried(result.workload, result.best.plan, result.versions).variables).items()
    )


def arguments(result: Result) -> dict[str, Any]:
    """What of the best plan TrainingArguments carry, by today's names."""
    plan = result.best.plan
    found: dict[str, Any] = {"use_cpu": True, **plan_arguments(plan)}
    samples = result.workload.samples_per_rank(plan.world_size)
    steps = found.get("gradient_accumulation_steps", 1)
    if samples is not None and samples % steps == 0:
        found["per_device_train_batch_size"] = samples // steps
    return found


def with_plan(result: Result, given: Arguments) -> Arguments:
    """A copy of TrainingArguments that has the best plan. Raises UsageError for anything else."""
    known = getattr(type(given), "__dataclass_fields__", {})
    if not is_dataclass(given) or isinstance(given, type) or "use_cpu" not in known:
        raise UsageError(
            f"these are no TrainingArguments: {type(given).__name__}",
            hint="result.apply(TrainingArguments(...))",
        )
    # The backend is set when the ranks start, before these arguments exist.
    wanted = {k: v for k, v in arguments(result).items() if k in known and k != "ddp_backend"}
    return replace(given, **wanted)


def _accelerate(result: Result, before: str, path: Path, service: str | None) -> str:
    from cputune.emitters import emit

    if result.best.plan.world_size > 1:
        raise UsageError(
            "the plan has several ranks, which accelerate starts beside a host file alone",
            hint="cputune emit --format accelerate",
        )
    files = {file.name: file.text for file in emit(result, "accelerate", nodes=1)}
    known = _mapping(yaml.safe_load(before) if before.strip() else {}, path)
    wanted = _mapping(yaml.safe_load(files[CONFIG]), path)
    if known:
        return _lines(before, {k: json.dumps(v) for k, v in wanted.items()}, ": ")
    return files[CONFIG]


def _env(result: Result, before: str, path: Path, service: str | None) -> str:
    said = {name: _unquoted(value) for name, value in variables(result).items()}
    return _lines(before, said, "=")


def _unquoted(value: str) -> str:
    """As docker compose, python-dotenv and a shell read it alike."""
    if not value.isprintable() or "'" in value:
        raise UsageError(f"no .env file carries {value!r}", hint="cputune emit --format env")
    return value if re.fullmatch(r"[\w./:,+@%=-]*", value) else f"'{value}'"


def _arguments(result: Result, before: str, path: Path, service: str | None) -> str:
    wanted = arguments(result)
    if path.suffix in (".yaml", ".yml"):
        _mapping(yaml.safe_load(before) if before.strip() else {}, path)
        return _lines(before, {k: json.dumps(v) for k, v in wanted.items()}, ": ")
    try:
        known = _mapping(json.loads(before) if before.strip() else {}, path)
    except json.JSONDecodeError as error:
        raise UsageError(f"{path} is not JSON: {error}", hint="name a JSON or YAML file") from error
    return json.dumps({**known, **wanted}, indent=2, ensure_ascii=False) + "\n"


def _compose(result: Result, before: str, path: Path, service: str | None) -> str:
    held = _mapping(yaml.safe_load(before) if before.strip() else {}, path)
    services = dict(_mapping(held.get("services") or {}, path))
    names = list(services) or _services_beside(path)
    if service is None and len(names) != 1:
        listed = ", ".join(map(str, names)) or "none is seen"
        raise UsageError(f"which service trains? ({listed})", hint="--service NAME")
    name = names[0] if service is None else service
    own = dict(_mapping(services.get(name) or {}, path))
    kept = own.get("environment") or {}
    if isinstance(kept, list):
        kept = dict(str(word).partition("=")[::2] for word in kept)
    # PyYAML represents str, and no subclass of it.
    plain = {str(name): str(value) for name, value in variables(result).items()}
    own["environment"] = {**_mapping(kept, path), **plain}
    cpus = frozenset(cpu for rank in result.best.plan.cpus for cpu in rank)
    if cpus:
        own["cpuset"] = cpulist.render(cpus)
    whole = {**held, "services": {**services, name: own}}
    return yaml.safe_dump(whole, sort_keys=False, allow_unicode=True)


def _services_beside(path: Path) -> list[str]:
    """Services of the compose file that an override stands beside."""
    for name in ("compose.yaml", "compose.yml", "docker-compose.yml", "docker-compose.yaml"):
        beside = path.parent / name
        if beside.is_file() and beside != path:
            held = _mapping(yaml.safe_load(beside.read_text(encoding="utf-8")) or {}, beside)
            return list(_mapping(held.get("services") or {}, beside))
    return []


def _mapping(value: Any, path: Path) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{path} holds no settings by name", hint="name another file")
    return value


def _lines(before: str, wanted: Mapping[str, str], between: str) -> str:
    """The text with each name at its value: in its line where it has one, else at the end."""
    left, lines = dict(wanted), []
    sign = re.escape(between.strip())
    for line in before.splitlines():
        match = re.match(rf"(\s*(?:export\s+)?)([A-Za-z_]\w*)\s*{sign}", line)
        if match and match[2] in wanted and not (between == ": " and match[1]):
            if match[2] in left:
                lines.append(f"{match[1]}{match[2]}{between}{left.pop(match[2])}")
        else:
            lines.append(line)
    return "\n".join([*lines, *(f"{name}{between}{value}" for name, value in left.items())]) + "\n"


TARGETS: Mapping[str, Target] = {
    "env": Target(write=_env, file=".env", leaves="flags of the script, ranks and CPUs"),
    "arguments": Target(write=_arguments, file=None, leaves="variables, ranks and CPUs"),
    "accelerate": Target(
        write=_accelerate,
        file="~/.cache/huggingface/accelerate/default_config.yaml",
        leaves="variables, threads and CPUs",
    ),
    "compose": Target(
        write=_compose, file="compose.override.yaml", leaves="flags of the script, and ranks"
    ),
}
