"""``slurm``: a batch script for sbatch, one srun task for each rank.

Slurm copies the script before it runs, so its other files are searched in the folder of the
submission. The script sets the variables that srun reads (SLURM_EXACT, SRUN_CPUS_PER_TASK,
SLURM_CPU_BIND), and the step requests its own nodes, CPUs and binding.
"""

from __future__ import annotations

from dataclasses import replace

from cputune.emitters import bash
from cputune.emitters.checked_words import WIDTH
from cputune.emitters.command import applied
from cputune.emitters.format import EmittedFile, Format, LaunchJob
from cputune.emitters.mpirun import refuse_colon
from cputune.emitters.one_rank import script_of_one
from cputune.emitters.prepared import job_name
from cputune.launch.launchers.srun import one_task_each
from cputune.launch.target import Target, slurm_job, slurm_options
from cputune.launch.write import LaunchLine, ShellText, start

UNPROMISED = (
    "Slurm gives CPUs by its own numbering: where a rank may not use the plan's, it keeps the "
    "cores that srun bound, and says so."
)


def emit_slurm(job: LaunchJob) -> tuple[EmittedFile, ...]:
    """The batch script. Raises UsageError for words that srun cannot pass on."""
    refuse_colon(job)
    plan = job.plan
    if plan.world_size == 1:
        script = script_of_one(
            job, "slurm", directives=directives(job), target=allocation(job), offered=True
        )
        return (script,)
    siblings = 1 if job.on_siblings else job.machine.threads_per_core
    started = _started(job)
    script = bash.launch_script(
        job,
        "slurm",
        "sbatch",
        (UNPROMISED,),
        directives=directives(job),
        ranks=str(plan.processes_per_node * siblings),
        least=str(cpus_per_task(job)),
        rank=bash.rank(bash.rank_words(job, "slurm", offered=True)),
        submitted=bash.submitted(job),
        start=started.command(WIDTH),
        launches=(started.launch,),
    )
    return (replace(script, target=allocation(job)),)


def _started(job: LaunchJob) -> LaunchLine:
    plan = job.plan
    options = one_task_each(
        nodes=plan.nodes,
        ranks=plan.world_size,
        ranks_per_node=plan.processes_per_node,
        cpus=ShellText("$each"),
    )
    return start(
        "python",
        (bash.PYTHON,),
        (),
        bash.trained(job.command),
        before=("srun", *options, _SOME_NODES),
        through=(*bash.rank_words(job, "slurm", offered=True), "--", *bash.trained(applied(job))),
        written=(bash.RANK, *bash.ALL_TRAINED, bash.MORE),
        environment=bash.rank_variables(job),
        removed=bash.names_cleared(job),
        part=True,
    )


# Some nodes of the allocation, if they are named.
_SOME_NODES = ShellText("--nodelist=$LAUNCH_NODES", '${LAUNCH_NODES:+--nodelist="$LAUNCH_NODES"}')


def allocation(job: LaunchJob) -> Target:
    """What the job asks Slurm for."""
    return slurm_job(
        nodes=job.plan.nodes,
        tasks_per_node=job.plan.processes_per_node,
        cpus_per_task=cpus_per_task(job),
        exclusive=True,
    )


def directives(job: LaunchJob) -> str:
    """The lines that sbatch reads."""
    cluster = job.site.cluster
    hint = "multithread" if job.on_siblings else "nomultithread"
    lines = [
        f"--job-name={job_name(job)} --output=%x-%j.out --time={cluster.time_limit or '24:00:00'}",
        f"{' '.join(slurm_options(allocation(job)))} --hint={hint} --exclusive",
    ]
    if cluster.partition is not None:
        lines.append(f"--partition={cluster.partition}")
    if cluster.account is not None:
        lines.append(f"--account={cluster.account}")
    text = "".join(f"#SBATCH {line}\n" for line in lines)
    if cluster.partition is None:
        text += "# Unless the cluster has a default: #SBATCH --partition=<your-partition>\n"
    return text


def cpus_per_task(job: LaunchJob) -> int:
    """CPUs of a task: cores with nomultithread, hyperthreads without."""
    workers = job.plan.ccl_workers * (job.machine.threads_per_core if job.on_siblings else 1)
    return job.plan.threads_per_process + workers


SLURM = Format(
    name="slurm",
    write=emit_slurm,
    main="slurm.sh",
    alone=True,
    elsewhere=True,
    consumers=("bash", "sbatch"),
)
