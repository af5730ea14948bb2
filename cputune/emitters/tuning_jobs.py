"""``slurm --tune``: a batch script that tunes in its allocation, then starts the launch there."""

from __future__ import annotations

from cputune.emitters import bash
from cputune.emitters.checked_words import Argument, ShellWord, comment
from cputune.emitters.command import as_typed
from cputune.emitters.format import EmittedFile, Format, LaunchJob, Output, Secret, Word
from cputune.emitters.prepared import job_name
from cputune.errors import UsageError
from cputune.plans.workload import recipe_names


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
            hint="tune a script: cputune emit --format slurm --tune -- train.py",
        )
    return tuple(map(Argument, (*options, "--recipe", recipe.name)))


def emit_slurm_tune(job: LaunchJob) -> tuple[EmittedFile, ...]:
    """The batch script. It requests whole nodes: trials show how they are best divided."""
    cluster = job.site.cluster
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


SLURM_TUNE = Format(name="slurm --tune", write=emit_slurm_tune, main="slurm-tune.sh", printed=True)
