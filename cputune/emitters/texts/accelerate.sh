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
{{rank}}
{{exports}}
{{detect}}
# It sets KMP_AFFINITY and KMP_BLOCKTIME itself: env puts the plan's back.
launch=(
  "$python" -m accelerate.commands.launch --config_file "$here/accelerate.yaml"
  --num_cpu_threads_per_process {{threads}} --mixed_precision {{precision}}
  --mpirun_hostfile "$hosts" --main_process_port "$port"
  {{changed}} "$python" "${rank[@]}" -- "${train[@]}"
)
{{watched}}
