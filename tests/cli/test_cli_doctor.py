"""``cputune doctor`` as its user meets it: streams, forms, exit codes, bad input."""

from __future__ import annotations

import json
import re
import sys
import venv
from pathlib import Path

import pytest
from hosts.builder import machine
from in_process import Ended, Run, ran

from cputune.doctor.registry import all_checks
from cputune.report.markdown import markdown
from cputune.report.writing import Heading, Lines, Rows

LOADED = {"/proc/loadavg": "9.00 9.00 9.00 3/500 4242\n"}


@pytest.fixture
def busy(tmp_path: Path) -> str:
    """A machine with one warning (load) and advice, recorded."""
    machine(tmp_path / "busy", sockets=2, cores=8, smt=2, files=LOADED)
    return str(tmp_path / "busy")


def codes(ended: Ended) -> list[str]:
    return [finding["code"] for finding in json.loads(ended.out)["findings"]]


def test_json_is_one_document_and_nothing_more(cputune: Run, busy: str) -> None:
    ended = cputune("doctor", "--root", busy, "--json")
    found = json.loads(ended.out)
    assert ended.err == ""
    assert found["schema"] == "cputune.doctor/1"
    assert list(found) == ["schema", "host", "findings", "summary"]
    assert found["summary"] == {"error": 0, "warning": 1, "advice": 1}
    (busiest, _) = found["findings"]
    assert all(busiest.pop(text) for text in ("evidence", "remedy", "source"))
    assert busiest == {
        "code": "machine-busy",
        "severity": "warning",
        "title": "Something else is running on this machine",
        "command": "ps -eo pid,pcpu,comm --sort=-pcpu | head",
        "worth": None,
        "docs": "checks.md#machine-busy",
    }
    assert found["host"]["topology"]["physical_cores"] == 16


def test_fail_on_decides_the_exit_code(cputune: Run, busy: str) -> None:
    for fail_on, code in {"error": 0, "warning": 1, "advice": 1, "never": 0}.items():
        assert cputune("doctor", "--root", busy, "--fail-on", fail_on).code == code


def test_only_and_ignore_choose_findings_and_the_exit_code(cputune: Run, busy: str) -> None:
    root = ("doctor", "--root", busy, "--json", "--fail-on", "warning")
    assert codes(cputune(*root, "--only", "advice")) == ["bf16-native"]
    both = cputune(*root, "--only", "warning,bf16-native")
    assert codes(both) == ["machine-busy", "bf16-native"]
    ignored = cputune(*root, "--ignore", "machine-busy")
    assert codes(ignored) == ["bf16-native"]
    assert ignored.code == 0


def test_a_root_that_is_not_there_ends_with_3_in_json_too(cputune: Run, tmp_path: Path) -> None:
    ended = cputune("doctor", "--json", "--root", str(tmp_path / "none"))
    told = json.loads(ended.out)
    assert (ended.code, told["schema"]) == (3, "cputune.error/1")
    assert told["error"]["exit_code"] == 3
    assert ended.err.startswith("error: ")
    assert "hint: " in ended.err


def test_a_file_is_judged_by_the_stack_that_is_named(cputune: Run, tmp_path: Path) -> None:
    path = tmp_path / "launch.sh"
    path.write_text("python run_qa.py --bf16\n")
    machine(tmp_path / "m", like="sapphire-rapids", sockets=2, cores=8)  # multiplies bf16 itself
    call = ("doctor", "--json", "--root", str(tmp_path / "m"))
    call += ("--stack", "torch=2.13.0,transformers=5.23.0")
    ended = cputune(*call, "--check-file", str(path))
    assert (ended.code, codes(ended)) == (1, ["file-use-cpu"])
    path.write_text("python run_qa.py --no_cuda --use_ipex\n")
    said = cputune(*call[:1], *call[2:], "--check-file", str(path)).out
    assert said.count("[file-flag-refused]") == 1, "findings that are alike stand in one block"
    named = f"{path} --stack torch=2.13.0,transformers=5.23.0 --root {tmp_path}/m"
    assert f"Do now: cputune doctor --check-file {named} --print-fix | patch {path}\n" in said
    assert cputune("doctor", "--check-file", str(tmp_path / "none")).code == 3
    path.write_bytes(bytes(range(256)))
    assert cputune("doctor", "--check-file", str(path)).code == 3


def test_a_patch_that_would_be_empty_is_not_recommended(cputune: Run, tmp_path: Path) -> None:
    path = tmp_path / "launch.sh"
    path.write_text("R=${R:-1}\nipexrun --ninstances $R train.py\n")
    machine(tmp_path / "m", like="sapphire-rapids", sockets=2, cores=8)
    call = ("doctor", "--root", str(tmp_path / "m"), "--check-file", str(path))
    assert cputune(*call, "--print-fix").out == ""
    said = cputune(*call).out
    assert "Do now: cputune doctor --explain file-launcher-missing\n" in said


