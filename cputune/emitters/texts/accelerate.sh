#!/usr/bin/env bash
{{header}}
{{strict}}
{{here}}
{{python}}
{{clear}}
{{oneccl}}
{{needs}}
{{no_colon}}
{{training}}
{{free_port}}
{{exports}}
{{rank}}
{{detect}}
launch=("$python" -m accelerate.commands.launch --config_file "$here/accelerate.yaml"
  --num_cpu_threads_per_process {{threads}} --mixed_precision {{precision}} --mpirun_hostfile "$hosts"
  --main_process_port "$port" --no_python "${rank[@]}" -- "${train[@]}")
{{watched}}
