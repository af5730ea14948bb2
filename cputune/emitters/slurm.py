"""``slurm``: a batch script for sbatch, one srun task for each rank.

Slurm copies the script away before it runs, so its companions are looked for where it was
submitted. A step says its own nodes, CPUs, binding and overlap: what salloc, sbatch or an outer
step was asked for stands in variables that srun reads (SLURM_EXACT, SRUN_CPUS_PER_TASK,
SLURM_CPU_BIND), and would cut a node to one CPU.
"""

from __future__ import annotations

from cputune.emitters import shell
from cputune.emitters.alone import script_of_one
from cputune.emitters.format import EmittedFile, Format, LaunchJob
from cputune.emitters.job import job_name
from cputune.emitters.mpirun import refuse_colon

UNPROMISED = (
    "Slurm gives CPUs by its own numbering: where a rank may not use the plan's, it keeps the "
    "cores that srun bound, and says so."
)


def emit_slurm(job: LaunchJob) -> tuple[EmittedFile, ...]:
    """The batch script. Raises UsageError for words that srun cannot carry."""
    refuse_colon(job)
    plan = job.plan
    if plan.world_size == 1:
        return (script_of_one(job, "slurm", directives=directives(job), offered=True),)
    siblings = 1 if job.on_siblings else job.threads_per_core
    script = shell.launch_script(
        job,
        "slurm",
        "sbatch",
        (UNPROMISED,),
        directives=directives(job),
        ranks=str(plan.processes_per_node * siblings),
        least=str(cpus_per_task(job)),
        nodes=str(plan.nodes),
        world=str(plan.world_size),
        local=str(plan.processes_per_node),
        rank=shell.rank(job, "slurm", offered=True),
    )
    return (script,)


def directives(job: LaunchJob) -> str:
    """The lines that sbatch reads."""
    cluster = job.cluster
    hint = "multithread" if job.on_siblings else "nomultithread"
    lines = [
        f"--job-name={job_name(job)} --output=%x-%j.out --time={cluster.time_limit or '24:00:00'}",
        f"--nodes={job.plan.nodes} --ntasks-per-node={job.plan.processes_per_node} "
        f"--cpus-per-task={cpus_per_task(job)} "
        f"--hint={hint} --exclusive",
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
    workers = job.plan.ccl_workers * (job.threads_per_core if job.on_siblings else 1)
    return job.plan.threads_per_process + workers


SLURM = Format(
    name="slurm",
    write=emit_slurm,
    main="slurm.sh",
    alone=True,
    consumers=("bash", "sbatch"),
)
