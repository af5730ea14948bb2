for word; do [[ $word != : ]] || fail "':' alone separates two programs for mpirun" "leave it out"; done
