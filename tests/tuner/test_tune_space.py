"""The search space holds what the machine can run, and says why it holds no more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from golden_texts import Golden
from hypothesis import given, settings, strategies as st
from machines import AMX, AVX512, IPEX_ERA, TODAY, machine
from rows import every_row

import cputune
from cputune import HostFacts, SearchSpace, UsageError, search_space
from cputune.host.facts import Launcher, Package
from cputune.plans.layout import baseline_plan, guide_plan
from cputune.text import cpulist

JOB = cputune.Workload.from_recipe("bert-mini")
INTEL_MPI = Launcher(name="mpirun", path="/opt/intel/mpirun", dialect="intelmpi")


FIXABLE: dict[str, list[object]] = {
    "ranks": [1, 2, 3, 4],
    "threads": [1, 2, 3],
    "backend": ["gloo", "ccl"],
    "ccl_workers": [0, 1, 2],
    "precision": ["fp32", "bf16"],
    "ipex": [True, False],
    "allocator": ["default", "tcmalloc", "jemalloc"],
    "smt": [True, False],
}


def values_of(space: SearchSpace, knob: str) -> set[object]:
    return set(next(k.values for k in space.knobs if k.name == knob))


def why(space: SearchSpace, what: str) -> str:
    return next(out.why for out in space.left_out if out.what == what)


def ipex_era() -> HostFacts:
    facts = machine(sockets=2, cores_per_socket=28, packages=IPEX_ERA)
    return replace(facts, launchers=(INTEL_MPI,))


def test_ccl_needs_intel_mpi() -> None:
    mpich = Launcher(name="mpirun", path="/x", dialect="mpich")
    facts = replace(ipex_era(), launchers=(mpich,))
    assert "Intel MPI" in why(cputune.search_space(facts, JOB), "backend=ccl")


class TestFixing:
    def test_knobs_that_are_not_named_stay_as_they_are_today(self) -> None:
        facts = machine(sockets=2, cores_per_socket=4, libraries=("tcmalloc",))
        space = cputune.search_space(facts, JOB, knobs=["precision"])
        plans = [plan.describe() for plan in space.plans()]
        assert plans == ["1 × 8 threads, fp32", "1 × 8 threads, bf16"]

    def test_the_backend_of_several_ranks_is_varied_with_its_workers_or_not_at_all(self) -> None:
        def backends(*knobs: str) -> set[object]:
            space = cputune.search_space(ipex_era(), JOB, knobs=knobs, fix={"ranks": 2})
            return values_of(space, "backend")

        assert backends("precision") == {"gloo"}
        assert backends("ccl_workers") == backends("backend") == {"gloo", "ccl"}

    @pytest.mark.parametrize(
        ("call", "hint"),
        [({"knobs": ["rank"]}, "did you mean ranks?"), ({"fix": {"colour": "red"}}, "precision")],
    )
    def test_an_unknown_knob_is_named(self, call: dict[str, object], hint: str) -> None:
        with pytest.raises(UsageError, match="no knob is called") as caught:
            cputune.search_space(machine(), JOB, **call)
        assert hint in str(caught.value.hint)

    @every_row(
        ("fix", "message"),
        [
            ({"ranks": "many"}, "whole number"),
            ({"ranks": 0}, "whole number"),
            ({"smt": "perhaps"}, "no or yes"),
            ({"precision": "fp64"}, "precision is fp32, bf16 or fp16"),
            ({"precision": "fp16"}, "no plan of this machine has precision=fp16"),
            ({"ranks": 99}, "no plan of this machine has ranks=99"),
            ({"threads": 99}, "no plan of this machine has threads=99"),
            ({"backend": "mpi"}, "no plan of this machine has backend=mpi"),
            ({"smt": True}, r"no plan of this machine has smt=yes\b"),
        ],
    )
    def test_an_impossible_value_is_refused(self, fix: dict[str, object], message: str) -> None:
        with pytest.raises(UsageError, match=message) as caught:
            cputune.search_space(machine(), JOB, fix=fix)
        assert caught.value.hint

    @pytest.mark.parametrize(
        "fix",
        [
            {"ccl_workers": 0, "backend": "ccl"},
            {"backend": "ccl", "ranks": 1},
            {"backend": "gloo", "ccl_workers": 2},
        ],
    )
    def test_values_that_do_not_go_together_are_refused(self, fix: dict[str, object]) -> None:
        with pytest.raises(UsageError, match=" together") as caught:
            cputune.search_space(ipex_era(), JOB, fix=fix)
        assert caught.value.hint

    @given(data=st.data())
    @settings(max_examples=40, deadline=None)
    def test_whatever_is_fixed_every_plan_has_it_or_it_is_refused_in_any_order(
        self, data: st.DataObject
    ) -> None:
        names = data.draw(st.permutations(sorted(FIXABLE)))[: data.draw(st.integers(1, 5))]
        fix = {name: data.draw(st.sampled_from(FIXABLE[name]), label=name) for name in names}
        facts = machine(sockets=2, cores_per_socket=2, packages=IPEX_ERA, libraries=("tcmalloc",))
        facts = replace(facts, launchers=(INTEL_MPI,))
        said = []
        for order in (names, sorted(names), sorted(names, reverse=True)):
            try:
                space = cputune.search_space(facts, JOB, fix={name: fix[name] for name in order})
            except UsageError as error:
                said.append((str(error), error.hint))
                continue
            said.append(tuple(space.plans()))
            assert said[-1], "a space that holds nothing is refused"
            assert all(values_of(space, name) == {value} for name, value in fix.items())
        assert said[0] == said[1] == said[2]


def on_amd(**options: Any) -> SearchSpace:
    """The space of a machine on which nearly every knob has a choice."""
    facts = machine(isa=("avx512_bf16", "avx512f"), libraries=("tcmalloc",), packages=TODAY)
    facts = replace(facts, cpu=replace(facts.cpu, vendor="AuthenticAMD"))
    return cputune.search_space(facts, JOB, **options)


class TestKeep:
    """What of the training stays the same, with every plan of the space."""

    def test_and_says_so(self, golden: Golden) -> None:
        said = {out.what: out.why for out in on_amd(keep="mathematics").left_out}
        golden(said["dropout"])
        golden(said["precision"])
        assert "dropout" not in {out.what for out in on_amd(keep="distribution").left_out}


@every_row("packages", [IPEX_ERA, TODAY], ids=["ipex", "today"])
@every_row("launchers", [(), (INTEL_MPI,)], ids=["no mpi", "intel mpi"])
@every_row(("sockets", "cores", "nodes"), [(1, 2, 1), (2, 1, 1), (2, 2, 1), (2, 28, 2), (8, 14, 1)])
def test_what_emit_writes_without_a_result_is_what_the_tuner_calls_the_guides(
    sockets: int,
    cores: int,
    nodes: int,
    launchers: tuple[Launcher, ...],
    packages: tuple[Package, ...],
) -> None:
    shape = {"sockets": sockets, "cores_per_socket": cores, "nodes_per_socket": nodes}
    facts = replace(machine(**shape, packages=packages), launchers=launchers)
    guide = dict(cputune.search_space(facts, JOB).suggestions)["guide"]
    assert guide_plan(facts, JOB) == guide

    def test_the_topology_suggests_ranks_of_whole_nodes_and_of_caches(self) -> None:
        nodes = {"sockets": 2, "cores_per_socket": 48, "nodes_per_socket": 4, "threads_per_core": 2}
        for samples, cores_per_l3, ranks in ((48, 4, [8, 24, 1]), (12, None, [4, 1])):
            facts = machine(**nodes, cores_per_l3=cores_per_l3, isa=("avx2",))
            job = replace(JOB, global_batch_size=samples)
            suggested = cputune.search_space(facts, job).suggestions
            shown = [plan.processes_per_node for kind, plan in suggested if kind == "topology"]
            assert shown == ranks


shapes = st.fixed_dictionaries(
    {
        "sockets": st.sampled_from([1, 2, 3, 4, 8]),
        "nodes_per_socket": st.sampled_from([1, 2, 4]),
        "cores_per_node": st.integers(1, 14),
        "threads_per_core": st.sampled_from([1, 2, 4]),
        "cpu_quota": st.none() | st.floats(0.1, 500),
        "memory_limit_gib": st.none() | st.floats(0.5, 64),
        "isa": st.sampled_from([AMX, AVX512]),
        "libraries": st.sampled_from([(), ("tcmalloc",)]),
        "ipex_era": st.booleans(),
        "forbidden": st.none() | st.lists(st.integers(0, 10**4), max_size=20),
    }
)


def shaped(shape: dict[str, Any]) -> HostFacts:
    """A machine of these dimensions; some of its CPUs may be forbidden by a cpuset."""
    wanted = dict(shape)
    per_node, forbidden = wanted.pop("cores_per_node"), wanted.pop("forbidden")
    wanted["cores_per_socket"] = wanted["nodes_per_socket"] * per_node
    old = wanted.pop("ipex_era")
    total = wanted["sockets"] * wanted["cores_per_socket"] * wanted["threads_per_core"]
    if forbidden is not None:
        out = {number % total for number in forbidden}
        wanted["allowed"] = tuple(cpu for cpu in range(total) if cpu not in out) or (0,)
    facts = machine(**wanted, packages=IPEX_ERA if old else TODAY)
    return replace(facts, launchers=(INTEL_MPI,) if old else ())


@settings(deadline=None, max_examples=40)
@given(shape=shapes, batch=st.sampled_from([1, 6, 8, 12, 64]), per_rank=st.booleans())
def test_every_plan_stays_inside_what_is_allowed(
    shape: dict[str, Any], batch: int, per_rank: bool
) -> None:
    facts = shaped(shape)
    job = replace(JOB, global_batch_size=batch, batch_per_rank=2 if per_rank else None)
    plans = list(cputune.search_space(facts, job).plans())
    core_of = {cpu: i for i, core in enumerate(facts.topology.cores) for cpu in core.cpus}
    quota = facts.limits.cpu_quota
    most = float("inf") if quota is None else max(1, int(quota))
    assert len(set(plans)) == len(plans)
    for plan in plans:
        workers = plan.ccl_cpus or ((),) * plan.processes_per_node
        ranks = [{*cpus, *own} for cpus, own in zip(plan.cpus, workers, strict=True)]
        cores = [{core_of[cpu] for cpu in rank} for rank in ranks]
        assert set().union(*ranks) <= set(facts.topology.allowed)
        assert sum(map(len, ranks)) == len(set().union(*ranks)), "ranks share a CPU"
        assert sum(map(len, cores)) == len(set().union(*cores)), "ranks share a core"
        assert plan.processes_per_node * (plan.threads_per_process + plan.ccl_workers) <= most
        assert per_rank or batch % plan.processes_per_node == 0
        assert plan.ccl_workers == 0 or plan.backend == "ccl"
        assert not plan.oversubscribed
        for cpus, own in zip(plan.cpus, workers, strict=True):
            assert len(own) == plan.ccl_workers
            assert {core_of[cpu] for cpu in cpus}.isdisjoint(core_of[cpu] for cpu in own)


ALONE = replace(JOB, global_batch_size=None, batch_per_rank=2)


@settings(deadline=None, max_examples=40)
@given(shape=shapes)
def test_a_rank_count_that_is_not_there_has_a_reason(shape: dict[str, Any]) -> None:
    facts = shaped(shape)
    space = cputune.search_space(facts, ALONE)
    said = [out.what for out in space.left_out if out.what.startswith("ranks=")]
    refused = {ranks for what in said for ranks in cpulist.parse(what.removeprefix("ranks="))}
    there = values_of(space, "ranks")
    assert not refused & there
    sockets = len({core.socket for core in facts.topology.allowed_cores})
    assert set(range(1, sockets + 1)) <= refused | there


class TestALoopOfItsOwn:
    JOB = replace(cputune.Workload.script(["train.py"]), framework="pytorch", global_batch_size=8)

    def test_what_the_script_decides_stays_as_it_was_seen(self) -> None:
        facts = machine(isa=AMX, cores_per_socket=8)
        today = replace(baseline_plan(facts), precision="bf16")
        space = search_space(facts, self.JOB, baseline=today)
        assert values_of(space, "ranks") == {1}
        assert values_of(space, "precision") == {"bf16"}
        assert values_of(space, "optimizer") == {"default"}
        assert len(values_of(space, "threads")) > 1
        assert why(space, "precision").endswith("sets the precision itself")
        assert space.suggestions

    def test_other_ranks_are_tried_if_they_are_asked_for(self) -> None:
        """Its trial then compares what the ranks train with the launch as typed."""
        space = search_space(machine(cores_per_socket=8), self.JOB, fix={"ranks": 2})
        assert values_of(space, "ranks") == {2}

    def test_another_value_is_refused_with_the_reason(self, golden: Golden) -> None:
        with golden.raises(UsageError) as caught:
            search_space(machine(isa=AMX, cores_per_socket=8), self.JOB, fix={"precision": "bf16"})
        golden(str(caught.value.hint))
