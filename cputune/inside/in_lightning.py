"""What a plan sets in the Trainer of Lightning (lightning and pytorch_lightning 2.x).

``carry.py`` loads this file from beside itself, in trials and in emitted launches, once the
script has loaded Lightning. It needs Python 3.9 and nothing else.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cputune.inside.carry import Around, Carrier, Force


def patch(module: ModuleType, carrier: Carrier, around: Around) -> None:
    """Set the plan in every Trainer that is made, its training data and its optimizers."""
    package = module.__name__.partition(".trainer")[0]
    environments = importlib.import_module(f"{package}.plugins.environments")

    if carrier.force.typed_ranks == 1 < carrier.force.world_size:
        # Of several ranks it seeds anew before they train: one goes on with what the script drew.
        ddp = importlib.import_module(f"{package}.strategies.ddp")
        vars(ddp).update(reset_seed=lambda: None)

    @around(module.Trainer, "__init__")
    def init(original: Any, trainer: Any, **given: object) -> None:
        # Neither Slurm's numbers nor mpi4py's: the ranks are those of RANK and LOCAL_RANK.
        ranks = environments.LightningEnvironment()
        set_here = arguments(given, carrier.force, ranks)
        for name, default in (("precision", "32-true"), ("strategy", "auto")):
            before = given.get(name) or default
            if before != set_here[name]:
                carrier.changes[name] = f"{name}={set_here[name]} (was {before})"
        original(trainer, **{**given, **set_here})

    @around(module._DataConnector, "_prepare_dataloader")
    def prepare(original: Any, connector: Any, loader: Any, shuffle: bool, mode: Any) -> Any:
        prepared = original(connector, loader, shuffle=shuffle, mode=mode)
        if mode.value == "train":
            divide(carrier, connector.trainer, prepared, loader)
        return prepared

    @around(module.Strategy, "setup_optimizers")
    def setup_optimizers(original: Any, strategy: Any, *args: object, **kwargs: object) -> None:
        original(strategy, *args, **kwargs)
        for optimizer in strategy.optimizers:
            carrier.set_adamw(optimizer)


def arguments(given: Mapping[str, object], force: Force, environment: object) -> dict[str, Any]:
    """Arguments of the Trainer. A strategy and a precision that fit stay as they are.

    Strategies that start processes themselves (ddp_spawn) do not: the launcher has done it.
    """
    world = force.world_size
    local = int(os.environ.get("LOCAL_WORLD_SIZE") or world)
    os.environ.setdefault("NODE_RANK", str(int(os.environ.get("RANK") or 0) // local))
    strategy = given.get("strategy", "auto")
    if isinstance(strategy, str):
        fits = re.match("ddp($|_find|_static)" if world > 1 else "auto$", strategy)
        strategy = strategy if fits else "ddp" if world > 1 else "auto"
    precision = "bf16-mixed" if force.precision == "bf16" else "32-true"
    own = given.get("precision") or "32-true"
    plugins = given.get("plugins") or []
    plugins = plugins if isinstance(plugins, (list, tuple)) else [plugins]
    # A plugin of precision, or one that starts ranks, contradicts these arguments.
    others = ("precision", "creates_processes_externally")
    plugins = [one for one in plugins if not any(hasattr(one, name) for name in others)]
    return {
        "accelerator": "cpu",
        "devices": local,
        "num_nodes": world // local,
        "strategy": strategy,
        "plugins": [*plugins, environment],
        "precision": own if str(own)[:2] == precision[:2] else precision,
    }


def divide(carrier: Carrier, trainer: Any, loader: Any, own: Any = None) -> None:
    """The batch, after Lightning has divided the data: it may have made the script's ``own``
    loader anew.
    """
    sampler = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    if carrier.force.world_size > 1 and not hasattr(sampler, "num_replicas"):
        carrier.refuse("Lightning does not divide the data of this script over ranks")
    automatic = trainer.lightning_module.automatic_optimization
    steps = trainer.accumulate_grad_batches
    trainer.accumulate_grad_batches = carrier.divide_loader(loader, steps, fixed=not automatic)
    evaluates = getattr(trainer, "val_check_interval", None)
    if isinstance(evaluates, int) and trainer.accumulate_grad_batches != steps:  # in batches
        batches, rest = divmod(evaluates * trainer.accumulate_grad_batches, steps)
        if rest:
            carrier.refuse(
                f"val_check_interval={evaluates} batches are no whole number of a plan's"
            )
        trainer.val_check_interval = batches
    keep_shuffles(carrier, trainer, sampler, type(getattr(own, "sampler", None)).__name__)
    carrier.tell()


def keep_shuffles(carrier: Carrier, trainer: Any, sampler: Any, own: str = "") -> None:
    """Let a pass over the data take its samples in the order of the launch as typed.

    Of one rank torch draws a seed for each pass. Of several Lightning takes that of
    ``seed_everything`` and the number of the epoch, and shuffles what the script's ``own`` kind of
    sampler leaves in its order, too.
    """
    force, kind = carrier.force, type(sampler).__name__
    if force.typed_ranks == 1 < force.world_size and own == "SequentialSampler":
        sampler.shuffle = False
    elif force.typed_ranks == 1 < force.world_size and kind == "DistributedSampler":
        carrier.before_each_pass(
            sampler, lambda: setattr(sampler, "seed", carrier.drawn_seed() - sampler.epoch)
        )
    elif force.world_size == 1 < force.typed_ranks and kind == "RandomSampler":
        if sampler.generator is not None:
            return
        sampler.generator = sys.modules["torch"].Generator()
        seed = int(os.environ.get("PL_GLOBAL_SEED") or 0)
        carrier.before_each_pass(
            sampler, lambda: sampler.generator.manual_seed(seed + trainer.current_epoch)
        )
    else:
        return
    sampler.shuffled_as_several = force.typed_ranks > 1
