"""Import what a script imports, as it would be imported there, and say where each comes from.

Given: the folder that Python would search first, then names of modules. One line of JSON each.
"""

import importlib
import json
import os
import sys
import traceback


def tell(**facts: object) -> None:
    """Print what came of one module."""
    os.write(1, (json.dumps(facts) + "\n").encode())


def look(name: str) -> None:
    """Import one module. What it prints goes to stderr; how it fails is told with the place."""
    try:
        module = importlib.import_module(name)
    except BaseException as error:
        told = traceback.extract_tb(error.__traceback__)
        places = [f"{at.filename}:{at.lineno}" for at in told if at.filename != __file__]
        ours = [place for place in places if not place.startswith("<")]
        said, where = " ".join(str(error).split())[:300], ours[-1] if ours else ""
        tell(module=name, error=type(error).__name__, said=said, where=where)
        return
    version = getattr(module, "__version__", None)
    path = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
    tell(module=name, path=path, version="" if version is None else str(version))


def main() -> None:
    """Each module in turn."""
    folder, *names = sys.argv[1:]
    sys.path[0] = folder
    sys.stdout = sys.stderr
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    for name in names:
        tell(trying=name)
        look(name)


if __name__ == "__main__":
    main()
