"""Which Python trains: as typed, of the launcher, or of the active environment."""

from __future__ import annotations

import os
import shutil
import sys
import venv
from pathlib import Path

import pytest
from golden_texts import Golden
from in_process import ran

from cputune import UsageError, Workload, probe
from cputune.cli import inputs
from cputune.cli.inputs import choose_python
from cputune.host import LiveHost
from cputune.host.interpreter import install_tuning
from cputune.plans.layout import mild_plan
from cputune.plans.training_command import require_trainable
from cputune.ranks.typed import alone

SCRIPT = "import sys, torch; print(sys.prefix, torch.WHO)"


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment with a torch of its own, and without cputune."""
    place = tmp_path / "env"
    venv.create(place, with_pip=False)
    (packages,) = place.glob("lib/python*/site-packages")
    (packages / "torch").mkdir()
    (packages / "torch" / "__init__.py").write_text("WHO = 'of the environment'")
    about = packages / "torch-2.9.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.9.0\n")
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    return place


def test_the_environment_that_is_named_trains_and_is_looked_at(env: Path) -> None:
    python = choose_python(str(env))
    assert python.executable == str(env / "bin" / "python")
    facts = probe(python=python)
    assert facts.training_python == python
    assert facts.package("torch").version == "2.9.0"
    assert LiveHost(python).executable == python.executable
    assert python.has_module("torch")
    assert not python.has_module("transformers")


def test_the_python_before_the_script_is_taken(env: Path) -> None:
    python = choose_python(None, (str(env / "bin" / "python"), "train.py"))
    assert python.executable == str(env / "bin" / "python")


def test_the_first_line_of_a_launcher_says_who_trains(env: Path) -> None:
    launcher = env / "bin" / "torchrun"
    launcher.write_text(f"#!{env}/bin/python\n")
    launcher.chmod(0o755)
    python = choose_python(None, (str(launcher), "train.py"))
    assert python.executable == f"{env}/bin/python"


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
@pytest.mark.parametrize("alone", [True, False])
def test_the_active_environment_trains_if_ours_has_no_torch(
    env: Path, monkeypatch: pytest.MonkeyPatch, variable: str, *, alone: bool
) -> None:
    monkeypatch.setattr(inputs, "find_spec", lambda name: None if alone else object())
    monkeypatch.setenv(variable, str(env))
    chosen = choose_python(None).executable
    assert (chosen == str(env / "bin" / "python")) is alone


def test_the_first_python_on_path_trains_if_ours_has_no_torch_and_it_has(
    env: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(env / "bin"), prepend=os.pathsep)
    assert choose_python(None).executable == str(env / "bin" / "python3")
    (torch,) = env.glob("lib/python*/site-packages/torch")
    shutil.rmtree(torch)
    assert choose_python(None).executable == sys.executable


@pytest.mark.parametrize(
    ("left", "command"),
    [
        ("pipx_metadata.json", "pipx inject cputune optuna jinja2"),
        ("uv-receipt.toml", "uv tool install --with optuna,jinja2 cputune"),
        ("nothing", "pip install 'cputune[search]'"),
    ],
)
def test_what_is_missing_is_installed_by_what_installed_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str, command: str
) -> None:
    (tmp_path / left).touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert install_tuning(stack=False) == command


@pytest.mark.parametrize("path", ["/nowhere/python", "/etc/passwd", "/bin/true", "/"])
def test_what_is_no_python_is_refused(env: Path, path: str, golden: Golden) -> None:
    with golden.raises(UsageError):
        choose_python(path)


def test_run_trains_with_it_and_cputune_need_not_be_there(env: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    argv = [sys.executable, "-m", "cputune", "run", "--python", str(env), "--", "train.py"]
    done = ran(argv, cwd=tmp_path)
    assert done.stdout.split() == [str(env), "of", "the", "environment"], done.stderr
    assert f"note: {env}/bin/python trains (--python)" in done.stderr


def test_emitted_files_name_it(env: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    argv = [sys.executable, "-m", "cputune", "emit", "-f", "torchrun", "-o", "-", "--"]
    argv += [str(env / "bin" / "python"), "train.py"]
    done = ran(argv, cwd=tmp_path)
    assert f"{env}/bin/python" in done.stdout, done.stderr
    assert os.path.realpath(sys.executable) not in done.stdout


def test_two_pythons_train_side_by_side_in_one_process(env: Path, workdir: Path) -> None:
    """It is a fact of the machine that is passed, so one job cannot change that of another."""
    (workdir / "train.py").write_text(SCRIPT)
    package = next(env.glob("lib/python*/site-packages")) / "theirs"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text(SCRIPT)
    ours, theirs = probe(watched=False), probe(watched=False, python=str(env))
    for facts, program in ((ours, sys.executable), (theirs, f"{env}/bin/python"), (ours, None)):
        command = alone(Workload.script(["train.py"]), mild_plan(facts), facts)
        assert command["argv"][0] == (program or sys.executable)
    job = Workload.of("-m theirs.train", python=theirs.training_python)
    require_trainable(job.argv, python=theirs.training_python)
    with pytest.raises(UsageError, match="there is no module"):
        require_trainable(job.argv, python=ours.training_python)
