# oneCCL and the Intel MPI that it comes with (https://github.com/intel/torch-ccl).
setvars=$("$python" -c '{{find_setvars}}' 2>/dev/null || true)
[[ -f $setvars ]] ||
  fail "{{module}} has no env/setvars.sh here" "install the one that fits torch"
set +eu
# shellcheck disable=SC1090
source "$setvars"
set -eu
