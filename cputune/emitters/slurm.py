"""``slurm``: a batch script for sbatch, one srun task for each rank.

Slurm copies the script away before it runs, so its companions are looked for where it was
submitted. A step says its own nodes, CPUs, binding and overlap: what salloc, sbatch or an outer
step was asked for stands in variables that srun reads (SLURM_EXACT, SRUN_CPUS_PER_TASK,
SLURM_CPU_BIND), and would cut a node to one CPU.
"""

from __future__ import annotations

from cputune.emitters import header, shell
from cputune.emitters.format import EmittedFile, Format, LaunchJob
from cputune.emitters.job import job_name
from cputune.emitters.mpirun import NO_COLON, refuse_colon

UNPROMISED = (
    "Slurm gives CPUs by its own numbering: each rank takes the plan's CPUs where its job may "
    "use them, else it keeps the cores that srun bound, and says so."
)

FIND_COMPANIONS = r"""
# Slurm runs a copy of this script; its companions lie where it was submitted.
command=$(scontrol show job "${SLURM_JOB_ID:-}" 2>/dev/null | sed -n 's/^ *Command=//p' || true)
# Its arguments stand in that line too: the script is the first part that is a file.
read -ra words <<<"${command:-.}"
script=""
for word in "${words[@]}"; do
  script+=${script:+ }$word
  [[ ! -f $script ]] || break
done
beside=$(dirname -- "$(readlink -f -- "$script" || echo .)")
submitted=${SLURM_SUBMIT_DIR:-$PWD}
for here in "${LAUNCH_DIR:-}" "$beside" "$submitted" "$submitted/launch"; do
  [[ ! -f $here/rank.py ]] || break
done
[[ -f $here/rank.py ]] ||
  fail "rank.py is not beside the script that was submitted" "LAUNCH_DIR=DIR sbatch slurm.sh"
"""

STEP = r"""
# The step takes all CPUs of the job, and shares them with steps that only wait; rank.py binds.
unset SLURM_EXACT SLURM_EXCLUSIVE "${{!SLURM_CPU_BIND@}}"
export SLURM_OVERLAP=1
cpus=$(tr , '\n' <<<"${{SLURM_JOB_CPUS_PER_NODE:-0}}" | sed 's/(.*//' | sort -n | head -n 1)
each=$((cpus / {ranks}))
((each >= {least})) || each={least}
export SRUN_CPUS_PER_TASK=$each
"""

ADDRESS = r"""
# LAUNCH_NODES: those of the allocation that take part, where not all do.
nodes=${LAUNCH_NODES:-$SLURM_JOB_NODELIST}
MASTER_ADDR=$(scontrol show hostnames "$nodes" | head -n 1)
export MASTER_ADDR MASTER_PORT=$port
"""


def emit_slurm(job: LaunchJob) -> tuple[EmittedFile, ...]:
    """The batch script. Raises UsageError for words that srun cannot carry."""
    refuse_colon(job)
    plan = job.plan
    if plan.node_cpus:
        shell.require_hosts(job)
    text = "#!/usr/bin/env bash\n"
    text += header.full(job, "slurm", f"Launch of {job.workload.name} with sbatch.", (UNPROMISED,))
    text += "".join(f"#SBATCH --{line}\n" for line in directives(job))
    if job.cluster.partition is None:
        text += "# Unless the cluster has a default: #SBATCH --partition=<your-partition>\n"
    text += shell.STRICT + FIND_COMPANIONS + shell.python(job) + shell.clear()
    text += shell.oneccl(job) + shell.training(job) + NO_COLON
    text += "\n" + shell.exports(shell.variables(job))
    siblings = 1 if job.on_siblings else job.threads_per_core
    ranks = plan.processes_per_node * siblings
    text += STEP.format(ranks=ranks, least=cpus_per_task(job))
    text += shell.FREE_PORT + ADDRESS
    launch = [
        f"srun --nodes={plan.nodes} --ntasks={plan.world_size}",
        f'--ntasks-per-node={plan.processes_per_node} --cpus-per-task="$each"',
        '${LAUNCH_NODES:+--nodelist="$LAUNCH_NODES"}',
        "--cpu-bind=cores --distribution=block:block --export=ALL",
        "--kill-on-bad-exit=1",  # else the ranks of other nodes wait for one that has failed
    ]
    text += shell.lines_array("launch", launch) + shell.rank(job, "slurm", binding="offered")
    text += shell.start('"$python" "${rank[@]}" -- "${train[@]}"', watched=False)
    main = EmittedFile(name="slurm.sh", text=text, executable=True, notes=(UNPROMISED,))
    return (main, *shell.meeting(job))


def directives(job: LaunchJob) -> list[str]:
    """What sbatch is asked for."""
    cluster = job.cluster
    lines = [
        f"job-name={job_name(job)}",
        f"nodes={job.plan.nodes}",
        f"ntasks-per-node={job.plan.processes_per_node}",
        f"cpus-per-task={cpus_per_task(job)}",
        f"hint={'multithread' if job.on_siblings else 'nomultithread'}",
        "exclusive",
        f"time={cluster.time_limit or '24:00:00'}",
        "output=%x-%j.out",
    ]
    if job.plan.node_cpus:  # each host has CPUs of its own in the plan
        lines.append("nodelist=" + ",".join(node.name for node in job.nodes))
    if cluster.partition is not None:
        lines.append(f"partition={cluster.partition}")
    if cluster.account is not None:
        lines.append(f"account={cluster.account}")
    return lines


def cpus_per_task(job: LaunchJob) -> int:
    """CPUs of a task: cores with nomultithread, hyperthreads without."""
    workers = job.plan.ccl_workers * (job.threads_per_core if job.on_siblings else 1)
    return job.plan.threads_per_process + workers


SLURM = Format(
    name="slurm",
    write=emit_slurm,
    main="slurm.sh",
    beside="nothing",
    fits="Slurm",
    start="`sbatch launch/slurm.sh`",
    known_by=r"^#SBATCH\s",
    consumers=("bash", "sbatch"),
    script=True,
)
