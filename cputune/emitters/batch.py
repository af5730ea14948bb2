"""``lsf`` and ``pbs``: batch scripts in which mpirun starts the ranks.

Both give a job whole hosts and name them (LSB_MCPU_HOSTS, PBS_NODEFILE); what mpirun is told is
what ``mpirun.sh`` tells it. LSF reads a script from its input, PBS runs a copy of it, so that the
companions are looked for where it was submitted.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from cputune.emitters import header, mpirun, shell
from cputune.emitters.format import EmittedFile, Format, LaunchJob
from cputune.emitters.job import job_name
from cputune.errors import UsageError

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_TIME = re.compile(r"(?:([0-9]{1,3})-)?([0-9]{1,4}):([0-9]{2})(?::([0-9]{2}))?")

FIND = r"""
# The batch system runs a copy of this script; its companions lie where it was submitted.
submitted=${%s:-$PWD}
cd -- "$submitted"
for here in "${LAUNCH_DIR:-}" "$(dirname -- "${BASH_SOURCE[0]:-$0}")" "$submitted" \
  "$submitted/launch"; do
  [[ ! -f $here/rank.py ]] || break
done
[[ -f $here/rank.py ]] ||
  fail "rank.py is not beside the script that was submitted" "export LAUNCH_DIR=DIR, and submit"
"""
HOSTS = r"""
# The hosts of this job, for mpirun: each once.
read -ra names <<<"$(%(names)s | tr '\n' ' ')"
((${#names[@]} == %(nodes)d)) ||
  fail "the job has ${#names[@]} hosts, the plan is for %(nodes)d" "submit it as it was written"
first=${names[0]}
hosts=$(mktemp)
for name in "${names[@]}"; do
  if [[ $dialect == openmpi* ]]; then echo "$name slots=%(ranks)d"; else echo "$name:%(ranks)d"; fi
done >"$hosts"
"""
OF_LSF = "xargs -n 2 <<<\"${LSB_MCPU_HOSTS:-}\" | cut -d ' ' -f 1"
OF_PBS = 'sort -u -- "${PBS_NODEFILE:-/dev/null}"'


def _emitter(
    name: str, sign: str, directives: Callable[[LaunchJob], list[str]], folder: str, names: str
) -> Callable[[LaunchJob], tuple[EmittedFile, ...]]:
    def write(job: LaunchJob) -> tuple[EmittedFile, ...]:
        plan = job.plan
        if plan.node_cpus:
            raise UsageError(
                f"{name} chooses the hosts, and the plan has other CPUs for each",
                hint="--format mpirun --hosts a,b, or --format slurm",
            )
        text = "#!/usr/bin/env bash\n"
        text += header.full(job, name, f"Launch of {job.workload.name} with {name}.")
        text += "".join(f"{sign} {line}\n" for line in directives(job))
        text += shell.STRICT + FIND % folder + shell.python(job) + shell.clear()
        asked = {"names": names, "nodes": plan.nodes, "ranks": plan.processes_per_node}
        several = plan.nodes > 1
        text += mpirun.body(
            job, hosts='"$hosts"' if several else "", found=HOSTS % asked if several else ""
        )
        return (shell.script(f"{name}.sh", text), *shell.meeting(job))

    return write


def _cpus(job: LaunchJob) -> int:
    """Cores of each host that the ranks and the oneCCL workers take."""
    plan = job.plan
    return plan.processes_per_node * (plan.threads_per_process + plan.ccl_workers)


def _word(text: str, what: str) -> str:
    if not _NAME.fullmatch(text):
        raise UsageError(f"{text!r} is no {what} of a batch system", hint="letters, digits, . _ -")
    return text


def _minutes(job: LaunchJob) -> int:
    given = job.cluster.time_limit or "24:00:00"
    match = _TIME.fullmatch(given)
    if match is None:
        raise UsageError(f"{given!r} is no time limit", hint="--time 04:00:00")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return (days * 24 + hours) * 60 + minutes + (seconds > 0)


def of_lsf(job: LaunchJob) -> list[str]:
    """What bsub is asked for: whole hosts, a slot for each core."""
    cpus, minutes, cluster = _cpus(job), _minutes(job), job.cluster
    lines = [
        f"-J {job_name(job)}",
        f"-n {cpus * job.plan.nodes}",
        f'-R "span[ptile={cpus}]"',
        "-x",
        f"-W {minutes // 60}:{minutes % 60:02}",
        f"-oo {job_name(job)}-%J.out",
    ]
    if cluster.queue is not None:
        lines.append(f"-q {_word(cluster.queue, 'queue')}")
    if cluster.account is not None:
        lines.append(f"-P {_word(cluster.account, 'project')}")
    return lines


def of_pbs(job: LaunchJob) -> list[str]:
    """What qsub of PBS Professional and OpenPBS is asked for: whole hosts, apart."""
    plan, minutes, cluster = job.plan, _minutes(job), job.cluster
    lines = [
        f"-N {job_name(job)[:15]}",
        f"-l select={plan.nodes}:ncpus={_cpus(job)}:mpiprocs={plan.processes_per_node}"
        f":ompthreads={plan.threads_per_process}",
        "-l place=scatter:excl",
        f"-l walltime={minutes // 60:02}:{minutes % 60:02}:00",
        "-j oe",
    ]
    if cluster.queue is not None:
        lines.append(f"-q {_word(cluster.queue, 'queue')}")
    if cluster.account is not None:
        lines.append(f"-A {_word(cluster.account, 'account')}")
    return lines


def _format(
    name: str,
    sign: str,
    directives: Callable[[LaunchJob], list[str]],
    folder: str,
    names: str,
    start: str,
) -> Format:
    system = name.upper()
    return Format(
        name=name,
        write=_emitter(name, sign, directives, folder, names),
        main=f"{name}.sh",
        beside="nothing",
        fits=f"{system}, and an MPI",
        start=f"`{start} launch/{name}.sh`",
        known_by=rf"^{sign}\s",
        consumers=("bash",),
        script=True,
        untried="read by bash, its directives by a parser of ours; "
        f"no {system} was here to start it",
    )


LSF = _format("lsf", "#BSUB", of_lsf, "LS_SUBCWD", OF_LSF, "bsub <")
PBS = _format("pbs", "#PBS", of_pbs, "PBS_O_WORKDIR", OF_PBS, "qsub")
