#!/usr/bin/env bash
{{header}}
# Started as `sh FILE`, it goes on in bash.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"
set -euo pipefail
{{tuned}}
{{clear}}
{{needs}}
{{exports}}
{{start}}
{{promise}}
