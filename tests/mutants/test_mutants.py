"""``make mutants`` itself: what it plants, and that its lists name what there is."""

from __future__ import annotations

from rows import every_row

from mutants.planting import planted
from mutants.rooms import PROJECT, harmless, rooms, shown
from mutants.table import _row


def faults(source: str) -> set[str]:
    return {mutant.becomes for mutant in planted("it.py", source)}


def test_a_comparison_is_moved_over_its_border_and_turned_round() -> None:
    assert faults("x = a < b") == {"x = a <= b", "x = a > b"}


def test_a_number_is_one_more_and_one_less() -> None:
    assert {" ".join(line.split()) for line in faults("LEAST = 6")} == {"LEAST = 7", "LEAST = 5"}


def test_a_few_are_the_same_ones_every_time() -> None:
    source = "x = [1, 2, 3, 4, 5]"
    few = [mutant.becomes for mutant in planted("it.py", source, most=4)]
    assert len(few) == 4
    assert few == [mutant.becomes for mutant in planted("it.py", source, most=4)]
    assert set(few) < faults(source)


def test_an_exception_that_cosmic_ray_cannot_replace_is_passed_over() -> None:
    assert {
        " ".join(one.split())
        for one in faults("try:\n    f()\nexcept (a.B, ValueError):\n    x = 1")
    } >= {"x = 2", "x = 0"}


@every_row(
    "source",
    [
        "def f(a: int | None, *, b: str) -> int | None: ...",
        "@dataclass(frozen=True)\nclass A:\n    b: int | None",
        "if TYPE_CHECKING:\n    import os",
        "x = zip(c, d, strict=True)",
        "os.sched_setaffinity(0, cpus)",
        "if said := ask():\n    print(said)",
    ],
)
def test_nothing_is_planted_if_nothing_is_decided(source: str) -> None:
    assert faults(source) == set()


def test_each_room_has_tests() -> None:
    for room in rooms():
        assert all((PROJECT / test).exists() for test in room.tests)


def test_each_module_is_in_a_room_or_decides_nothing() -> None:
    """Whoever adds a module says which tests have to notice what is wrong in it."""
    every = {str(one.relative_to(PROJECT)) for one in (PROJECT / "cputune").rglob("*.py")}
    tried = {module for room in rooms() for module in room.modules}
    assert every == tried | shown()


def test_each_harmless_fault_is_of_a_line_that_is_there() -> None:
    for fault in harmless():
        lines = (PROJECT / fault.module).read_text(encoding="utf-8").splitlines()
        assert fault.was in map(str.strip, lines), fault


def test_the_table_counts_what_survived_though_it_is_harmless() -> None:
    assert _row("layout", 17, 3, 2).split() == ["layout", "20", "17", "3", "2", "85%"]
