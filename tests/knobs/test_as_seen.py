"""A launch that is run as found is what its ranks show, not what was expected of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rows import every_row

from cputune import Plan
from cputune.plans.knobs import as_seen

AS_FOUND = Plan(processes_per_node=1, threads_per_process=2, cpus=((0, 1),), as_found=True)


@every_row(
    ("state", "words"),
    [
        ({"dtype": "bfloat16"}, "1 × 2 threads, bf16, as found"),
        ({"dtype": "float32"}, "1 × 2 threads, fp32, as found"),
        ({"dtype": None}, "1 × 2 threads, fp32, as found"),
        ({"threads": 4, "affinity": "0-3"}, "1 × 4 threads, fp32, as found"),
        ({"threads": 4, "affinity": [0, 1, 2, 3]}, "1 × 4 threads, fp32, as found"),
        ({"ipex": True}, "1 × 2 threads, fp32, IPEX, as found"),
    ],
)
def test_it_says_what_was_seen(state: dict[str, Any], words: str) -> None:
    assert as_seen(AS_FOUND, [state]).describe() == words


def test_libraries_that_the_user_preloads_are_part_of_it() -> None:
    paths = ["/opt/libshim.so", "/lib/libtcmalloc.so.4", "/lib/libiomp5.so", "libjemalloc.so.2"]
    plan = as_seen(AS_FOUND, [{"preload": paths}])
    assert (plan.allocator, plan.openmp) == ("tcmalloc", "libiomp5")
    assert set(plan.preload) == {"/lib/libtcmalloc.so.4", "/lib/libiomp5.so"}


def test_what_is_bound_on_several_nodes_is_known_if_they_are_alike() -> None:
    two = replace(AS_FOUND, nodes=2)
    assert as_seen(two, [{"affinity": "3"}, {"affinity": "3"}]).cpus == ((3,),)
    assert as_seen(two, [{"affinity": "0-1"}, {"affinity": "4-5"}]) == two
