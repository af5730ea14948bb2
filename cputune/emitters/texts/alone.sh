#!/usr/bin/env bash
{{header}}
{{directives}}
{{strict}}
{{python}}
{{here_if_needed}}
{{clear}}
{{installed}}
{{needs}}
{{exports}}
{{start}}
