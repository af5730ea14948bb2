"""What a launch promises of its training, whether it was measured or not.

The words of each rank, digests of the files that they name (the script, its imports from its
folder, its data, a model's config.json), and, if the current launch was measured, what its
optimizer trained and the samples of its data set. ``verify`` compares the reports of ranks with it.
"""

from __future__ import annotations

from cputune.emitters.format import Beside, LaunchJob, Output, Secret, Word
from cputune.emitters.imported import digests
from cputune.emitters.promise import Promise, PromisedTraining
from cputune.records.result import Throughput

# A file in the folder of the launch begins so.
BESIDE = "$here/"


def promise(job: LaunchJob, rate: Throughput | None) -> Promise:
    """What `cputune verify` compares an artefact with, besides its format.

    ``rate`` is None if the speed was not measured in the context of this launch. Without a host no
    file is read.
    """
    plan, workload = job.plan, job.workload
    command = tuple(map(_as_text, job.command))
    hosts: tuple[str, ...] = ()
    if plan.nodes > 1:
        hosts = tuple(str(node.name) for node in job.site.nodes)
    keeps = workload.training is not None and workload.keeps(workload.training)
    return Promise(
        plan=plan,
        environment={str(name): str(value) for name, value in job.environment.items()},
        hosts=hosts,
        samples_per_second=rate,
        global_batch_size=workload.samples_of_step(plan.world_size),
        sequence_length=workload.recipe.every_length if workload.recipe is not None else None,
        training=workload.training if keeps else None,
        trained=PromisedTraining(
            words=command,
            files={} if job.machine.host is None else digests(command, job.machine.host),
            model=workload.model,
            data=workload.data,
        ),
    )


def _as_text(word: Word) -> str:
    if isinstance(word, Secret):
        return f"{word.before}${{{word.variable}}}"
    if isinstance(word, Beside):
        return BESIDE + word.name
    if isinstance(word, Output):
        return word.before + word.name
    return str(word)
