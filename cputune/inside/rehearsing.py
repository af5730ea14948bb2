"""Shortens a script so that all of it runs: a few steps, its evaluation, its saving, its end.

``REHEARSE_VARIABLE`` names the folder of the launch; the process runs in a copy of it. A pass over
training data ends after ``STEPS`` steps (more of a fast script: ``STEPS_VARIABLE``), one over other
data after ``BATCHES`` batches of all ranks together; a Trainer is given ``max_steps``. Dropout is
off, and unseeded scripts are seeded, so that two rehearsals can be compared.

What the script writes goes to the copy, also with absolute paths in its arguments and in
``torch.save`` and safetensors. Any other file outside the copy cannot be written, renamed or
removed: the script gets a PermissionError.
"""

from __future__ import annotations

import dis
import errno
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from cputune.inside import (
    NUDGE_VARIABLE,
    REHEARSE_VARIABLE,
    SCRATCH_VARIABLE,
    STEPS_VARIABLE,
)
from cputune.inside.applying.hooking import Hook, Original, nothing, set_hooks
from cputune.inside.first_steps import DROPOUTS
from cputune.inside.hooks import ELSEWHERE, LENGTH, OUTPUT_NAMES, SILENT, led_elsewhere
from cputune.inside.messages import RANK_NAMES, number_from
from cputune.inside.trained_weights import TrainedWeights

# Of a pass over training data, and over other data: 1, 2, 3, 4, 6, 8, 12 and 24 ranks then take
# the same samples.
STEPS, BATCHES = 2, 24

# After as many steps as so many passes have, a pass over training data has one step.
SHORTER_AFTER = 6

# Over the training data, if their number is an argument of the script.
PASSES = 2

# Modules between a script and the batches of its loader.
LOADERS = ("torch.", "accelerate.", "cputune.")

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CACHES = ("HF_HOME", "HF_DATASETS_CACHE", "TORCH_HOME", "XDG_CACHE_HOME", "MPLCONFIGDIR")
# Audit events of Python that change files, and how many of their arguments are paths.
EVENTS = {
    "os.mkdir": 1,
    "os.remove": 1,
    "os.rmdir": 1,
    "os.truncate": 1,
    "os.rename": 2,
    "shutil.rmtree": 1,
}


