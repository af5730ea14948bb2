"""``plan.json``: what a launch promises and what ``cputune.apply`` sets, for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

from cputune.apply import SCHEMA, VERSION
from cputune.emitters.command import draws_by_itself
from cputune.emitters.folder import DIGEST, digest_of, kept_lines
from cputune.emitters.format import EmittedFile, LaunchJob
from cputune.emitters.imported import digest
from cputune.emitters.promise import PromisedTraining
from cputune.emitters.training_claims import BESIDE
from cputune.text import cpulist
from cputune.text.documents import plain


def plan_file(job: LaunchJob, files: Iterable[EmittedFile]) -> str:
    """The text of plan.json for these files.

    `cputune verify` reads ``plan`` and the promise, ``cputune.apply`` reads ``apply``. ``versions``
    are those of the measurement and ``result`` its file; ``notes`` were printed. ``left_out`` says
    of each part why it is not applied.
    """
    applied = applied_of(job)
    files = tuple(files)
    trained = _with_companions(job.promise.trained, files)
    promise = replace(job.promise, trained=trained, folder=kept_lines(files))
    promised = {name: value for name, value in plain(promise).items() if value not in (None, [])}
    document = {
        "schema": f"{SCHEMA}{VERSION}",
        **promised,
        "apply": applied,
        "versions": dict(job.machine.versions),
        "result": job.speed.named,
        "notes": list(job.notes),
        "left_out": dict(job.inside.left_out),
    }
    # As it is read again: tuples are lists.
    document[DIGEST] = digest_of(json.loads(json.dumps(document)))
    rows = [f" {json.dumps(key)}: {json.dumps(document[key])}" for key in document]
    return "{\n" + ",\n".join(rows) + "\n}\n"


def _with_companions(
    promised: PromisedTraining | None, files: Iterable[EmittedFile]
) -> PromisedTraining | None:
    """The promise with digests of the files in the folder of the launch, except executable ones,
    which set the plan.
    """
    if promised is None:
        return None
    digests = {}
    for file in files:
        if not file.executable and not file.name.endswith((".sh", ".yaml")):
            digests[BESIDE + file.name] = digest(file.text)
    return replace(promised, files={**digests, **promised.files})


def applied_of(job: LaunchJob) -> dict[str, object]:
    """What ``cputune.apply`` does in each rank, without default values."""
    several = job.plan.world_size > 1
    actions: dict[str, object] = {}
    if several:
        actions["several"] = True
        actions["cpus"] = "/".join(map(cpulist.render, job.plan.cpus))
        actions["guard"] = job.inside.guard
        if draws_by_itself(job):
            actions["draw"] = "apart"
    if job.force is not None:
        actions["set"] = json.loads(job.force.to_json())
    return actions
