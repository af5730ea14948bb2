#!/usr/bin/env bash
{{header}}
{{directives}}
{{strict}}
{{python}}
{{here_if_needed}}
{{clear}}
{{needs}}
{{exports}}
{{start}}
