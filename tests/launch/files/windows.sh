export OMP_NUM_THREADS=2
python run_qa.py \
  --do_train \
  --no_cuda
