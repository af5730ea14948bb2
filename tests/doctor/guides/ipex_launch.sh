#!/bin/bash
export CCL_WORKER_COUNT=1
python -m intel_extension_for_pytorch.cpu.launch --distributed --nproc_per_node 2 \
  run_qa.py --do_train --output_dir /tmp/debug_squad --no_cuda --xpu_backend ccl
