#!/usr/bin/env bash
{{header}}
{{directives}}
{{strict}}

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
{{python}}
{{clear}}
{{oneccl}}
{{training}}
{{no_colon}}

{{exports}}

# The step takes all CPUs of the job, and shares them with steps that only wait; rank.py binds.
unset SLURM_EXACT SLURM_EXCLUSIVE "${!SLURM_CPU_BIND@}"
export SLURM_OVERLAP=1
cpus=$(tr , '\n' <<<"${SLURM_JOB_CPUS_PER_NODE:-0}" | sed 's/(.*//' | sort -n | head -n 1)
each=$((cpus / {{ranks}}))
((each >= {{least}})) || each={{least}}
export SRUN_CPUS_PER_TASK=$each
{{free_port}}

# LAUNCH_NODES: those of the allocation that take part, where not all do.
nodes=${LAUNCH_NODES:-$SLURM_JOB_NODELIST}
MASTER_ADDR=$(scontrol show hostnames "$nodes" | head -n 1)
export MASTER_ADDR MASTER_PORT=$port

launch=(
  srun --nodes={{nodes}} --ntasks={{world}}
  --ntasks-per-node={{local}} --cpus-per-task="$each"
  ${LAUNCH_NODES:+--nodelist="$LAUNCH_NODES"}
  --cpu-bind=cores --distribution=block:block --export=ALL
  --kill-on-bad-exit=1
)
{{rank}}
exec "${launch[@]}" "$python" "${rank[@]}" -- "${train[@]}" "$@"
