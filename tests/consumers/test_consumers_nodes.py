"""Two nodes on one machine: real launchers, and a stand-in for ssh that runs commands here.

The stand-in gives the environment of a login, so what a launcher does not carry to another
node is not there: neither the launcher on PATH, nor a variable of the plan.
"""

import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from in_process import ran
from launches import HOSTILE, THOROUGH, two_ranks

from cputune import Plan
from cputune.emitters import parse_hosts

pytestmark = [pytest.mark.consumer, pytest.mark.torch, pytest.mark.slow]

HOSTS = "127.0.0.2,127.0.0.3"


def one_rank_per_node():
    return Plan(
        processes_per_node=1, threads_per_process=1, precision="bf16", cpus=two_ranks().cpus[:1]
    )


def check(seen, plan):
    assert [rank["rank"] for rank in seen] == [0, 1]
    assert [rank["sum"] for rank in seen] == [3.0, 3.0]
    assert [tuple(rank["affinity"]) for rank in seen] == [plan.cpus[0]] * 2
    for rank in seen:
        assert rank["arguments"] == list(HOSTILE)
        assert rank["threads"] == 1
        assert rank["environment"]["LOCAL_RANK"] == "0"
        assert rank["environment"]["OMP_NUM_THREADS"] == "1"
        assert rank["environment"]["ACCELERATE_USE_CPU"] == "true"
        assert rank["environment"]["ACCELERATE_MIXED_PRECISION"] == "bf16"


@pytest.mark.parametrize("format", ["mpirun", pytest.param("accelerate", marks=THOROUGH)])
@pytest.mark.parametrize(
    "launcher_path",
    ["mpich", *(pytest.param(name, marks=THOROUGH) for name in ("openmpi5", "openmpi4", "impi"))],
    indirect=True,
)
def test_mpi_carries_the_plan_to_both_nodes(through_ssh, format, write, witness):
    workload, read = witness
    plan = one_rank_per_node()
    directory = write(format, plan, workload, nodes=2, hosts=parse_hosts(HOSTS))
    outer, went = through_ssh
    done = ran([str(directory / f"{format}.sh")], env=outer)
    assert done.returncode == 0, done.stderr
    check(read(), plan)
    assert all(host in went() for host in HOSTS.split(","))


@pytest.mark.parametrize(
    "launcher_path",
    ["mpich", *(pytest.param(name, marks=THOROUGH) for name in ("openmpi5", "openmpi4", "impi"))],
    indirect=True,
)
def test_the_line_of_mpirun_that_is_typed_starts_the_ranks_of_both_nodes(
    through_ssh, launcher_path, request, write, witness
):
    workload, read = witness
    plan = one_rank_per_node()
    workload = replace(workload, framework="pytorch", batch_per_rank=4)  # nothing is set inside
    name = request.node.callspec.params["launcher_path"]
    mpi = {"impi": "intelmpi"}.get(name, name)
    line = write("command", plan, workload, nodes=2, hosts=parse_hosts(HOSTS), mpi=mpi)
    outer, went = through_ssh
    outer |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = ran(["bash", "-c", (line / "command.sh").read_text()], env=outer)
    assert done.returncode == 0, done.stderr
    check(read(), plan)
    assert all(host in went() for host in HOSTS.split(","))


@pytest.mark.thorough
def test_the_lines_of_torchrun_are_typed_one_on_each_node(write, witness, environment):
    workload, read = witness
    plan = one_rank_per_node()
    workload = replace(workload, framework="pytorch", batch_per_rank=4)
    directory = write("command", plan, workload, nodes=2, hosts=parse_hosts(HOSTS))
    with socket.socket() as free:
        free.bind(("", 0))
        port = str(free.getsockname()[1])
    text = (directory / "command.sh").read_text().replace("29500", port)
    _, *lines = text.split("# on ")
    assert [line.splitlines()[0] for line in lines] == HOSTS.split(",")

    def start(line):
        return ran(["bash", "-c", line.partition("\n")[2]], env=environment)

    with ThreadPoolExecutor() as pool:
        both = list(pool.map(start, lines))
    assert [done.returncode for done in both] == [0, 0], both[0].stderr
    check(read(), plan)


@pytest.mark.parametrize("launcher_path", ["mpich", "openmpi5"], indirect=True)
def test_a_rank_that_cannot_run_ends_those_of_other_hosts(through_ssh, write, witness):
    workload, _ = witness
    plan = one_rank_per_node()
    directory = write("mpirun", plan, workload, nodes=2, hosts=parse_hosts(HOSTS))
    script, rank = directory / "mpirun.sh", directory / "rank.py"
    usual = "    wanted = set()\n"
    assert usual in rank.read_text()
    second = '    shares = ["4000"] if os.environ["RANK"] == "1" else shares\n'
    rank.write_text(rank.read_text().replace(usual, usual + second))
    outer, _ = through_ssh
    done = ran([str(script)], env=outer)
    assert done.returncode != 0
    assert "rank 0 cannot have CPUs 4000" in done.stderr


def test_torchrun_asks_for_the_rank_of_its_node(write, witness, environment):
    workload, _ = witness
    directory = write("torchrun", one_rank_per_node(), workload, nodes=2, hosts=parse_hosts(HOSTS))
    outer = {name: value for name, value in environment.items() if name != "NODE_RANK"}
    done = ran([str(directory / "torchrun.sh")], env=outer)
    assert done.returncode == 3
    assert "NODE_RANK" in done.stderr
    assert "hint: " in done.stderr
