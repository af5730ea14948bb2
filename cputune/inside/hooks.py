"""Hooks that wait for transformers and accelerate to be imported, and then set themselves.

A module that is already there (a forked rank) is hooked at once.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from cputune.inside import SCRATCH_VARIABLE, accelerate_hooks, force, trainer_hooks
from cputune.inside.meter import Meter
from cputune.inside.speak import Speaker

OUTPUT_NAMES = ("output_dir", "logging_dir", "project_dir", "save_dir")
"""What scripts call the folder that they write; read by argparse, it is led elsewhere."""

SILENT = {
    "WANDB_MODE": "disabled",
    "WANDB_DISABLED": "true",
    "COMET_MODE": "disabled",
    "MLFLOW_TRACKING_URI": "",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "CODECARBON_LOG_LEVEL": "error",
}
"""Keeps trackers from reporting trials as runs of the user."""


def install() -> Meter:
    """Set every hook in this process. Nothing is said before the script trains."""
    meter = Meter(Speaker())
    plan = force.from_environment()
    scratch = os.environ.get(SCRATCH_VARIABLE) or None
    os.environ.update(SILENT)
    _redirect_arguments(scratch)
    watched: dict[str, Callable[[ModuleType], None]] = {
        **trainer_hooks.patches(meter, plan, scratch),
        **accelerate_hooks.patches(meter, plan, scratch),
        "intel_extension_for_pytorch": lambda module: _note_ipex(module, meter),
    }
    meter.facts["ipex"] = False
    for name in list(watched):
        module = sys.modules.get(name)
        if module is not None:
            watched.pop(name)(module)
    sys.meta_path.insert(0, _Watcher(watched))
    return meter


class _Watcher(importlib.abc.MetaPathFinder):
    """Lets the other finders find, and hooks what they load."""

    def __init__(self, watched: dict[str, Callable[[ModuleType], None]]) -> None:
        self._watched = watched

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        # Asked for more than once: who only looks whether a module is there (is_ipex_available)
        # asks here too, and loads nothing.
        patch = self._watched.get(name)
        if patch is None:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, patch)  # type: ignore[assignment]
                return spec
        return None


class _Loader:
    """The real loader, and one call after it."""

    def __init__(self, loader: Any, patch: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._patch = patch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._patch(module)


def _redirect_arguments(scratch: str | None) -> None:
    """Lead the script's output folder elsewhere, after its arguments were parsed."""
    if scratch is None:
        return
    import argparse

    elsewhere = os.path.join(scratch, "output")
    original = argparse.ArgumentParser.parse_known_args

    def parse_known_args(self: Any, *args: Any, **kwargs: Any) -> Any:
        namespace, rest = original(self, *args, **kwargs)
        for name in OUTPUT_NAMES:
            if isinstance(getattr(namespace, name, None), str):
                setattr(namespace, name, elsewhere)
        return namespace, rest

    argparse.ArgumentParser.parse_known_args = parse_known_args  # type: ignore[method-assign]


def _note_ipex(module: ModuleType, meter: Meter) -> None:
    original = getattr(module, "optimize", None)
    if original is None:
        return

    def optimize(*args: Any, **kwargs: Any) -> Any:
        meter.facts["ipex"] = True
        return original(*args, **kwargs)

    module.optimize = optimize  # type: ignore[attr-defined]