class Rehearsal:
    """One in each process of a launch that is rehearsed."""

    def __init__(self, typed_folder: str, scratch: str) -> None:
        self._typed_folder = os.path.realpath(typed_folder)
        self._folder = os.path.realpath(os.getcwd())
        self._scratch = os.path.realpath(scratch)
        # Found out before files are looked at: tempfile opens one to try its folder.
        free = [scratch, "/dev", "/proc", tempfile.gettempdir()]
        free += [os.environ[name] for name in CACHES if os.environ.get(name)]
        self._free = [os.path.realpath(folder) for folder in free]
        self._steps = self._backwards = self._in_trainer = 0
        self._by_hand = True
        self._each = int(os.environ.get(STEPS_VARIABLE, STEPS))
        self._seed = number_from(RANK_NAMES)
        nudged = NUDGE_VARIABLE in os.environ
        self._weights = TrainedWeights(self._scratch, self._seed, nudged=nudged)

    def hooks(self) -> list[Hook]:
        """The functions that read lengths, load batches, take steps and write files."""
        random.seed(self._seed)
        elsewhere = SimpleNamespace(
            output=os.path.join(self._scratch, "output"), scratch=self._scratch
        )
        trainer, hub = "transformers.trainer", "huggingface_hub.hf_api"
        return [
            ("argparse", "ArgumentParser.parse_known_args", self._read_arguments),
            ("transformers.training_args", "TrainingArguments.__post_init__", self._post_init),
            (trainer, "Trainer.__init__", self._has_trainer),
            (trainer, "Trainer.train", self._train),
            ("torch.utils.data.dataloader", "DataLoader.__iter__", self._iterate),
            ("torch.utils.data.dataloader", "DataLoader.__len__", self._length),
            ("torch._tensor", "Tensor.backward", self._backward),
            ("torch.optim.optimizer", "", self._watch_optimizers),
            ("torch", "", self._begin_torch),
            ("numpy", "", self._begin_numpy),
            *(("torch.nn.functional", name, self._dropout) for name in DROPOUTS),
            ("torch.nn.functional", "scaled_dot_product_attention", self._attend),
            ("torch", "save", self._save),
            ("safetensors.torch", "save_file", self._save),
            *((trainer, f"Trainer.{name}", nothing) for name in ("push_to_hub", "init_hf_repo")),
            ("transformers.utils.hub", "PushToHubMixin.push_to_hub", nothing),
            *((hub, f"HfApi.{name}", nothing) for name in ("create_commit", "upload_folder")),
            *self._weights.hooks(),
            *led_elsewhere(elsewhere),
        ]

    # What it draws

    def _begin_torch(self, torch: Any) -> None:
        torch.manual_seed(self._seed)

    def _begin_numpy(self, numpy: Any) -> None:
        numpy.random.seed(self._seed)

    def _dropout(
        self,
        original: Original,
        input: object,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> object:
        return original(input, p, False, inplace)

    def _attend(
        self,
        original: Original,
        query: object,
        key: object,
        value: object,
        attn_mask: object = None,
        dropout_p: float = 0.0,
        *args: object,
        **kwargs: object,
    ) -> object:
        return original(query, key, value, attn_mask, 0.0, *args, **kwargs)

    # How long it is

    def _read_arguments(self, original: Original, *args: object, **kwargs: object) -> object:
        parsed: tuple[Any, Any] = original(*args, **kwargs)  # type: ignore[assignment]
        namespace, rest = parsed
        for name, key in LENGTH.items():
            value = getattr(namespace, name, None)
            if key == "epochs":
                most = PASSES
            else:
                most = PASSES * self._each
            if isinstance(value, (int, float)) and value > most:
                setattr(namespace, name, type(value)(most))
        for name in OUTPUT_NAMES:
            value = getattr(namespace, name, None)
            if isinstance(value, (str, os.PathLike)):
                setattr(namespace, name, self.moved(value))
        if getattr(namespace, "push_to_hub", None) is True:
            vars(namespace)["push_to_hub"] = False
        return namespace, rest

    def _post_init(self, original: Original, args: Any) -> None:
        most = PASSES * self._each
        args.max_steps = min(args.max_steps, most) if args.max_steps > 0 else most
        for name in ("eval_steps", "save_steps", "logging_steps"):
            value = getattr(args, name, None)
            if value is not None and value > self._each:
                setattr(args, name, self._each)
        args.push_to_hub, args.report_to, args.disable_tqdm = False, "none", True
        for name in ("output_dir", "logging_dir"):
            if getattr(args, name, None):
                setattr(args, name, self.moved(getattr(args, name)))
        original(args)

    def _has_trainer(self, original: Original, *args: object, **kwargs: object) -> object:
        self._by_hand = False
        return original(*args, **kwargs)

    def _train(self, original: Original, *args: object, **kwargs: object) -> object:
        self._in_trainer += 1
        try:
            return original(*args, **kwargs)
        finally:
            self._in_trainer -= 1

    def _backward(self, original: Original, *args: object, **kwargs: object) -> object:
        self._backwards += 1
        return original(*args, **kwargs)

    def _watch_optimizers(self, module: Any) -> None:
        def stepped(*_: object) -> None:
            self._steps += 1
            self._weights.stepped()

        module.register_optimizer_step_post_hook(stepped)

    def _iterate(self, original: Callable[..., Iterator[object]], loader: object) -> Iterator[Any]:
        """The batches of a pass. Ranks step together, so they cut their passes alike."""
        steps, backwards = self._steps, self._backwards
        if steps >= SHORTER_AFTER * self._each:
            most = 1
        else:
            most = self._each
        batches = max(1, BATCHES // sharers_of(loader))
        for given, batch in enumerate(original(loader)):
            trains = self._backwards > backwards
            is_enough = trains and not self._in_trainer and self._steps - steps >= most
            if is_enough and (given >= BATCHES or not takes_by_number()):
                return
            if not trains and given >= batches:
                return
            yield batch

    def _length(self, original: Callable[[object], int], loader: object) -> int:
        """How many batches a loop may take with ``next``; a Trainer ends by its steps."""
        return min(original(loader), BATCHES) if self._by_hand else original(loader)

    # What it writes

    def moved(self, path: Any) -> Any:
        """An absolute path outside the copy, within the copy or next to it; others unchanged."""
        text = os.fspath(path)
        if not isinstance(text, str) or not os.path.isabs(text) or self._may_change(text):
            return path
        real = os.path.realpath(text)
        if real.startswith(self._typed_folder + os.sep):
            place = self._folder + real[len(self._typed_folder) :]
        else:
            place = os.path.join(self._scratch, "elsewhere") + real
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if isinstance(path, str):
            return place
        return type(path)(place)

    def _save(
        self, original: Original, content: object, f: object, *args: object, **kwargs: object
    ) -> object:
        """``torch.save(obj, f)`` and ``safetensors.torch.save_file(tensors, filename)``."""
        if isinstance(f, (str, os.PathLike)):
            f = self.moved(f)
            if os.path.islink(f):  # type: ignore[arg-type]
                os.unlink(f)  # type: ignore[arg-type]
        return original(content, f, *args, **kwargs)

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Refuse to change files outside the copy (``sys.addaudithook``)."""
        if event == "open":
            path, mode, flags = arguments
            if isinstance(mode, str):
                writes = any(sign in mode for sign in "wax+")
            else:
                writes = isinstance(flags, int) and bool(flags & WRITES)
            if writes:
                self._refuse_outside(path)
        elif event in EVENTS:
            for path in arguments[: EVENTS[event]]:
                self._refuse_outside(path)

    def _refuse_outside(self, path: Any) -> None:
        if isinstance(path, (str, bytes, os.PathLike)) and not self._may_change(path):
            reason = "a rehearsal writes to a copy of its folder alone"
            raise PermissionError(errno.EACCES, reason, os.fsdecode(path))

    def _may_change(self, path: Any) -> bool:
        real = os.path.realpath(os.fsdecode(path))
        if real.startswith(self._typed_folder + os.sep) and not real.startswith(self._scratch):
            return False
        if any(part.startswith((".cache", ".config", "__pycache__")) for part in real.split("/")):
            return True
        return any(real == folder or real.startswith(folder + os.sep) for folder in self._free)


def takes_by_number() -> bool:
    """Whether the script takes a batch with ``next`` now, and not in a ``for`` statement.

    It may count its batches then, and would fail at the end of a shortened pass.
    """
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(LOADERS):
        frame = frame.f_back
    return dis.opname[frame.f_code.co_code[frame.f_lasti]] != "FOR_ITER"


def sharers_of(loader: Any) -> int:
    """Among how many ranks the batches of a loader are divided; 1: each has all of them."""
    collate = getattr(loader, "collate_fn", None)
    if getattr(collate, "by_rank", False):  # of applying.dispatch
        return int(collate.ranks)  # type: ignore[union-attr]
    for part in ("batch_sampler", "sampler", "dataset"):
        held = getattr(loader, part, None)
        if getattr(held, "split_batches", False):
            continue
        for name in ("num_processes", "num_replicas"):
            count = getattr(held, name, None)
            if isinstance(count, int) and count > 1:
                return count
    return 1


def install() -> None:
    """Set the hooks of a rehearsal in this process."""
    scratch = os.environ[SCRATCH_VARIABLE]
    os.environ.update(SILENT)
    for name, part in ELSEWHERE.items():
        os.environ[name] = os.path.join(scratch, part)
    sys.dont_write_bytecode = True
    rehearsal = Rehearsal(os.environ[REHEARSE_VARIABLE], scratch)
    set_hooks(rehearsal.hooks())
    sys.addaudithook(rehearsal.audit)
