#!/bin/bash
export OMP_NUM_THREADS=1
python -m torch.distributed.launch --nproc_per_node=2 --use_env --master_port=29123 train.py --epochs 1
