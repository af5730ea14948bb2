#!/usr/bin/env bash
{{header}}
{{strict}}
{{here}}
{{python}}
{{clear}}
{{oneccl}}
{{training}}

{{exports}}
{{mpi}}

launch=(
  "$python" -m accelerate.commands.launch
  --config_file "$here/accelerate.yaml"
  --num_cpu_threads_per_process {{threads}}
  --mixed_precision {{precision}}
{{launch}}
)
{{rank}}
launch+=("${rank[@]}" -- "${train[@]}")
{{watched}}
