# accelerate and Intel MPI's mpirun leave their ranks behind when they alone are killed: so a
# signal to this script goes to all that it has started.
[[ ! -t 0 ]] || exec </dev/null
set -m
"${launch[@]}" "$@" &
# shellcheck disable=SC2064 # each trap its own signal
for one in HUP INT QUIT TERM; do trap "kill -s $one -- -$! 2>/dev/null || true" "$one"; done
while status=0; wait "$!" || status=$?; kill -0 "$!" 2>/dev/null; do :; done
kill -s TERM -- "-$!" 2>/dev/null || true
exit "$status"
