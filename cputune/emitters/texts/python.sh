python=${PYTHON:-python3}
{{tuned}}
command -v -- "$python" >/dev/null ||
  fail "there is no $python" "set PYTHON to the interpreter that trains"
"$python" -c 'import importlib.util, sys
sys.exit(importlib.util.find_spec("torch") is None)' ||
  fail "$python has no torch" "set PYTHON to the interpreter that trains"
