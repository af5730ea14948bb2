
case $dialect in
  intelmpi | mpich) hosts=$here/hosts.hydra ;;
  openmpi*)
    hosts=$here/hosts.openmpi
    [[ $EUID -ne 0 ]] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    ;;
  *) fail "mpirun is no MPI that is known here" "install Intel MPI, MPICH or Open MPI" ;;
esac
[[ -f $hosts ]] ||
  fail "these files were written for another MPI than this $dialect" \
    "cputune emit --format accelerate --mpi $dialect"
