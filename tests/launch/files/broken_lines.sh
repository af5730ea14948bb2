export OMP_NUM_THREADS=2
python run_glue.py \
  --do_train \ 
  --output_dir out
  --use_cpu \
  # --fp16 \
  --max_steps 100
