"""``apply_plan.py``: the parts of a plan (``cputune.inside.applying``) in one file.

Only those that the plan needs, after what they import.
"""

from __future__ import annotations

import ast
import pprint
from typing import TypeAlias

from cputune.inside import applying
from cputune.inside.applying.force import Force
from cputune.inside.applying.parts import needed
from cputune.text.documents import packaged_text

PACKAGE = "cputune.inside.applying."

# A module and a name that is imported from it; no name if it is imported as a whole.
Imports: TypeAlias = set[tuple[str, str]]

START = '''#!/usr/bin/env python3
"""Run a training script with the part of a plan that its command line cannot say.

    python apply_plan.py train.py --its-arguments
    python apply_plan.py -m package.train --its-arguments

The script stays as it is. What is set in it is set once it has loaded its libraries, and the first
rank says so on stderr. A script that cannot be run as the plan asks ends with exit status 3. This
file needs Python 3.9 and nothing else; what is set stands at its end.
"""

from __future__ import annotations

'''


def apply_plan_file(force: Force) -> str:
    """The text of ``apply_plan.py`` for what a plan sets. ``rank.py`` ends and compares ranks."""
    read = _Pieces()
    read.add("run_script")
    lines = ""
    for part in needed(force):
        read.add(part.module)
        lines += f"        {part.name}({part.takes}),\n"
    text = START + _imports(read.imports, "")
    if read.typing:
        text += "\nif TYPE_CHECKING:\n" + _imports(read.typing, "    ")
    for code in read.code:
        text += f"\n\n{code}\n"
    listed = "[]"
    if lines:
        listed = f"[\n{lines}    ]"
    setting = ""
    if "force" in read.seen:
        text += f"\n\nPLAN = {_as_literal(force)}\n"
        setting = "    setting = Setting(Force(**PLAN), refuse, say)\n"
    text += f'\n\nif __name__ == "__main__":\n{setting}    main({listed})\n'
    return text


def _as_literal(force: Force) -> str:
    """What is set, without default values."""
    return pprint.pformat(force.changed(), width=90, sort_dicts=False)


class _Pieces:
    """Modules of ``inside.applying`` in pieces.

    Attributes:
        seen: their names.
        imports: what they import from elsewhere; typing: for type checkers alone.
        code: the rest of each module, under its title, after what it imports.
    """

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.imports: Imports = set()
        self.typing: Imports = set()
        self.code: list[str] = []

    def add(self, name: str) -> None:
        """Read a module, and before it those that it imports."""
        if name in self.seen:
            return
        self.seen.append(name)
        source = packaged_text(applying.__name__, f"{name}.py")
        tree = ast.parse(source)
        title, _, *statements = tree.body  # after the docstring, from __future__ import annotations
        for statement in statements:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                self._import(statement, self.imports)
            elif isinstance(statement, ast.If):  # TYPE_CHECKING
                for line in statement.body:
                    self._import(line, self.typing)
            else:
                break
            title = statement
        heading = str(ast.get_docstring(tree)).splitlines()[0]
        code = "\n".join(source.splitlines()[title.end_lineno :]).strip("\n")
        self.code.append(f"# {heading}\n\n\n{code}")

    def _import(self, statement: ast.stmt, imports: Imports) -> None:
        if isinstance(statement, ast.Import):
            imports.update((name.name, "") for name in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            module = str(statement.module)
            if module.startswith(PACKAGE):
                self.add(module.removeprefix(PACKAGE))
            else:
                imports.update((module, name.name) for name in statement.names)


def _imports(imports: Imports, indent: str) -> str:
    """The lines of these imports, sorted: ``import x`` before ``from x import y``."""
    lines = []
    names_of: dict[str, list[str]] = {}
    for module, name in sorted(imports):
        if name:
            names_of.setdefault(module, []).append(name)
        else:
            lines.append(f"import {module}")
    for module, names in names_of.items():
        lines.append(f"from {module} import {', '.join(names)}")
    return "".join(f"{indent}{line}\n" for line in lines)
