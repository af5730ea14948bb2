
# An mpirun of pip or conda lies beside the interpreter, whose directory need not be on PATH.
beside=$(dirname -- "$(command -v -- "$python")")
command -v mpirun >/dev/null || [[ ! -x $beside/mpirun ]] || PATH=$PATH:$beside

# Which dialect this mpirun speaks; its name does not say.
mpirun={{mpirun}}
command -v -- "$mpirun" >/dev/null || fail "there is no $mpirun" "install {{of_mpi}}, or mend PATH"
version=$("$mpirun" --version 2>&1 || true)
case $version in
  *"Intel(R) MPI"*) dialect=intelmpi ;;
  *HYDRA*) dialect=mpich ;;
  *"(Open MPI) 4."* | *"(OpenRTE) 4."*) dialect=openmpi4 ;;
  *"(Open MPI) "* | *"(OpenRTE) "*) dialect=openmpi5 ;;
  *) dialect=unknown ;;
esac
