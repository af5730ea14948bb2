"""Nothing that is planted leaves the machine: neither in a recording nor in a document."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path

import pytest

from cputune.cli import main
from cputune.host.probing.scrub import Scrubber, read_environment

SECRETS = {
    "SLURM_JWT": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJqYW5lIn0.c2lnbmF0dXJl",
    "FI_PASSPHRASE": "correct horse",
    "CCL_AUTH": "swordfish",
    "TORCH_PWD": "hunter2hunter2",
    "OMP_TOOL_LIBRARIES_PASSWORD": "opensesame",
    "ACCELERATE_LOG": "https://jane:s3cr3tpw@logs.corp.example/in",
    "CCL_CONFIGURATION": "a1b2c3d4e5f6a7b8c9d0e1f2a3b4c5d6",
    "GLIBC_TUNABLES": "hf_AbCdEfGhIjKlMnOp",
    "I_MPI_DEBUG": "ghp_0123456789abcdefghijABCD",
    "HF_TOKEN": "hf_ZyXwVuTsRqPoNmLk",
    "OMP_DISPLAY_ENV": "password=opensesame2",
    "TORCH_LOGS": "https://0a1b2c3d@git.example",
    "KMP_STACKSIZE": "AccountKey=bXlrZXk==",
    "MALLOC_ARENA_MAX": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "MLFLOW_TRACKING_PASSWORD": "letmein-letmein",
    "COMET_API_KEY": "shortcomet",
    "AWS_SECRET_ACCESS_KEY": "je7MtGbClwBF/2Zp9Utk/h3yCo8nvbEXAMPLEKEY",
}
PEOPLE_AND_PLACES = {
    "HOME": "/data/people/jane.roe",
    "USER": "janeroe",
    "LD_LIBRARY_PATH": "/data/people/jane.roe/lib:/scratch/janeroe/lib",
    "SLURM_SUBMIT_HOST": "login3.corp.example",
    "SLURM_JOB_NODELIST": "cn[0417-0420]",
    "SLURMD_NODENAME": "cn0417",
    "MASTER_ADDR": "cn0418.corp.example",
    "PET_MASTER_ADDR": "cn0418.corp.example",
    "KMP_SETTINGS": f"seen on {platform.node()} and cn0417",
    "CCL_KVS_IP_PORT": "cn0419_3000",
    "I_MPI_HYDRA_IFACE": "10.20.30.40",
    "OMP_PLACES": "of cn0418-ib0",
}
OWN = platform.node() if len(platform.node()) > 4 else ""  # "vm" stands in other words too
NAMED = ("jane", "corp.example", "cn04", "10.20.30.40", OWN)
HARMLESS = {
    "OMP_NUM_THREADS": "8",
    "KMP_AFFINITY": "granularity=fine,compact,1,0",
    "I_MPI_PIN_DOMAIN": "[0x3fff0000000000000000000000000000,0x3fff]",
    "SLURM_CPU_BIND": "quiet,mask_cpu:0x00000000000000000000ffff",
    "GOMP_CPU_AFFINITY": "0-27 56-83",
    "MALLOC_CONF": "oversize_threshold:1,background_thread:true,metadata_thp:auto",
    "LD_PRELOAD": "/opt/conda/lib/libiomp5-a1b2c3d4e5f6a7b8c9d0e1f2.so",
}


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**SECRETS, **PEOPLE_AND_PLACES, **HARMLESS}.items():
        monkeypatch.setenv(name, value)


def spoken(text: str) -> list[str]:
    """What of the planted values stands in a text."""
    return [value for value in (*SECRETS.values(), *NAMED) if value and value in text]


def test_no_document_holds_what_was_planted(
    planted: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = ("--hosts", "none")  # the variables are those of a Slurm allocation of two nodes
    monkeypatch.setattr(sys, "argv", ["cputune", "doctor", "--json", "--fail-on", "never", *here])
    with pytest.raises(SystemExit):
        main()
    text = capsys.readouterr().out
    assert spoken(text) == []
    told = json.loads(text)["host"]["environment"]
    assert {name: told.get(name) for name in HARMLESS} == HARMLESS
    assert told["MASTER_ADDR"] == "other-host"
    assert told["CCL_CONFIGURATION"] == "(hidden)"


def test_no_recording_holds_what_was_planted(
    planted: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["cputune", "doctor", "--record", str(tmp_path / "r")])
    with pytest.raises(SystemExit):
        main()
    for path in (tmp_path / "r").rglob("*"):
        text = str(path.relative_to(tmp_path))
        if path.is_file():
            text += path.read_text(encoding="utf-8", errors="replace")
        assert spoken(text) == [], path


def test_a_name_of_another_family_is_not_read() -> None:
    unknown = {f"{prefix}UNHEARD_OF": "1" for prefix in ("AWS_", "SLURM_", "TORCH", "MY_OMP_")}
    assert read_environment({**unknown, **HARMLESS}) == dict(sorted(HARMLESS.items()))


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1", "::1"])
def test_an_address_of_this_machine_stays_one(address: str) -> None:
    assert read_environment({"MASTER_ADDR": address}, Scrubber()) == {"MASTER_ADDR": address}
