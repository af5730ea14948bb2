# accelerate and Intel MPI's mpirun leave their ranks behind when they alone are killed: so a
# signal to this script goes to all that it has started.
[[ ! -t 0 ]] || exec </dev/null
set -m
"${launch[@]}" "$@" &
for signal in HUP INT QUIT TERM; do
  # shellcheck disable=SC2064 # each trap its own signal
  trap "kill -s $signal -- -$! 2>/dev/null || true" "$signal"
done
while
  status=0
  wait "$!" || status=$?
  kill -0 "$!" 2>/dev/null # a signal to this script only interrupted the waiting
do :; done
kill -s TERM -- "-$!" 2>/dev/null || true
exit "$status"
