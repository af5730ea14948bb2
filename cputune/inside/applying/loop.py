"""Sets a plan in an Accelerator, and divides the batch of the loader that its loop trains on."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from cputune.inside.applying.hooking import Hook, Original
from cputune.inside.applying.ranks import seed_as_several
from cputune.inside.applying.shared import Setting

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader


class LoopPart:
    """Sets every Accelerator of a script: the CPU, the precision, the batch, the kind of AdamW.

    One that a Trainer makes only gets CPU and precision: its arguments have the rest.
    """

    name = "loop"

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._prepared = 0
        self._divided: list[object] = []
        self._call: tuple[str, ...] = ()
        self._place = 0
        self._trained: tuple[tuple[str, ...], int] | None = None

    def hooks(self) -> list[Hook]:
        """The constructor of Accelerator, and what it is given."""
        accelerator = "accelerate.accelerator"
        passes = "DataLoaderShard.__iter__", "DataLoaderDispatcher.__iter__"
        return [
            *(("accelerate.data_loader", name, self._begin_pass) for name in passes),
            (accelerator, "Accelerator.__init__", self._accelerator_init),
            (accelerator, "Accelerator.prepare", self._prepare),
            (accelerator, "Accelerator.prepare_data_loader", self._prepare_loader),
            (accelerator, "Accelerator.backward", self._backward),
            (accelerator, "Accelerator.prepare_optimizer", self._prepare_optimizer),
        ]

    def report(self) -> dict[str, str]:
        """Nothing: a rank shows its precision, its batch and its optimizer by itself."""
        return {}

    def _accelerator_init(
        self, original: Original, accelerator: Accelerator, *args: object, **kwargs: object
    ) -> None:
        bound = inspect.signature(original).bind_partial(accelerator, *args, **kwargs)
        _, *given = bound.arguments.items()
        wanted = self._setting.force.precision
        before = str(bound.arguments.get("mixed_precision"))
        if not self._setting.has_trainer and before not in ("None", wanted):
            self._setting.changes["mixed_precision"] = f"mixed_precision={wanted} (was {before})"
            self._setting.note("loop", "mixed_precision")
        original(accelerator, **{**dict(given), "mixed_precision": wanted, "cpu": True})

    def _prepare(self, original: Original, *args: object, **kwargs: object) -> object:
        """Note what is prepared together: a script may do so again, for each fold of its data."""
        self._call = tuple(type(arg).__name__ for arg in args[1:])
        self._place = 0
        try:
            return original(*args, **kwargs)
        finally:
            self._call = ()

    def _is_trained_on(self) -> bool:
        """Whether this is the loader that was trained on in trials, or one that is prepared later
        in its place, with the same others.
        """
        place = self._call, self._place
        self._place += 1
        is_first = self._prepared == self._setting.force.loader
        self._prepared += 1
        if is_first and self._call:
            self._trained = place
        return is_first or (self._trained == place and self._prepared > self._setting.force.loader)

    def _prepare_loader(
        self,
        original: Original,
        accelerator: Accelerator,
        loader: DataLoader,
        *args: object,
        **kwargs: object,
    ) -> object:
        if self._setting.has_trainer:
            return original(accelerator, loader, *args, **kwargs)
        self._setting.prepares_trained = self._is_trained_on()
        if self._setting.prepares_trained:
            # BatchSamplerShard reads the batch of the sampler when it is made: set it before.
            self._divide_loader(accelerator, loader)
            self._setting.tell()
        alone = self._setting.force.other_ranks and self._setting.force.world_size == 1
        if alone and not getattr(accelerator, "use_seedable_sampler", False):
            seed_as_several(getattr(loader, "sampler", None))
            self._setting.note("loop", "the order of its samples")
        prepared = original(accelerator, loader, *args, **kwargs)
        if self._setting.prepares_trained:
            self._divided.append(prepared)
        self._setting.prepares_trained = False
        return prepared

    def _begin_pass(self, original: Original, loader: object) -> object:
        """Training begins with the first batch: a loss may ask for the number of ranks."""
        if any(loader is divided for divided in self._divided):
            self._setting.trains = True
        return original(loader)

    def _backward(
        self, original: Original, accelerator: Accelerator, *args: object, **kwargs: object
    ) -> object:
        if not self._setting.has_trainer:
            self._setting.trains = True
            self._refuse_other_loader(accelerator)
        return original(accelerator, *args, **kwargs)

    def _prepare_optimizer(
        self,
        original: Original,
        accelerator: Accelerator,
        optimizer: Optimizer,
        *args: object,
        **kwargs: object,
    ) -> object:
        if not self._setting.has_trainer:
            self._set_adamw(optimizer)
        return original(accelerator, optimizer, *args, **kwargs)

    def _refuse_other_loader(self, accelerator: Accelerator) -> None:
        """The batch that is trained on must be one of the loader that was divided."""
        trained = accelerator.gradient_state.active_dataloader
        is_divided = any(trained is divided for divided in self._divided)
        if self._setting.force.other_ranks and trained is not None and not is_divided:
            self._setting.refuse(
                "the script trains on another data loader than the one whose batch was divided "
                f"over the ranks (number {self._setting.force.loader} in the order of accelerate)"
            )

    def _divide_loader(self, accelerator: Accelerator, loader: object) -> None:
        """Set the batch of the loader that is trained on; with ``split_batches`` ranks share it."""
        sampler = getattr(loader, "batch_sampler", None)
        script_batch = getattr(sampler, "batch_size", None)
        if not isinstance(script_batch, int):
            if self._setting.force.world_size > 1:
                self._setting.refuse(
                    "the batch of the script's data loader cannot be seen, nor divided"
                )
            return
        shared = getattr(accelerator, "split_batches", False)
        wanted = self._setting.force.accumulation or accelerator.gradient_accumulation_steps
        shared_by = self._setting.force.world_size if shared else 1
        try:
            each = script_batch // self._setting.force.typed_ranks if shared else script_batch
            batch, accumulation = self._setting.force.batch(each, wanted)
        except ValueError as error:
            self._setting.refuse(str(error))
        if accumulation != wanted:
            self._setting.refuse(
                f"{batch * accumulation} samples of a rank cannot be cut into the script's "
                f"{wanted} accumulation steps"
            )
        if batch * shared_by != script_batch:
            self._setting.note("loop", "batch")
            sampler.batch_size = batch * shared_by  # type: ignore[union-attr]
            # accelerate makes the loader of a stream anew, from what is no longer to be set.
            loader.__dict__["batch_size"] = batch * shared_by
            self._setting.changes["batch"] = (
                f"batch of the data loader={batch * shared_by} (was {script_batch})"
            )

    def _set_adamw(self, optimizer: Optimizer) -> None:
        """Each parameter group of torch's AdamW says itself how it steps."""
        kind = self._setting.force.arguments.get("optim")
        if kind is None or type(optimizer).__name__ != "AdamW":
            return
        fused = kind == "adamw_torch_fused"
        if any(bool(group.get("fused")) != fused for group in optimizer.param_groups):
            self._setting.changes["fused"] = f"AdamW fused={fused}"
            self._setting.note("loop", "fused")
        for group in optimizer.param_groups:
            group.update(fused=fused, foreach=False)
