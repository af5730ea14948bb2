"""Settings, load, memory, environment, and where the libraries lie."""

from __future__ import annotations

from pathlib import Path

import pytest
from hosts.builder import machine

from cputune.facts import HostFacts
from cputune.probe import probe

CPU = "sys/devices/system/cpu"


def test_settings(tmp_path: Path) -> None:
    files = {
        f"{CPU}/cpufreq/policy0/scaling_governor": "powersave\n",
        f"{CPU}/cpufreq/policy1/scaling_governor": "performance\n",
        f"{CPU}/intel_pstate/no_turbo": "1\n",
        f"{CPU}/smt/control": "off\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        "proc/sys/kernel/numa_balancing": "1\n",
        "proc/sys/kernel/osrelease": "6.8.0-45-generic\n",
    }

    settings = probe(machine(tmp_path, files=files)).settings

    assert settings.governor == "performance,powersave"
    assert settings.turbo is False
    assert settings.smt == "off"
    assert settings.transparent_huge_pages == "madvise"
    assert settings.numa_balancing is True
    assert settings.kernel == "6.8.0-45-generic"
    assert settings.container is None


def test_settings_that_are_not_shown(tmp_path: Path) -> None:
    facts = probe(machine(tmp_path))

    for fact in ("governor", "turbo", "transparent_huge_pages", "numa_balancing", "smt", "kernel"):
        assert getattr(facts.settings, fact) is None
        assert "does not exist" in (facts.why_unknown(f"settings.{fact}") or "")


def test_older_ways_to_say_the_same(tmp_path: Path) -> None:
    files = {
        f"{CPU}/cpu0/cpufreq/scaling_governor": "ondemand\n",
        f"{CPU}/cpufreq/boost": "1\n",
        "proc/version": "Linux version 2.6.32-754.el6.x86_64 (builder@example) (gcc) #1 SMP\n",
    }

    settings = probe(machine(tmp_path, files=files)).settings

    assert (settings.governor, settings.turbo) == ("ondemand", True)
    assert settings.kernel == "2.6.32-754.el6.x86_64"


@pytest.mark.parametrize(
    ("files", "record", "container"),
    [
        ({"proc/self/cgroup": "0::/system.slice/docker-12ab.scope\n"}, {}, "docker"),
        ({"proc/self/cgroup": "0::/machine.slice/libpod-12ab.scope\n"}, {}, "podman"),
        ({"proc/self/cgroup": "0::/kubepods.slice/crio-12ab.scope\n"}, {}, "kubernetes"),
        ({"proc/self/cgroup": "0::/system.slice/docker.service\n"}, {}, None),
        ({}, {"environment": {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}}, "kubernetes"),
        ({}, {"environment": {"container": "oci"}}, "oci"),
        ({}, {"paths": {"/.dockerenv": True}}, "docker"),
        ({}, {"paths": {"/run/.containerenv": True}}, "podman"),
        (
            {"proc/self/mountinfo": "1 0 0:9 / / rw - overlay x rw,lowerdir=/containerd/x\n"},
            {},
            "containerd",
        ),
        (
            {"proc/self/mountinfo": "1 0 8:1 / /var/lib/docker/overlay rw - ext4 /dev/sda rw\n"},
            {},
            None,
        ),
    ],
)
def test_containers(
    tmp_path: Path, files: dict[str, str], record: dict[str, object], container: str | None
) -> None:
    assert probe(machine(tmp_path, files=files, record=record)).settings.container == container


def test_load_pressure_and_steal(tmp_path: Path) -> None:
    files = {
        "proc/loadavg": "7.50 3.25 1.00 9/500 4242\n",
        "proc/pressure/cpu": "some avg10=48.25 avg60=1.00 avg300=0.00 total=1\n",
        "proc/pressure/memory": "some avg10=0.50 avg60=0.00 avg300=0.00 total=1\nfull avg10=0.25\n",
        "proc/stat": "cpu  500 0 100 300 0 0 0 100 0 0\ncpu0 500 0 100 300 0 0 0 100 0 0\n",
    }

    load = probe(machine(tmp_path, files=files)).load

    assert (load.average_1min, load.average_5min, load.running_threads) == (7.5, 3.25, 9)
    assert (load.cpu_pressure_percent, load.memory_pressure_percent) == (48.25, 0.5)
    assert load.steal_share == 0.1


