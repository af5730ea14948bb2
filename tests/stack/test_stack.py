import pytest
from packaging.version import Version

from cputune.stack.fit import misfits
from cputune.stack.tables import load, parse, satisfies, tag_of
from cputune.stack.versions import Versions, short_name
from cputune.stack.ways import way_out, ways_out

STACK = load()


def versions(**texts):
    return Versions(**{name: Version(text) for name, text in texts.items()})


class TestTables:
    def test_every_row_has_a_source(self):
        rows = (*STACK.eras, *STACK.torch, *STACK.ipex, *STACK.oneccl)
        for library in (STACK.transformers, STACK.accelerate):
            rows += (*library.arguments, *library.backends, *library.keys, *library.behaviours)
        assert all(row.source for row in rows)

    def test_rows_stand_in_the_order_of_their_versions(self):
        for rows in (
            [row.minor for row in STACK.torch],
            [row.version for row in STACK.ipex],
            [row.version for row in STACK.oneccl],
            [row.first for row in STACK.transformers.needs],
            [row.first for row in STACK.accelerate.needs],
            STACK.transformers.read,
            STACK.accelerate.read,
        ):
            assert list(rows) == sorted(rows)

    def test_both_eras_fit_and_are_what_they_say(self):
        for era in STACK.eras:
            stack = Versions(python=Version("3.11"), **era.versions)
            assert misfits(stack) == ()
            way = way_out(era.name, stack)
            assert way is not None
            assert way.changes == ()

    @pytest.mark.parametrize(
        ("package", "version", "torch"),
        [
            ("transformers", "4.20.1", ">=1.0"),
            ("transformers", "4.40.2", ""),
            ("transformers", "4.52.4", "<2.7,>=2.1"),
            ("transformers", "5.23.0", ">=2.6"),
            ("accelerate", "0.18.0", ">=1.4.0"),
            ("accelerate", "1.7.0", ">=2.0.0"),
        ],
    )
    def test_what_a_release_needs_of_torch(self, package, version, torch):
        assert getattr(STACK, package).needs_of(Version(version)).torch == torch

    @pytest.mark.parametrize(
        ("key", "version", "known"),
        [
            ("ipex_config", "0.18.0", False),
            ("ipex_config", "0.19.0", True),
            ("ipex_config", "1.12.0", True),
            ("ipex_config", "1.13.0", False),
            ("mpirun_config", "0.27.2", False),
            ("mpirun_config", "1.15.0", True),
            ("tp_config", "1.6.0", True),
            ("tp_config", "1.7.0", False),
            ("use_cpu", "0.13.2", True),
        ],
    )
    def test_the_keys_that_accelerate_knows(self, key, version, known):
        assert (key in STACK.accelerate.keys_of(Version(version))) is known

    @pytest.mark.parametrize(
        ("torch", "newest"),
        [("1.10.2", "1.10.100"), ("1.12.1", "1.12.300"), ("2.3.1", "2.3.100"), ("2.8.0", "2.8.0")],
    )
    def test_the_newest_ipex_of_a_torch(self, torch, newest):
        assert str(STACK.ipex_for(Version(torch))[0].version) == newest

    def test_there_is_no_ipex_after_2_8(self):
        assert all(not STACK.ipex_for(row.last) for row in STACK.torch if row.minor > (2, 8))

    @pytest.mark.parametrize(
        ("torch", "bindings", "module"),
        [
            ("1.11.0", "1.11.0", "torch_ccl"),
            ("1.12.0", "1.12.0", "oneccl_bindings_for_pytorch"),
            ("1.12.1", "1.12.100", "oneccl_bindings_for_pytorch"),
            ("2.8.0", "2.8.0", "oneccl_bindings_for_pytorch"),
        ],
    )
    def test_the_bindings_of_a_torch(self, torch, bindings, module):
        (row,) = STACK.bindings_for(Version(torch))
        assert (str(row.version), row.module) == (bindings, module)

    def test_a_version_older_than_the_tables_is_not_guessed(self):
        assert STACK.transformers.needs_of(Version("3.5.0")) is None


class TestAsking:
    def test_local_labels_and_development_versions_are_let_through(self):
        assert satisfies(Version("2.8.0+cpu"), "==2.8.0")
        assert satisfies(Version("2.9.0.dev20250801"), ">=2.8")
        assert not satisfies(Version("2.1.0"), "<2")

    def test_what_is_no_version_is_none(self):
        assert parse("git-main") is None
        assert parse(None) is None
        assert parse("9" * 5000) is None

    def test_names_in_any_spelling(self):
        assert short_name("Intel-Extension-for-PyTorch") == "ipex"
        assert short_name("oneccl_bind_pt") == "oneccl"
        assert short_name("requests") is None
        assert tag_of(Version("3.11.9")) == "cp311"


