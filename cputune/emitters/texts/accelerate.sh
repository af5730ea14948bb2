#!/usr/bin/env bash
{{header}}
{{strict}}
{{here}}
{{python}}
"$python" -c 'import importlib.util, sys
sys.exit(importlib.util.find_spec("accelerate") is None)' ||
  fail "$python has no accelerate" "pip install accelerate"
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
