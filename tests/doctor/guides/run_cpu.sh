python -m torch.backends.xeon.run_cpu --ninstances 2 --ncores-per-instance 1 run_qa.py --do_train --output_dir /tmp/debug_squad --use_cpu
