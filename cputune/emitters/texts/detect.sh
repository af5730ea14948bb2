# An mpirun of pip or conda lies beside the interpreter, whose directory need not be on PATH.
command -v mpirun >/dev/null || PATH=$PATH:$(dirname -- "$(command -v -- "$python")")
mpirun={{mpirun}}
case $("$mpirun" --version 2>&1 || true) in
{{dialects}}
  *) fail "${mpirun##*/} is not {{of_mpi}}" "install it, mend PATH, or cputune emit --mpi NAME" ;;
esac
