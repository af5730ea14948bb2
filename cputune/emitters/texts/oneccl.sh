
# oneCCL and the Intel MPI that it comes with (https://github.com/intel/torch-ccl).
setvars=$("$python" -c '{{find_setvars}}')
[[ -f $setvars ]] ||
  fail "{{module}} has no env/setvars.sh here" \
    "install the oneccl_bind_pt that fits torch"
set +eu
# shellcheck disable=SC1090
source "$setvars"
set -eu