def test_the_default_configuration_of_accelerate_is_judged_too(
    cputune: Run, tmp_path: Path
) -> None:
    config = "/home/u/.cache/huggingface/accelerate/default_config.yaml"
    machine(
        tmp_path / "m",
        record={"packages": {"accelerate": "1.15.0"}, "environment": {"HF_HOME": "/hf"}},
        files={config: "", "/hf/accelerate/default_config.yaml": "num_processes: 2\nno_key: 1\n"},
    )
    assert "file-key-unknown" in codes(cputune("doctor", "--json", "--root", str(tmp_path / "m")))


def test_the_live_machine_is_looked_at_without_torch() -> None:
    script = (
        "import sys\n"
        "from cputune.cli import cli\n"
        "cli(['doctor', '--json', '--fail-on', 'never'], standalone_mode=False)\n"
        "heavy = {'torch', 'transformers', 'optuna', 'rich', 'numpy'} & set(sys.modules)\n"
        "sys.stderr.write(repr(sorted(heavy)))\n"
    )
    done = ran([sys.executable, "-c", script])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["schema"] == "cputune.doctor/1"
    assert done.stderr == "[]"


def test_what_is_not_shown_is_counted(cputune: Run, busy: str) -> None:
    """It said "nothing is wrong" under --only error while there were warnings."""
    text = cputune("doctor", "--root", busy, "--only", "error").out
    left_out = "left out by --only or --ignore: 1 warning, 1 piece of advice."
    assert text.startswith(f"Nothing found; {left_out}\n")
    assert "nothing is wrong" not in text


def test_verbose_tells_stories_and_sources(cputune: Run, busy: str) -> None:
    text = cputune("doctor", "--root", busy, "-v").out
    assert "Symptom: training is several times slower than yesterday." in text
    assert "Source: https://docs.kernel.org/accounting/psi.html" in text
    assert "Symptom" not in cputune("doctor", "--root", busy).out


def test_explain_without_a_word_lists_the_checks(cputune: Run) -> None:
    ended = cputune("doctor", "--explain")
    assert ended.code == 0
    assert all(check.code in ended.out for check in all_checks())


def test_fixes_install_into_the_python_that_is_examined(cputune: Run, tmp_path: Path) -> None:
    theirs = tmp_path / "their s"
    venv.create(theirs, symlinks=True)
    site = next(theirs.glob("lib/python*/site-packages"))
    metadata = site / "transformers-5.23.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Name: transformers\nVersion: 5.23.0\n", encoding="utf-8")
    ended = cputune("doctor", "--json", "--python", str(theirs), "--fail-on", "never")
    commands = [finding["command"] or "" for finding in json.loads(ended.out)["findings"]]
    assert any(c.startswith(f"'{theirs}/bin/python' -m pip install torch") for c in commands)


def test_markdown_is_for_an_issue_and_names_no_person(cputune: Run, tmp_path: Path) -> None:
    record = {"environment": {"HOME": "/home/jane", "USER": "jane", "HOSTNAME": "gpu-login7"}}
    files = LOADED | {"/proc/sys/kernel/hostname": "gpu-login7\n"}
    machine(tmp_path / "m", sockets=2, cores=8, files=files, record=record)
    text = cputune("doctor", "--root", str(tmp_path / "m"), "--markdown").out
    assert text.startswith("### cputune doctor, version ")
    assert "- **warning: Something else is running on this machine** (`machine-busy`)" in text
    assert "`cputune doctor --explain machine-busy`, https://" in text
    assert "#### The machine" in text
    assert not {"jane", "gpu-login7"} & set(re.findall(r"[\w-]+", text))
    assert cputune("doctor", "--markdown", "--json").code == 2


def test_nothing_in_markdown_is_markup(tmp_path: Path) -> None:
    hostile = "<img src=x> [a](b) | `c` @jane #1 *d* _e_ \x1b[31m"
    rows = Rows(headings=("a", "b"), rows=((hostile, "1"),))
    text = markdown([Heading(hostile), rows, Lines((("", hostile), ("$", "echo `x`")))], "t")
    assert "\x1b" not in text
    for sign in ("<", "[", "`c", "|", "*d", "_e"):
        for found in re.finditer(re.escape(sign), text.replace("`` echo `x` ``", "")):
            before = text[: found.start()]
            assert before.endswith("\\") or sign == "|", (sign, text)
    assert "@jane" not in text
    assert "`` echo `x` ``" in text
