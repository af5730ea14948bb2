#!/bin/bash
GPUS=2
deepspeed --num_gpus=$GPUS --master_port 29600 \
  --bind_cores_to_rank --no_local_rank \
  finetune.py \
  --deepspeed zero2.json --lr 1e-4
deepspeed --hostfile hosts --num_nodes 2 finetune.py --deepspeed zero2.json
