"""Lets a script on another number of ranks train the same: schedules, shuffles, number of ranks."""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

from cputune.inside.applying.hooking import Hook, Original
from cputune.inside.applying.shared import Setting

PRETENDED = "the number of ranks that its loss asks for"


class RanksPart:
    """The number of ranks that a script sees, and what depends on it."""

    name = "ranks"

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def hooks(self) -> list[Hook]:
        """The functions that give schedules, the number of ranks, and DistributedDataParallel."""
        force = self._setting.force
        hooks: list[Hook] = []
        if force.world_size > 1:
            distributed = "torch.nn.parallel.distributed"
            hooks.append((distributed, "DistributedDataParallel.__init__", self._find_unused))
        if force.other_ranks:
            hooks.append(("accelerate.scheduler", "", self._keep_schedules))
            hooks.append(("transformers.trainer", "Trainer._get_train_sampler", self._keep_groups))
        if force.rescales:
            hooks.append(("accelerate.accelerator", "", self._keep_number_of_ranks))
        return hooks

    def report(self) -> dict[str, str]:
        """Nothing: it changes no state of a rank."""
        return {}

    def _find_unused(
        self, original: Original, ddp: object, module: Any, *args: object, **kwargs: object
    ) -> None:
        """One rank ignores parameters that a step leaves out; several have to look for them."""
        unused = self._setting.force.find_unused or drops_layers(module)
        if unused and not kwargs.get("static_graph"):
            if not kwargs.get("find_unused_parameters"):
                self._setting.note("ranks", "find_unused_parameters")
            kwargs["find_unused_parameters"] = True
        original(ddp, module, *args, **kwargs)

    def _keep_groups(self, original: Original, *args: object, **kwargs: object) -> object:
        """``group_by_length`` sorts 50 batches of a rank at a time: of the current launch."""
        sampler: Any = original(*args, **kwargs)
        force = self._setting.force
        if type(sampler).__name__ == "LengthGroupedSampler":
            self._setting.note("ranks", "groups of like length")
            sampler.batch_size = sampler.batch_size * force.world_size // force.typed_ranks
        return sampler

    def _keep_schedules(self, module: ModuleType) -> None:
        """AcceleratedScheduler steps once for each rank: it expects the batch to grow with them."""
        ranks = SimpleNamespace(num_processes=self._setting.force.typed_ranks)

        def state() -> SimpleNamespace:
            self._setting.note("ranks", "its schedules")
            return ranks

        module.AcceleratorState = state  # type: ignore[attr-defined]

    def _keep_number_of_ranks(self, module: ModuleType) -> None:
        """Before it trains, a script sees the number of ranks of its current launch.

        Scripts scale learning rates and schedules by it. Libraries, and all later calls, see the
        real number; so does the script if its global batch grows with the ranks.
        """
        setting, cls = self._setting, module.Accelerator
        real = cls.num_processes
        libraries = os.path.dirname(os.path.dirname(str(module.__file__)))

        def num_processes(accelerator: object) -> int:
            asking = sys._getframe(1)
            script = asking.f_globals.get("__name__") == "__main__"
            script |= not asking.f_code.co_filename.startswith(libraries)
            script &= setting.force.other_ranks
            before = script and not (setting.trains or setting.has_trainer)
            if not (before or setting.pretends):
                return int(real.fget(accelerator))
            if setting.pretends:
                setting.note("ranks", PRETENDED)
            else:
                setting.note("ranks", "the number of ranks that it asks for")
            return setting.force.typed_ranks

        cls.num_processes = property(num_processes)


def seed_as_several(sampler: Any) -> None:
    """Seed a shuffle before the first pass, as accelerate does with several ranks.

    With one rank torch draws a seed as each pass begins.
    """
    if type(sampler).__name__ != "RandomSampler" or sampler.generator is not None:
        return
    torch = sys.modules["torch"]
    sampler.generator = torch.Generator()
    sampler.generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_()))


def drops_layers(model: Any) -> bool:
    """Whether a model leaves out whole layers at random (LayerDrop).

    With a rate of 0.05 most steps leave out none of four layers, so the first step need not show
    it.
    """
    for part in model.modules():
        config = getattr(part, "config", None)
        settings = {**vars(part), **getattr(config, "__dict__", {})}
        for name, value in settings.items():
            if (
                name.endswith(("layerdrop", "layer_drop"))
                and isinstance(value, float)
                and value > 0
            ):
                return True
    return False
