#!/usr/bin/env bash
{{header}}
{{strict}}
{{here}}
{{python}}
{{numbered}}
{{clear}}
{{oneccl}}
{{needs}}
{{training}}
{{port}}
{{rank}}
{{exports}}
exec "$python" -m torch.distributed.run --nnodes {{nodes}} --node-rank {{node_rank}} \
  --nproc-per-node {{ranks}} --master-addr {{address}} --master-port "$port" \
  "${rank[@]}" -- "${train[@]}" "$@"
