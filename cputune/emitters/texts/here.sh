here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]:-$0}")")
[[ -f $here/rank.py ]] ||
  fail "rank.py is not beside ${0##*/}" "keep the files that were emitted together in one directory"
