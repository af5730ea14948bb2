"""``cputune.inside`` stands apart: quick to import, and nothing of ours or theirs with it."""

import sys
from pathlib import Path

from in_process import ran

from cputune.inside import recipe_script, root_directory, site_directory

LOADED = ("", ".supervisor_main")


def test_hooks_load_neither_torch_nor_the_rest_of_cputune() -> None:
    code = (
        "import sys, cputune.inside.hooks, cputune.ranks.supervisor_main\n"
        "print(sorted(m for m in sys.modules if m.startswith('cputune')"
        " and not m.startswith('cputune.inside')), 'torch' in sys.modules,"
        " 'numpy' in sys.modules)"
    )
    out = ran([sys.executable, "-c", code], check=True).stdout
    own = ["cputune", *(f"cputune.ranks{name}" for name in LOADED)]
    assert out.strip() == f"{own} False False"


def test_the_places_it_tells_are_there() -> None:
    assert recipe_script().is_file()
    assert (site_directory() / "sitecustomize.py").is_file()
    assert (root_directory() / "cputune" / "inside").is_dir()


def test_a_sitecustomize_of_the_machine_is_loaded_after_ours(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "sitecustomize.py").write_text("print('theirs')")
    for socket in ("", str(tmp_path / "nobody")):
        out = ran(
            [sys.executable, "-c", "import sys; print('cputune.inside.hooks' in sys.modules)"],
            env={"PYTHONPATH": f"{site_directory()}:{tmp_path}", "CPUTUNE_TRIAL_SOCKET": socket},
            check=True,
        ).stdout.split()
        assert out == ["theirs", str(bool(socket))]


def test_where_the_machine_has_no_sitecustomize_nothing_is_said(tmp_path: Path) -> None:
    ended = ran(
        [sys.executable, "-S", "-c", "import sitecustomize"],  # what `site` does, without its own
        env={"PYTHONPATH": str(site_directory()), "CPUTUNE_TRIAL_SOCKET": str(tmp_path / "no")},
        check=True,
    )
    assert (ended.stdout, ended.stderr) == ("", "")
