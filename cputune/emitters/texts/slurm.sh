#!/usr/bin/env bash
{{header}}
{{directives}}
{{strict}}
{{submitted}}
{{python}}
{{clear}}
{{oneccl}}
{{no_colon}}
{{training}}
{{free_port}}
{{rank}}
{{exports}}
# The step takes all CPUs of the job, and shares them with steps that only wait; rank.py binds.
unset SLURM_EXACT SLURM_EXCLUSIVE "${!SLURM_CPU_BIND@}"
cpus=$(tr , '\n' <<<"${SLURM_JOB_CPUS_PER_NODE:-0}" | sed 's/(.*//' | sort -n | head -n 1)
each=$((cpus / {{ranks}} > {{least}} ? cpus / {{ranks}} : {{least}}))
nodes=${LAUNCH_NODES:-$SLURM_JOB_NODELIST} # those of the allocation that take part
MASTER_ADDR=$(scontrol show hostnames "$nodes" | head -n 1)
export SLURM_OVERLAP=1 SRUN_CPUS_PER_TASK=$each MASTER_ADDR MASTER_PORT=$port
{{start}}
