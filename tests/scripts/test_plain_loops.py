"""Loops over torch alone: tuned in what no script decides, launched, verified, unchanged else."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from in_process import ran

import cputune
from cputune.knobs import OWNED
from cputune.workload import Workload

HERE = Path(__file__).parent

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]


def test_a_plain_loop_that_accumulates_is_tuned_launched_and_verified(tmp_path: Path) -> None:
    """``test_matrix.py`` has it as it stands."""
    words, batch, precision = ("--accumulate", "2", "--bf16", "--epochs", "2"), 16, "bf16"
    script = tmp_path / "users" / "plain_loop.py"
    script.parent.mkdir()
    shutil.copy(HERE / script.name, script)
    script.parent.chmod(0o555)
    work = tmp_path / "work"
    work.mkdir()
    before = Path.cwd()
    os.chdir(work)
    try:
        result = cputune.tune(Workload.script([str(script), *words]), budget=3, share_machine=True)
        assert os.listdir(work) == [], "a trial writes nothing"
        assert os.listdir(script.parent) == [script.name]
        workload = result.workload
        assert (workload.framework, workload.global_batch_size) == ("pytorch", batch)
        assert result.best is not None
        assert {result.best.plan.precision, result.baseline.plan.precision} == {precision}
        assert {out.what for out in result.left_out} >= OWNED["pytorch"].keys()

        for format in ("torchrun", *(("mpirun",) if shutil.which("mpirun") else ())):
            files = cputune.emit(result, format, python=sys.executable)
            for file in files:
                Path(file.name).write_text(file.text, encoding="utf-8")
            assert not Path("carry.py").exists()
            checks = cputune.verify([files[0].name], steps=3)[0].checks
            failed = {check.name for check in checks if check.state == "failed"}
            assert failed <= {"throughput"}, "that alone is another one on a busy machine"
            assert not Path("plain_loop.pt").exists()
            done = ran(["bash", files[0].name])
            assert done.returncode == 0, done.stderr[-3000:]
            assert "steps, accuracy" in done.stdout
            Path("plain_loop.pt").unlink()
    finally:
        os.chdir(before)
        script.parent.chmod(0o755)
