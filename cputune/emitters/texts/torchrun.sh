#!/usr/bin/env bash
{{header}}
{{strict}}
{{here}}
{{python}}
{{numbered}}
{{clear}}
{{installed}}
{{oneccl}}
{{needs}}
{{training}}
{{port}}
{{rank}}
{{exports}}
{{start}}
