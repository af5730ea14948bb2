python -m torch.backends.xeon.run_cpu --ninstances 2 --ncores-per-instance 4 \
  --enable-tcmalloc --log-path logs -m pkg.train --epochs 2
python -m torch.backends.xeon.run_cpu --throughput-mode infer.py
