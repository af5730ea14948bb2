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
{{start}}
