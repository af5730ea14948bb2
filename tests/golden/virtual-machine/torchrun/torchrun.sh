#!/usr/bin/env bash
# Launch of bert-mini. Written by cputune VERSION.
# Your current launch is as fast as the best other plan, within 5%. How sure: 95 % interval
# 0.98–1.02, 10 pairs side by side
# Plan: 1 × 2 threads, fp32.
# No plan beat plain `python train.py` beyond noise: this is that launch.
# Measured for bert-mini on AMD EPYC, 1 socket, 2 cores, 2 CPUs, on 2026-11-20: 20 samples/s
# (95 % interval 19.7 to 20.4).
# cputune-plan: torchrun, plan.json
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # if it was started as sh FILE
set -euo pipefail
fail() { printf 'error: %s\nhint: %s\n' "$1" "$2" >&2; exit 3; }
python=${PYTHON:-python3}
here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]:-$0}")")
for file in train.py recipe.json; do
  [[ -f $here/$file ]] || fail "$file is not beside ${0##*/}" "copy it here"; done
[[ $(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT taskset -c 0-1 nproc 2>/dev/null) == 2 ]] ||
  fail 'CPUs 0-1 are not all on this machine' 'tune where it runs'
export ACCELERATE_USE_CPU=true OMP_NUM_THREADS=2
exec taskset -c 0-1 "$python" "$here/train.py" "$here/recipe.json" --output_dir out \
  --use_cpu --per_device_train_batch_size 8 "$@"
