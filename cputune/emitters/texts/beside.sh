for file in {{files}}; do
  [[ -f $here/$file ]] || fail "$file is not beside ${0##*/}" "keep the emitted files in one directory"
done
