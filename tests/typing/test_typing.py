"""What users import has types, and both type checkers read them alike."""

from __future__ import annotations

import importlib
import inspect
import json
import pickle
import re
import shutil
import sys
import typing
from pathlib import Path

import pytest
from golden_texts import Golden
from in_process import ran
from rows import every_row

import cputune
from cputune import Unreachable

HERE = Path(__file__).parent


def refused_by_mypy(file: str) -> set[int]:
    # The project's settings leave torch and its like unread: a minute of each run.
    settings = f"--config-file={HERE.parents[1] / 'pyproject.toml'}"
    out = run([sys.executable, "-m", "mypy", "--strict", settings, file])
    return {int(number) for number in re.findall(rf"{file}:(\d+): error", out)}


def refused_by_pyright(file: str) -> set[int]:
    program = shutil.which("pyright", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("pyright is not installed")
    out = json.loads(run([program, "--outputjson", "--pythonpath", sys.executable, file]))
    assert out["summary"]["filesAnalyzed"] == 1
    return {
        found["range"]["start"]["line"] + 1
        for found in out["generalDiagnostics"]
        if found["severity"] == "error"
    }


def run(argv: list[str]) -> str:
    return ran(argv, cwd=HERE, timeout=280).stdout


def lines_that_are_wrong(file: str) -> set[int]:
    lines = (HERE / file).read_text().splitlines()
    return {number for number, line in enumerate(lines, start=1) if "# error: " in line}


@pytest.mark.slow
@pytest.mark.xdist_group("type checkers")  # two of mypy at once spoil each other's cache
@pytest.mark.parametrize(
    "refused_by", [refused_by_mypy, pytest.param(refused_by_pyright, marks=pytest.mark.matrix)]
)
@pytest.mark.parametrize("file", ["uses.py", "mistakes.py"])
def test_type_checkers_refuse_what_is_wrong_and_nothing_else(
    refused_by: typing.Callable[[str], set[int]], file: str
) -> None:
    assert refused_by(file) == lines_that_are_wrong(file)


FUNCTIONS = (
    *("compare", "doctor", "diagnose", "diagnose_hosts", "emit", "kept_results", "probe"),
    *("search_space", "show", "tune", "verify"),
)
ALIASES = ("Event", "OnEvent")


@every_row("name", cputune.__all__)
def test_a_public_name_is_a_plain_object_with_readable_hints(name: str) -> None:
    public = getattr(cputune, name)
    if name in ALIASES:
        return  # no class and no function
    if name == "doctor":  # a package that can be called, too
        assert callable(public)
        public = importlib.import_module("cputune.library.examine").doctor
    assert inspect.isfunction(public) is (name in FUNCTIONS)
    assert pickle.loads(pickle.dumps(public)) is public
    hints = typing.get_type_hints(public)
    if name in FUNCTIONS:
        assert set(hints) == {*inspect.signature(public).parameters, "return"}


def test_dir_lists_what_is_public_once() -> None:
    import cputune.tuner
    import cputune.verifier

    assert sorted(dir(cputune)) == sorted({*cputune.__all__, "__version__"})
    assert cputune.verify is cputune.verifier.verify, "not the package of this name"


def test_errors_survive_a_pickle_with_their_hints(golden: Golden) -> None:
    error = pickle.loads(pickle.dumps(cputune.CputuneError("no", hint="do")))
    assert (str(error), error.hint) == ("no", "do")
    away = pickle.loads(pickle.dumps(Unreachable("node1", "it is off", hint="switch it on")))
    golden(str(away))
    assert (away.name, away.hint) == ("node1", "switch it on")


def test_importing_loads_nothing_and_hints_load_no_heavy_package() -> None:
    program = """
import sys, typing, cputune
assert not [m for m in sys.modules if m.startswith("cputune.")], "imported at once"
for name in cputune.__all__:
    public = getattr(cputune, name)
    if name not in ("Event", "OnEvent"):
        typing.get_type_hints(public)
heavy = {"torch", "transformers", "accelerate", "optuna", "rich", "jinja2", "numpy"}
print(sorted(heavy & set(sys.modules)))
"""
    out = ran([sys.executable, "-c", program])
    assert (out.stdout, out.stderr) == ("[]\n", "")


def test_help_loads_no_package_but_click() -> None:
    program = """
import sys
from cputune.cli import cli
cli.main(["--help"], prog_name="cputune", standalone_mode=False)
print(sorted({"msgspec", "rich", "optuna", "psutil", "yaml", "torch"} & set(sys.modules)))
"""
    out = ran([sys.executable, "-c", program])
    assert out.stdout.endswith("[]\n")
    assert out.stderr == ""