def test_memory_and_swap(tmp_path: Path) -> None:
    memory = probe(machine(tmp_path, sockets=2, node_gib=96)).memory

    assert memory.total_bytes == 192 << 30
    assert memory.available_bytes == 96 << 30
    assert memory.swap_total_bytes == 0


def test_only_variables_that_concern_training_are_kept(tmp_path: Path) -> None:
    environment = {
        "OMP_NUM_THREADS": "8",
        "KMP_AFFINITY": "granularity=fine",
        "RANK": "0",
        "HOME": "/home/someone",
        "AWS_SECRET_ACCESS_KEY": "x",
        "SLURM_JWT_TOKEN": "x",
        "ACCELERATE_API_KEY": "x",
    }

    facts = probe(machine(tmp_path, record={"environment": environment}))

    assert list(facts.environment) == ["KMP_AFFINITY", "OMP_NUM_THREADS", "RANK"]


def found(facts: HostFacts) -> list[tuple[str, str]]:
    return [(library.name, library.path) for library in facts.libraries]


def test_allocators_by_the_names_that_packages_give_them(tmp_path: Path) -> None:
    """apt's package has no plain libtcmalloc.so (intel-extension-for-pytorch#279)."""
    system = "/usr/lib/x86_64-linux-gnu"
    record = {
        "directories": {
            system: [
                "libtcmalloc.so.4",
                "libtcmalloc_minimal.so.4",
                "libjemalloc.so.2",
                "libc.so.6",
            ],
            "/venv/lib": ["libiomp5.so"],
            "/venv/lib/python3.11/site-packages/torch/lib": [
                "libgomp-24e2ab19.so.1",
                "libtorch.so",
            ],
        },
        "real_paths": {f"{system}/libtcmalloc.so.4": f"{system}/libtcmalloc.so.4.5.16"},
        "packages": [
            {"name": "torch", "version": "2.8.0", "location": "/venv/lib/python3.11/site-packages"}
        ],
    }

    assert found(probe(machine(tmp_path, record=record))) == [
        ("tcmalloc", f"{system}/libtcmalloc.so.4.5.16"),
        ("tcmalloc", f"{system}/libtcmalloc_minimal.so.4"),
        ("jemalloc", f"{system}/libjemalloc.so.2"),
        ("libiomp5", "/venv/lib/libiomp5.so"),
        ("libgomp", "/venv/lib/python3.11/site-packages/torch/lib/libgomp-24e2ab19.so.1"),
    ]


def test_libraries_of_the_environment_come_before_the_system_s(tmp_path: Path) -> None:
    record = {
        "environment": {"CONDA_PREFIX": "/opt/conda", "LD_LIBRARY_PATH": "/own::/own"},
        "directories": {
            "/usr/lib64": ["libjemalloc.so.2"],
            "/opt/conda/lib": ["libjemalloc.so.2", "libiomp5.so"],
            "/own": ["libjemalloc.so"],
        },
    }

    facts = probe(machine(tmp_path, record=record))

    assert [path for name, path in found(facts) if name == "jemalloc"] == [
        "/own/libjemalloc.so",
        "/opt/conda/lib/libjemalloc.so.2",
        "/usr/lib64/libjemalloc.so.2",
    ]
    assert facts.library("libiomp5") is not None


def test_libraries_that_wheels_bring(tmp_path: Path) -> None:
    site = "/venv/lib/python3.11/site-packages"
    record = {
        "packages": [{"name": "scikit-learn", "version": "1.7", "location": site}],
        "directories": {
            site: ["scikit_learn.libs", "some_tcmalloc", "sklearn"],
            f"{site}/scikit_learn.libs": ["libgomp-a34b3233.so.1.0.0"],
            f"{site}/some_tcmalloc/lib": ["libtcmalloc.so"],
        },
    }

    assert found(probe(machine(tmp_path, record=record))) == [
        ("tcmalloc", f"{site}/some_tcmalloc/lib/libtcmalloc.so"),
        ("libgomp", f"{site}/scikit_learn.libs/libgomp-a34b3233.so.1.0.0"),
    ]


def test_a_library_with_two_names_counts_once(tmp_path: Path) -> None:
    record = {
        "directories": {"/usr/lib64": ["libgomp.so.1", "libgomp.so.1.0.0"]},
        "real_paths": {"/usr/lib64/libgomp.so.1": "/usr/lib64/libgomp.so.1.0.0"},
    }

    facts = probe(machine(tmp_path, record=record))

    assert found(facts) == [("libgomp", "/usr/lib64/libgomp.so.1.0.0")]
