"""Let a package be called by its own name: ``cputune.probe()`` and ``cputune.probe.cpu``.

The public functions carry the names of the folders that hold them. Importing a folder
binds it on ``cputune`` (``importlib`` does that, unasked), so the folder itself must be
callable; a module's ``__class__`` may be set for exactly such uses
(https://docs.python.org/3/reference/datamodel.html#customizing-module-attribute-access).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any


def make_callable(module_name: str, function: Callable[..., Any]) -> None:
    """Make ``module_name(...)`` the same as ``function(...)``."""

    class CallableModule(ModuleType):
        @wraps(function)
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

    sys.modules[module_name].__class__ = CallableModule
