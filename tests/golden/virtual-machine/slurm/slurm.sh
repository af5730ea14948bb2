#!/usr/bin/env bash
# Launch of bert-mini. Written by cputune VERSION.
# Your current launch is as fast as the best other plan, within 5%. How sure: 95 % interval
# 0.98–1.02, 10 pairs side by side
# Plan: 1 × 2 threads, fp32.
# No plan beat plain `python train.py` beyond noise: this is that launch.
# Measured for bert-mini on AMD EPYC, 1 socket, 2 cores, 2 CPUs, on 2026-11-20: 20 samples/s
# (95 % interval 19.7 to 20.4).
# cputune-plan: slurm, plan.json
#SBATCH --job-name=bert-mini --output=%x-%j.out --time=24:00:00
#SBATCH --nodes=1 --ntasks-per-node=1 --cpus-per-task=2 --hint=nomultithread --exclusive
# Unless the cluster has a default: #SBATCH --partition=<your-partition>
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # if it was started as sh FILE
set -euo pipefail
fail() { printf 'error: %s\nhint: %s\n' "$1" "$2" >&2; exit 3; }
python=${PYTHON:-python3}
# Slurm runs a copy of this script: what belongs to it lies where it was submitted.
submitted=$(scontrol show job "${SLURM_JOB_ID:-}" 2>/dev/null | sed -n 's/^ *Command=//p' || true)
while [[ $submitted == *" "* && ! -f $submitted ]]; do submitted=${submitted% *}; done
beside=$(dirname -- "$(readlink -f -- "${submitted:-.}" || echo .)")
for here in "${LAUNCH_DIR:-}" "${0%/*}" "$beside" "${SLURM_SUBMIT_DIR:-.}" "${SLURM_SUBMIT_DIR:-.}/launch"; do
  [[ ! -f $here/train.py ]] || break
done
for file in train.py recipe.json; do
  [[ -f $here/$file ]] || fail "$file is not beside ${0##*/}" "LAUNCH_DIR=DIR sbatch slurm.sh"; done
export ACCELERATE_USE_CPU=true OMP_NUM_THREADS=2
bind=(taskset -c 0-1) # where Slurm gives those
[[ $("${bind[@]}" nproc) == 2 ]] || bind=()
exec ${bind[@]+"${bind[@]}"} "$python" "$here/train.py" "$here/recipe.json" \
  --output_dir out --use_cpu --per_device_train_batch_size 8 "$@"
