"""Sets hooks in modules when they are loaded: functions that replace theirs."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType

# A function of a library that one of ours replaces.
Original = Callable[..., object]

# A module; a name in it (``Trainer.train``); and what replaces it, called with the original
# before the arguments. Without a name: called with the module, once it is loaded.
Hook = tuple[str, str, Callable[..., object]]


def set_hooks(hooks: Iterable[Hook]) -> None:
    """Set each hook when its module is loaded; at once if it is."""
    waiting: dict[str, list[Hook]] = {}
    for module, what, called in hooks:
        if module in sys.modules:
            put(sys.modules[module], what, called)
        else:
            waiting.setdefault(module, []).append((module, what, called))
    sys.meta_path.insert(0, _Watcher(waiting))


def put(owner: object, what: str, called: Callable[..., object]) -> None:
    """Set one hook in a module that is loaded, or in a class or an object."""
    *outer, name = what.split(".")
    owner = functools.reduce(getattr, outer, owner)
    if not name:
        called(owner)
    elif called is not nothing or hasattr(owner, name):
        original = getattr(owner, name)

        @functools.wraps(original)
        def method(*args: object, **kwargs: object) -> object:
            return called(original, *args, **kwargs)

        setattr(owner, name, method)


def nothing(*_: object, **__: object) -> None:
    """Replaces what must not happen; not every version has it."""


class _Watcher(importlib.abc.MetaPathFinder):
    """Lets the other finders find, and sets hooks in what they load."""

    def __init__(self, waiting: Mapping[str, Sequence[Hook]]) -> None:
        self._waiting = waiting

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        # Asked for more than once: who only looks whether a module is there (is_ipex_available)
        # asks here too, and loads nothing.
        hooks = self._waiting.get(name)
        if hooks is None:
            return None
        # Those behind it alone: two watchers (a launch that is observed) must not ask each other.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            if not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    _put_after(spec.loader, name, hooks)
                return spec
        return None


def _put_after(loader: object, name: str, hooks: Sequence[Hook]) -> None:
    def load(original: Original, module: ModuleType) -> None:
        original(module)
        if module.__name__ == name:  # an archive has one loader for all of its modules
            for _, what, called in hooks:
                put(module, what, called)

    put(loader, "exec_module", load)
