#!/bin/bash
# einfaches Training – für die CPU
usage() { echo "python train.py DATA"; exit 1; }
[ $# -lt 1 ] && usage
cat <<EOF > ds.json
{"train_batch_size": "don't"}
EOF
if [[ "$1" == bf16 ]]; then PREC="--bf16"; else PREC=""; fi
for seed in 1 2 3; do
  OMP_NUM_THREADS=2 numactl -C 0-1 python train.py --seed $seed $PREC --note "größer" \
    --data "$(dirname "$1")/x" || break
done
mpirun -n 2 -genv OMP_NUM_THREADS 2 -ppn 2 python train.py --use_cpu --output_dir out
