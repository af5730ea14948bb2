#!/usr/bin/env bash
{{header}}
{{directives}}
{{strict}}

command -v cputune >/dev/null ||
  fail "there is no cputune on PATH" "activate its environment before sbatch, or in this file"
cd -- "${SLURM_SUBMIT_DIR:-$PWD}"
job=${SLURM_JOB_ID:?submit it: sbatch slurm-tune.sh}
found=cputune-$job.json

# Where nothing could be compared tune fails, and its result is the launch as it was typed.
cputune tune -o "$found" "$@" {{tuned}} || { code=$?; [ -s "$found" ] || exit "$code"; }
cputune emit "$found" --format slurm -o "launch-$job"
# The launch is a step of this job; LAUNCH_NODES would choose among its nodes.
exec bash "launch-$job/slurm.sh"
