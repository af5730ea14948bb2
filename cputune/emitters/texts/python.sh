python=${PYTHON:-python3}
{{tuned}}
