# All nodes start, or none: where one cannot have its CPUs all end, and say why.
MASTER_ADDR={{address}} MASTER_PORT=$port \
  "$python" "${rank[@]}" --meet {{seconds}} --node "$node_rank/{{nodes}}" --look
