# Slurm runs a copy of this script: what belongs to it lies where it was submitted.
submitted=$(scontrol show job "${SLURM_JOB_ID:-}" 2>/dev/null | sed -n 's/^ *Command=//p' || true)
while [[ $submitted == *" "* && ! -f $submitted ]]; do submitted=${submitted% *}; done
beside=$(dirname -- "$(readlink -f -- "${submitted:-.}" || echo .)")
for here in "${LAUNCH_DIR:-}" {{started}}"$beside" "${SLURM_SUBMIT_DIR:-.}" "${SLURM_SUBMIT_DIR:-.}/launch"; do
  [[ ! -f $here/{{wanted}} ]] || break
done
{{beside}}
