import sys

from in_process import ran

LOOK_THEN_IMPORT = """
import importlib.util, sys
sys.path.insert(0, sys.argv[1])
from cputune.inside.hooks import install
meter = install()
assert importlib.util.find_spec("intel_extension_for_pytorch") is not None
import intel_extension_for_pytorch
intel_extension_for_pytorch.optimize()
print(meter.facts["ipex"])
"""


def test_a_look_whether_a_module_is_there_costs_no_hook(tmp_path):
    module = tmp_path / "intel_extension_for_pytorch.py"
    module.write_text("def optimize():\n    pass\n")
    argv = [sys.executable, "-c", LOOK_THEN_IMPORT, str(tmp_path)]
    done = ran(argv)
    assert done.stdout.strip() == "True", done.stderr
