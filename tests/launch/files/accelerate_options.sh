export HF_HOME=/data/cache
nohup accelerate launch \
  --cpu --num_processes 2 --num_machines 1 \
  --main_process_port 29511 \
  --mixed_precision bf16 --dynamo_backend inductor \
  --max_restarts 2 --debug --gpu_ids all \
  train.py --lr 3e-5 > out.log 2>&1 &
wait
