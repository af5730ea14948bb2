#!/usr/bin/env bash
{{header}}
{{strict}}
{{here}}
{{python}}
{{clear}}
{{oneccl}}
{{detect}}
{{only}}
{{training}}
{{no_colon}}
{{free_port}}
{{launch}}
{{rank}}
{{start}}
