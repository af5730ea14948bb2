"""``slurm --tune``: a job that tunes where it will train."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from golden_texts import Golden
from in_process import ran
from machines import TODAY, machine

from cputune import Cluster, UsageError, Workload, emit

FACTS = machine(cores_per_socket=8, threads_per_core=2, packages=TODAY)
WORDS = ["run_qa.py", "--do_train", "--output_dir", "my out", "--note", "it's $HOME"]
SCRIPT = Workload.script(WORDS, global_batch_size=8)


def written(format: str, job: Workload = SCRIPT, **cluster: Any) -> str:
    (file,) = emit(None, format, facts=FACTS, workload=job, cluster=Cluster(**cluster))
    assert file.executable is (format == "slurm")
    return file.text


class TestSlurm:
    def test_it_tunes_in_its_allocation_and_trains_with_what_it_found(self, tmp_path: Path) -> None:
        text = written("slurm", tune=True, partition="cpu", time_limit="02:00:00")
        assert "#SBATCH --partition=cpu\n" in text
        assert "#SBATCH --exclusive\n" in text
        script = tmp_path / "slurm-tune.sh"
        script.write_text(text, encoding="utf-8")
        (tmp_path / "cputune").write_text(
            '#!/bin/sh\nprintf "[%s]" "$@" >> seen; echo >> seen\n'
            '[ "$1" != emit ] || { mkdir launch-7; echo "echo trains" > launch-7/slurm.sh; }\n'
        )
        (tmp_path / "cputune").chmod(0o755)
        env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
        done = ran(["bash", str(script), "--budget", "5"], cwd=tmp_path, env=env, check=True)
        assert done.stdout == "trains\n"
        tune, emitted = (tmp_path / "seen").read_text(encoding="utf-8").splitlines()
        asked = ["tune", "-o", "cputune-7.json", "--budget", "5", "--", *WORDS]
        assert tune == "".join(f"[{word}]" for word in asked)
        assert emitted == "[emit][cputune-7.json][--format][slurm][-o][launch-7]"

    def test_outside_of_a_job_it_says_how_it_is_started(
        self, tmp_path: Path, golden: Golden
    ) -> None:
        (tmp_path / "cputune").write_text("#!/bin/sh\n")
        (tmp_path / "cputune").chmod(0o755)
        env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        done = ran(["bash", "-c", written("slurm", tune=True)], cwd=tmp_path, env=env)
        assert done.returncode != 0
        golden(done.stderr)


def test_a_recipe_is_tuned_by_its_name(golden: Golden) -> None:
    job = Workload.from_recipe("bert-mini")
    assert 'cputune tune -o "$found" "$@" --recipe bert-mini ||' in written("slurm", job, tune=True)
    own = replace(job, recipe=replace(job.recipe, name="mine"))  # type: ignore[type-var]
    with golden.raises(UsageError):
        written("slurm", own, tune=True)
