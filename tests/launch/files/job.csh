#!/bin/tcsh
#SBATCH --nodes 1
#SBATCH --cpus-per-task=4
set model = bert-base-uncased
if ( ! $?HF_HOME ) then
  setenv HF_HOME /scratch/$USER/hf
endif
setenv OMP_NUM_THREADS 64
source /scratch/$USER/env/bin/activate.csh
srun python run_glue.py --model_name_or_path $model --do_train --output_dir out --no_cuda
