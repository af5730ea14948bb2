"""Draws the masks of dropout from random bytes, on all threads."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cputune.inside.applying.hooking import Hook

if TYPE_CHECKING:
    from torch import Generator, Tensor


_ODD, _FIRST, _SECOND = (
    factor - (1 << 64) for factor in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
"""The constants of SplitMix64 as torch's signed numbers (Steele, Lea and Flood 2014, "Fast
splittable pseudorandom number generators"; the mixer is Stafford's thirteenth)."""

_BITS = (16, 32)
"""Bits of a word, of which a number of 64 bits has several: a share is a multiple of 1/65,536
or, if that is too coarse, of 2^-32.
"""

EXACT = 1e-4
"""The relative error of the share that is dropped and of the share that is kept: the rounding of
dropout's own scale in bf16 is 40 times as much.
"""


def bits_for(p: float) -> int | None:
    """The bits of the words that draw this share exactly enough; None if torch has to."""
    for bits in _BITS:
        drawn = round(p * (1 << bits)) / (1 << bits)
        if abs(drawn - p) <= EXACT * min(p, 1.0 - p):
            return bits
    return None


class Masks:
    """Draws ``Tensor.bernoulli_(p)``, of which dropout is made, from random bytes on all threads.

    torch draws it on one thread, unless the processor is Intel's
    (aten/src/ATen/native/cpu/DistributionKernels.cpp, bernoulli_scalar_kernel). One number of the
    generator seeds a mask, and SplitMix64 makes the rest in whole tensors. So a seed gives other
    masks than torch's, but always the same, also with checkpointing. Shares near 0 and 1, and
    tensors of integers or flags, are left to torch. ``drawn`` counts the masks.
    """

    name = "dropout"

    def __init__(self, say: Callable[[str], None] = lambda text: None) -> None:
        self.drawn = 0
        self._say = say

    def hooks(self) -> list[Hook]:
        """Torch itself."""
        return [("torch", "", self.replace)]

    def report(self) -> dict[str, str]:
        """What a rank shows."""
        return {"dropout": "bytes"} if self.drawn else {}

    def replace(self, torch: Any) -> None:
        """Replace torch's kernel on CPUs, until the process ends."""
        self._torch = torch
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says that a kernel is replaced
            self._library = torch.library.Library("aten", "IMPL")  # it holds as long as this lives
            self._library.impl("bernoulli_.float", self._fill, "CPU")
        self._say(
            "set for the plan: dropout masks are drawn from random bytes, on all threads: "
            "others than torch's for the same seed"
        )

    def _fill(self, mask: Tensor, p: float = 0.5, *, generator: Generator | None = None) -> Tensor:
        if not 0.0 <= p <= 1.0:
            raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={p}")
        if p in (0.0, 1.0):
            return mask.fill_(p)
        bits = bits_for(p)
        if bits is None or not mask.is_floating_point():
            # This overload, whose share is a tensor, is still torch's own.
            share = self._torch.tensor(p, dtype=self._torch.float64)
            return mask.bernoulli_(share, generator=generator)
        self.drawn += 1
        level = round(p * (1 << bits)) - (1 << (bits - 1))
        count = mask.numel()
        random_words = self._random(-(-count * bits // 64), generator)
        drawn = random_words.view(self._torch.int16 if bits == 16 else self._torch.int32)
        return mask.copy_((drawn[:count] < level).view(mask.shape))

    def _random(self, count: int, generator: object) -> Tensor:
        """Random numbers of 64 bits. Right shifts keep the sign, so it is masked off."""
        torch = self._torch
        seed = torch.empty((), dtype=torch.int64).random_(-(1 << 63), None, generator=generator)
        state = torch.arange(1, count + 1).mul_(_ODD).add_(seed)
        shifted = torch.empty_like(state)
        for shift, factor in ((30, _FIRST), (27, _SECOND), (31, 1)):
            torch.bitwise_right_shift(state, shift, out=shifted)
            state.bitwise_xor_(shifted.bitwise_and_((1 << (64 - shift)) - 1))
            if factor != 1:
                state.mul_(factor)
        return state
