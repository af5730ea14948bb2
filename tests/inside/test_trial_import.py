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


def test_a_sitecustomize_of_the_machine_is_loaded_after_ours(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('theirs')")
    look = "import sys; print('cputune.inside.hooks' in sys.modules)"
    alone = "import sitecustomize"  # what `site` does, where the machine has none
    for words, path, socket, said in (
        (["-c", look], [tmp_path], "", "theirs\nFalse\n"),
        (["-c", look], [tmp_path], "nobody", "theirs\nTrue\n"),
        (["-S", "-c", alone], [], "nobody", ""),
    ):
        ended = ran(
            [sys.executable, *words],
            env={
                "PYTHONPATH": ":".join(map(str, [site_directory(), *path])),
                "CPUTUNE_TRIAL_SOCKET": socket and str(tmp_path / socket),
            },
            check=True,
        )
        assert (ended.stdout, ended.stderr) == (said, "")


LOOK_THEN_IMPORT = """
import importlib.util, sys
sys.path.insert(0, sys.argv[1])
from cputune.inside.applying.hooking import set_hooks
from cputune.inside.hooks import install
meter = install()
module, seen = "intel_extension_for_pytorch", []
set_hooks([(module, "", lambda loaded: seen.append("second"))])
assert importlib.util.find_spec(module) is not None
import intel_extension_for_pytorch
intel_extension_for_pytorch.optimize()
set_hooks([(module, "", lambda loaded: seen.append("at once"))])
print(meter.facts["ipex"], *seen)
"""


def test_a_look_whether_a_module_is_there_costs_no_hook_nor_does_a_second_watcher(
    tmp_path: Path,
) -> None:
    module = tmp_path / "intel_extension_for_pytorch.py"
    module.write_text("def optimize():\n    pass\n")
    done = ran([sys.executable, "-c", LOOK_THEN_IMPORT, str(tmp_path)])
    assert done.stdout.split() == ["True", "second", "at", "once"], done.stderr
