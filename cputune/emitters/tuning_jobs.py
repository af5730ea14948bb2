"""``tunejob`` and ``slurm --tune``: a job that tunes on the machines that will train, one file
each.

The first is the Job of docs/kubernetes.md with this command, image and claim, and the CPUs and
memory of the training pods. The second is a batch script: it tunes in its own allocation, then
starts the launch there.
"""

from __future__ import annotations

from cputune.emitters import bash, checked_words, kubernetes
from cputune.emitters.checked_words import (
    Argument,
    Manifest,
    ShellWord,
    VariableName,
    YamlScalar,
    comment,
)
from cputune.emitters.command import as_typed
from cputune.emitters.format import EmittedFile, Format, LaunchJob, Output, Secret, Word
from cputune.emitters.prepared import job_name
from cputune.emitters.reserve import with_reserve
from cputune.errors import UsageError
from cputune.plans.workload import recipe_names

RESULT = f"{kubernetes.DATA}/cputune.json"


def tuned(job: LaunchJob) -> tuple[Word, ...]:
    """What follows ``cputune tune``: a shipped recipe, or the script as typed.

    Raises UsageError for a recipe of the user, whose file is not in the job.
    """
    recipe, each = job.workload.recipe, job.workload.batch_per_rank
    options = () if each is None else ("--batch-per-rank", str(each))
    if recipe is None:
        return *map(Argument, (*options, "--")), *as_typed(job.workload)
    if recipe.name not in recipe_names():
        raise UsageError(
            f"{recipe.name} is a recipe of your own, and a job has only the recipes of cputune",
            hint="tune a script: cputune emit --format tunejob -- train.py",
        )
    return tuple(map(Argument, (*options, "--recipe", recipe.name)))


def emit_tunejob(job: LaunchJob) -> tuple[EmittedFile, ...]:
    """The Job. Its pod is never restarted: a study that fails is not repeated."""
    notes = (
        f"cputune must be in the image ({kubernetes.image(job)}): pip install 'cputune[tune]'",
        f"the claim {kubernetes.claim(job)} must be there; the result is {RESULT}: "
        "kubectl cp it here, then cputune emit --format pytorchjob or trainjob",
    )
    tune = ["cputune", "tune", "-o", RESULT, "--no-history"]
    command = [YamlScalar(word) for word in tune]
    command += map(_in_pod, tuned(job))
    hub = {"name": VariableName("HF_HOME"), "value": YamlScalar(f"{kubernetes.DATA}/huggingface")}
    secrets = [variable for variable in kubernetes.environment(job) if "valueFrom" in variable]
    program: Manifest = {
        "image": YamlScalar(kubernetes.image(job)),
        "command": command,
        "env": [hub, *secrets],
        "resources": kubernetes.resources(with_reserve(job)),
    }
    template = kubernetes.pod(
        job, "tune", program, automountServiceAccountToken=False, restartPolicy="Never"
    )
    document = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": kubernetes.metadata(job, f"{job_name(job)}-tune"),
        "spec": {
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": kubernetes.TTL_SECONDS,
            "template": template,
        },
    }
    title = f"Tunes {job.workload.name} in a pod like those that will train: kubectl create -f."
    text = checked_words.document(document, [title, "", *notes])
    return (EmittedFile(name="tunejob.yaml", text=text, notes=notes),)


def _in_pod(word: Word) -> YamlScalar:
    """A word as the kubelet takes it; trials write nothing, so an output path stays."""
    if isinstance(word, Secret):
        return YamlScalar(kubernetes.escape(word.before) + f"$({word.variable})")
    if isinstance(word, Output):
        return kubernetes.escape(word.before + word.name)
    return kubernetes.escape(str(word))


def emit_slurm_tune(job: LaunchJob) -> tuple[EmittedFile, ...]:
    """The batch script. It requests whole nodes: trials show how they are best divided."""
    cluster = job.cluster
    lines = [
        f"job-name={job_name(job)}-tune",
        f"nodes={job.plan.nodes}",
        "exclusive",
        f"time={cluster.time_limit or '24:00:00'}",
        "output=%x-%j.out",
    ]
    if cluster.partition:
        lines.append(f"partition={cluster.partition}")
    if cluster.account:
        lines.append(f"account={cluster.account}")
    values = {
        "header": comment(
            [
                f"Tunes {job.workload.name} in its own allocation, then trains there with the plan "
                "that was found:",
                "sbatch slurm-tune.sh. Arguments are further options of cputune tune.",
            ]
        ),
        "directives": "".join(f"#SBATCH --{line}\n" for line in lines),
        "tuned": " ".join(map(_in_shell, tuned(job))),
    }
    text = bash.fill("slurm_tune.sh", values)
    return (EmittedFile(name="slurm-tune.sh", text=text, executable=True),)


def _in_shell(word: Word) -> str:
    if isinstance(word, Secret):
        return f'{ShellWord(word.before)}"${{{word.variable}}}"'
    if isinstance(word, Output):
        return ShellWord(word.before + word.name)
    return ShellWord(str(word))


TUNEJOB = Format(name="tunejob", write=emit_tunejob, main="tunejob.yaml", printed=True)
SLURM_TUNE = Format(name="slurm --tune", write=emit_slurm_tune, main="slurm-tune.sh", printed=True)
