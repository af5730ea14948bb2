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
{{start}}
{{watched}}
