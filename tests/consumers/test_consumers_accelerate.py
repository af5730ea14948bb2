"""Releases of accelerate read the YAML that was written for them, and launch with it."""

import sys

import install
import pytest
from in_process import ran
from launches import HOSTILE, two_ranks

pytestmark = [pytest.mark.consumer, pytest.mark.torch, pytest.mark.slow]

OLDER = [name for name in install.PACKAGES if name.startswith("accelerate")]


@pytest.mark.parametrize("older_accelerate", OLDER, indirect=True)
@pytest.mark.parametrize("launcher_path", ["mpich"], indirect=True)
def test_an_older_accelerate_starts_the_ranks(
    older_accelerate, launcher_path, write, witness, environment
):
    workload, read = witness
    plan = two_ranks()
    version = older_accelerate.name.removeprefix("accelerate-")
    directory = write("accelerate", plan, workload, versions={"accelerate": version}, mpi="mpich")
    assert "ipex_config" in (directory / "accelerate.yaml").read_text()
    done = ran(
        [str(directory / "accelerate.sh")],
        env={**environment, "PATH": launcher_path, "PYTHONPATH": str(older_accelerate)},
    )
    assert done.returncode == 0, done.stderr
    seen = read()
    assert [rank["sum"] for rank in seen] == [3.0, 3.0]
    assert [tuple(rank["affinity"]) for rank in seen] == list(plan.cpus)
    assert [rank["threads"] for rank in seen] == [1, 1]
    assert all(rank["arguments"] == list(HOSTILE) for rank in seen)
    assert all("KMP_AFFINITY" not in rank["environment"] for rank in seen)


@pytest.mark.parametrize("older_accelerate", ["accelerate-1.12"], indirect=True)
def test_todays_accelerate_refuses_the_older_yaml(older_accelerate, write, tiny):
    path = write("accelerate", two_ranks(), tiny, versions={"accelerate": "1.12.0"})
    code = "from accelerate.commands.config.config_args import load_config_from_file as f; f('{}')"
    argv = [sys.executable, "-c", code.format(path / "accelerate.yaml")]
    done = ran(argv)
    assert done.returncode != 0
    assert "ipex_config" in done.stderr
