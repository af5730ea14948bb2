for word; do [[ $word != : ]] || fail "a lone colon would start another program" "leave it out"; done