class TestRules:
    @pytest.mark.parametrize(
        ("stack", "said"),
        [
            ({"torch": "2.13.0", "ipex": "2.8.0"}, "built for torch 2.8, not 2.13.0"),
            ({"torch": "1.12.1", "oneccl": "1.12.0"}, "built for torch 1.12.0, not 1.12.1"),
            ({"torch": "2.5.1", "transformers": "5.23.0"}, "needs torch >=2.6, found 2.5.1"),
            ({"torch": "1.13.1", "accelerate": "1.3.0"}, "needs torch >=2.0.0, found 1.13.1"),
            ({"accelerate": "0.20.0", "transformers": "4.55.4"}, "needs accelerate >=0.26.0"),
            ({"torch": "2.2.2", "numpy": "2.0.0"}, "needs numpy <2, found 2.0.0"),
            ({"transformers": "4.42.0", "numpy": "2.0.0"}, "needs numpy <2.0,>=1.17"),
            ({"python": "3.14", "torch": "2.8.0"}, "no wheel for Python 3.14"),
            ({"python": "3.10.4", "transformers": "5.23.0"}, "needs Python >=3.11.0"),
        ],
    )
    def test_a_broken_rule_is_said_with_both_versions(self, stack, said):
        (sentence,) = misfits(versions(**stack))
        assert said in sentence

    @pytest.mark.parametrize(
        "stack",
        [
            {"torch": "2.8.0+cpu", "ipex": "2.8.0+cpu", "oneccl": "2.8.0+cpu"},
            {"torch": "1.12.1", "oneccl": "1.12.100"},
            {"torch": "1.13.1", "oneccl": "1.13.0"},
            {"torch": "2.3.1", "numpy": "2.4.0"},
            {"torch": "99.0", "transformers": "99.0", "accelerate": "99.0", "python": "3.11"},
        ],
    )
    def test_what_fits_breaks_no_rule(self, stack):
        assert misfits(versions(**stack)) == ()


class TestWaysOut:
    @pytest.mark.parametrize(
        ("stack", "ipex_era", "today"),
        [
            (
                {"torch": "2.13.0", "ipex": "2.8.0", "transformers": "5.23.0"},
                "pip install torch==2.8.0 transformers==4.55.4",
                "pip uninstall -y intel_extension_for_pytorch",
            ),
            (
                {"torch": "2.6.0", "ipex": "2.8.0"},
                "pip install intel_extension_for_pytorch==2.6.0",
                "pip uninstall -y intel_extension_for_pytorch && pip install torch==2.13.0",
            ),
            (
                {
                    "torch": "2.8.0",
                    "ipex": "2.8.0",
                    "transformers": "4.55.4",
                    "accelerate": "1.8.1",
                },
                "pip install accelerate==1.7.0",
                "pip uninstall -y intel_extension_for_pytorch && "
                "pip install torch==2.13.0 transformers==5.23.0 accelerate==1.15.0",
            ),
            (
                {"torch": "2.2.2", "numpy": "2.1.0"},
                "pip install 'numpy<2'",
                "pip install torch==2.13.0",
            ),
        ],
    )
    def test_the_smallest_change_each_way(self, stack, ipex_era, today):
        asked = versions(python="3.11.9", **stack)
        assert way_out("ipex", asked).command() == ipex_era
        assert way_out("today", asked).command() == today

    def test_wheels_that_pypi_does_not_have_come_from_their_page(self):
        way = way_out("ipex", versions(python="3.10", torch="1.12.1", oneccl="1.12.0"))
        assert way.command() == (
            f"pip install oneccl_bind_pt==1.12.100 -f {STACK.wheels['oneccl']}"
        )

    def test_a_python_without_ipex_leaves_one_way(self):
        (way,) = ways_out(versions(python="3.14", torch="2.13.0", ipex="2.8.0"))
        assert way.says == "today's stack"

    def test_a_python_that_transformers_has_left_gets_the_newest_that_takes_it(self):
        way = way_out("today", versions(python="3.10", torch="2.8.0", transformers="4.50.0"))
        assert way.command() == "pip install torch==2.13.0 transformers==5.20.2"

    @pytest.mark.parametrize("torch", [str(row.last) for row in STACK.torch])
    @pytest.mark.parametrize("python", ["3.8", "3.10", "3.12"])
    def test_every_way_leads_to_a_stack_that_fits(self, torch, python):
        asked = versions(
            python=python,
            torch=torch,
            ipex="2.4.0",
            oneccl="1.12.0",
            transformers="4.30.2",
            accelerate="1.15.0",
            numpy="2.4.0",
        )
        for way in ways_out(asked):
            assert misfits(way.result) == ()
            assert dict(way.changes).keys() <= {*STACK.era("ipex").versions, "oneccl", "numpy"}
