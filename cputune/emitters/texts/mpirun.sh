#!/usr/bin/env bash
{{header}}
{{strict}}
{{here}}
{{python}}
{{clear}}
{{installed}}
{{oneccl}}
{{needs}}
{{no_colon}}
{{training}}
{{free_port}}
{{exports}}
{{rank}}
{{detect}}
launch+=("${rank[@]}" -- "${train[@]}")
{{start}}
