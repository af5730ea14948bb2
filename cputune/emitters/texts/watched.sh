# accelerate and Intel MPI leave ranks behind if they alone are killed: a signal goes to all.
set -m; [[ ! -t 0 ]] || exec </dev/null
"${launch[@]}" "$@" &
pass() { kill -s "$1" -- "-$!" 2>/dev/null || true; }
trap 'pass HUP' HUP; trap 'pass INT' INT; trap 'pass QUIT' QUIT; trap 'pass TERM' TERM
while status=0; wait "$!" || status=$?; kill -0 "$!" 2>/dev/null; do :; done
pass TERM; exit "$status"
