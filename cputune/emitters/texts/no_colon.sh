for word in "$@"; do
  [[ $word != : ]] || fail "a lone colon would start another program here" "write it otherwise"
done
