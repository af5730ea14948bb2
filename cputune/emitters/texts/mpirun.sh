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
launch+=("$python" "${rank[@]}" -- "${train[@]}")
{{start}}
