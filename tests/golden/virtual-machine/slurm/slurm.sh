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
here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]:-$0}")")
for file in train.py recipe.json; do
  [[ -f $here/$file ]] || fail "$file is not beside ${0##*/}" "copy it here"; done
export ACCELERATE_USE_CPU=true OMP_NUM_THREADS=2
bind=(taskset -c 0-1) # where Slurm gives those
[[ $("${bind[@]}" nproc) == 2 ]] || bind=()
exec ${bind[@]+"${bind[@]}"} "$python" "$here/train.py" "$here/recipe.json" \
  --output_dir out --use_cpu --per_device_train_batch_size 8 "$@"
