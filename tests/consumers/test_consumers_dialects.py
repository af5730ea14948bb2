"""The options that ``--check-file`` calls refused are refused by the real mpirun, and no others."""

import os
import subprocess
import time

import pytest
from launches import THOROUGH

from cputune.doctor.files.judge import REFUSED

pytestmark = [pytest.mark.consumer]

OPTIONS = {
    "-f": "HOSTS",
    "-ppn": "1",
    "-perhost": "1",
    "-genv": "A B",
    "-genvall": "",
    "-genvlist": "A",
    "-env": "A B",
    "-x": "A=B",
    "--allow-run-as-root": "",
    "--mca": "btl self",
    "--npernode": "1",
    "--oversubscribe": "",
    "--report-bindings": "",
    "--bind-to": "none",
    "-bind-to": "none",
    "-map-by": "socket",
    "--hostfile": "HOSTS",
}
LAUNCHERS = {"mpich": "mpich", "openmpi5": "openmpi5", "openmpi4": "openmpi4", "impi": "intelmpi"}


@THOROUGH
@pytest.mark.parametrize("launcher_path", LAUNCHERS, indirect=True)
def test_the_table_of_refused_options(launcher_path, request, tmp_path):
    dialect = LAUNCHERS[request.node.callspec.params["launcher_path"]]
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost\n")
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    refused = set()
    for option, values in OPTIONS.items():
        argv = ["mpirun", option, *values.replace("HOSTS", str(hosts)).split(), "-n", "1", "true"]
        # A refusal is steady; a launch that fails on a busy machine is none.
        if all(_fails(argv, {**os.environ, **as_root, "PATH": launcher_path}) for _ in range(4)):
            refused.add(option)
    assert refused == {option for option in REFUSED[dialect] if option in OPTIONS}


def _fails(argv, environment):
    done = subprocess.run(argv, env=environment, capture_output=True, timeout=60, check=False)
    time.sleep(0.2 if done.returncode else 0)
    return done.returncode != 0
