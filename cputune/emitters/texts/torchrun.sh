#!/usr/bin/env bash
{{header}}
{{strict}}
{{here}}
{{inputs}}
{{python}}
{{clear}}
{{oneccl}}
{{training}}

{{exports}}
{{port}}

launch=(
  "$python" -m torch.distributed.run
  --nnodes {{nodes}} --node-rank {{node_rank}}
  --nproc-per-node {{ranks}}
  --master-addr {{address}} --master-port "$port"
)
{{rank}}
exec "${launch[@]}" "${rank[@]}" -- "${train[@]}" "$@"
