"""``make facts``: what is read of the sources of two releases, and the ranges that come of it."""

from __future__ import annotations

import importlib.util
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from golden_texts import Golden

TOOL = Path(__file__).resolve().parents[2] / "tools" / "facts.py"


@pytest.fixture(scope="module")
def facts() -> ModuleType:
    spec = importlib.util.spec_from_file_location("facts", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules["facts"] = module  # dataclasses and pickle look it up there
    spec.loader.exec_module(module)
    return module


OLD = {
    "pkg/__init__.py": "from .trainer import *\nfrom .old import gone\n",
    "pkg/old.py": "def gone(a): ...\n",
    "pkg/trainer.py": """
from dataclasses import dataclass
__all__ = ["Trainer"]
@dataclass
class Arguments:
    lr: float = 1.0
    evaluation: str = "no"
    def __post_init__(self):
        if self.evaluation:
            warn("`evaluation` is deprecated and will be removed. Use `eval` instead")
        raise ValueError(f"the value {self.lr} of lr cannot be negative, give another one")
class Trainer(Base):
    def __init__(self, model, **kwargs):
        self.model = model
        kwargs.pop("extra", None)
    def train(self, resume=None): ...
""",
    "pkg/commands/launch.py": 'parser.add_argument("--ipex", "-i")\n',
}
NEW = {
    "pkg/__init__.py": '_import_structure = {"trainer": ["Trainer", "Arguments"]}\n',
    "pkg/trainer.py": OLD["pkg/trainer.py"].replace("    evaluation: str", "    eval: str"),
    "pkg/broken.py": "def (:\n",
}


def wheel(folder: Path, version: str, files: dict[str, str]) -> Path:
    path = folder / f"pkg-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as target:
        for name, text in files.items():
            target.writestr(name, text)
    return path


def test_what_two_releases_show_becomes_ranges(
    facts: ModuleType, tmp_path: Path, golden: Golden
) -> None:
    places = [wheel(tmp_path, "1.0", OLD), wheel(tmp_path, "2.0", NEW)]
    for _ in range(2):  # the second time from the cache
        found = facts.gathered("pkg", places, tmp_path / "parsed")
    assert found["modules"]["pkg"] == {
        "0": "pkg.commands.launch pkg.old",
        "0-1": "pkg pkg.trainer",
        "1": "pkg.broken",
    }
    assert found["arguments"]["pkg.trainer:Arguments"] == {
        "0": "evaluation",
        "0-1": "lr",
        "1": "eval",
    }
    assert found["arguments"]["pkg.trainer:Trainer"] == {"0-1": "** extra model"}
    assert found["arguments"]["pkg.trainer:Trainer.train"] == {"0-1": "resume"}
    assert found["bases"]["pkg.trainer:Trainer"] == {"0-1": "Base"}
    assert found["members"]["pkg.trainer:Trainer"] == {"0-1": "model train"}
    assert found["symbols"]["pkg"]["0-1"] == "Trainer"
    assert "gone" in found["symbols"]["pkg"]["0"].split()
    assert "Arguments" in found["symbols"]["pkg"]["1"].split()
    (message,) = found["messages"]["pkg.trainer"]["0-1"].split("\n")
    golden(message)
    assert found["renamed"] == {"evaluation": {"0-1": "eval"}}
    assert found["options"] == {"pkg.commands.launch": {"0": "--ipex"}}


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ('"no " + x + " here"', "no {} here"),
        ('"%s is not %d" % (a, b)', "{} is not {}"),
        ('"{} of {name}".format(a)', "{} of {}"),
        ("x[3]", ""),
    ],
)
def test_a_message_becomes_a_template(facts: ModuleType, code: str, said: str) -> None:
    import ast

    assert facts.template(ast.parse(code, mode="eval").body) == said
