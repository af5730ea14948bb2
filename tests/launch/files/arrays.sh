#!/usr/bin/env bash
set -euo pipefail
ranks=${RANKS:-2}
flags=(
  --do_train          # the first of them
  --output_dir "out put"
  --no_cuda
)
flags+=(--per_device_train_batch_size 8)
more="--logging_steps 10 \
  --save_strategy no"
export OMP_NUM_THREADS=4
torchrun --nproc-per-node "$ranks" --master-port=29511 run_glue.py "${flags[@]}" $more 2>&1 | tee log
