ipexrun --ninstances 1 --ncores-per-instance 2 \
  run_qa.py --do_train --output_dir /tmp/debug_squad --no_cuda --bf16 --use_ipex
