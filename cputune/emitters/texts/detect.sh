command -v mpirun >/dev/null || PATH=$PATH:$(dirname -- "$(command -v -- "$python")") # of pip
{{named}}
case $({{mpirun}} --version 2>&1 || true) in
{{dialects}}
  *) fail "mpirun is not {{of_mpi}}" "install it, or cputune emit --mpi NAME" ;;
esac
