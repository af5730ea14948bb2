here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]:-$0}")")
{{beside}}
