deepspeed --num_accelerators 2 --bind_cores_to_rank run_qa.py --deepspeed ds_config.json \
  --do_train --output_dir /tmp/debug_squad --evaluation_strategy no --overwrite_output_dir
