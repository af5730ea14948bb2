"""Draws the masks of dropout from random bytes, on all threads, and attention's among them."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cputune.inside.applying.attention import Attention
from cputune.inside.applying.hooking import Hook, Original

if TYPE_CHECKING:
    from torch import Generator, Tensor


# The constants of SplitMix64 as torch's signed numbers (Steele, Lea and Flood 2014, "Fast
# splittable pseudorandom number generators"; the mixer is Stafford's thirteenth).
_ODD, _FIRST, _SECOND = (
    factor - (1 << 64) for factor in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)

# Bits of a word, of which a number of 64 bits has several: a share is a multiple of 1/65,536
# or, if that is too coarse, of 2^-32.
_BITS = (16, 32)

# Numbers of 64 bits that a thread makes at once: 512 KiB, and as much to compute with. Parts of a
# quarter of that size took 1.7 times as long on two Zen 4 cores, of twice that size 0.98 times.
WORDS_OF_A_THREAD = 1 << 16

# The relative error of the share that is dropped and of the share that is kept: the rounding of
# dropout's own scale in bf16 is 40 times as much.
EXACT = 1e-4


def bits_for(p: float) -> int | None:
    """The bits of the words that draw this share exactly enough; None if torch has to."""
    for bits in _BITS:
        drawn = round(p * (1 << bits)) / (1 << bits)
        if abs(drawn - p) <= EXACT * min(p, 1.0 - p):
            return bits
    return None


class RandomBytes:
    """Draws masks on all threads, where torch draws them on one.

    One number of the generator seeds a mask, and SplitMix64 makes the rest in whole tensors. So a
    seed gives other masks than torch's, but always the same, also with checkpointing. ``drawn``
    counts the masks.
    """

    def __init__(self, torch: Any) -> None:
        self.drawn = 0
        self._torch = torch
        at_once = WORDS_OF_A_THREAD * torch.get_num_threads()
        self._sequence = torch.arange(1, at_once + 1).mul_(_ODD)
        self._scratch = threading.local()

    def fill(self, mask: Tensor, p: float, generator: Generator | None = None) -> Tensor:
        """Fill a tensor of floating-point numbers: 1 with probability p, else 0."""
        return mask.copy_(self.kept(mask.numel(), p, generator).view(mask.shape))

    def kept(self, count: int, p: float, generator: Generator | None = None) -> Tensor:
        """``count`` whole numbers, each of which is 1 with probability p, else 0."""
        self.drawn += 1
        bits = bits_for(p)
        assert bits is not None
        level = round(p * (1 << bits)) - (1 << (bits - 1))
        words = self._words(-(-count * bits // 64), generator)
        # In place: of comparisons only those that write numbers of this type are vectorized.
        return words.view(getattr(self._torch, f"int{bits}"))[:count].lt_(level)

    def _words(self, count: int, generator: Generator | None) -> Tensor:
        """Random numbers of 64 bits: SplitMix64 in parts that stay in the cores' caches.

        Right shifts keep the sign, so it is masked off.
        """
        torch = self._torch
        words: Tensor = torch.empty(count, dtype=torch.int64)
        drawn = torch.empty((), dtype=torch.int64).random_(-(1 << 63), None, generator=generator)
        seed = int(drawn)
        if not hasattr(self._scratch, "words"):
            self._scratch.words = torch.empty_like(self._sequence)
        for part in words.split(len(self._sequence)):
            shifted = self._scratch.words[: len(part)]
            torch.add(self._sequence[: len(part)], _signed(seed), out=part)
            for shift, factor in ((30, _FIRST), (27, _SECOND), (31, 1)):
                torch.bitwise_right_shift(part, shift, out=shifted)
                part.bitwise_xor_(shifted.bitwise_and_((1 << (64 - shift)) - 1))
                if factor != 1:
                    part.mul_(factor)
            seed += len(part) * _ODD
        return words


def _signed(number: int) -> int:
    """A number modulo 2^64, as torch's signed numbers of 64 bits have it."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


class Masks:
    """Draws ``Tensor.bernoulli_(p)``, of which dropout is made, from random bytes.

    So is the mask of attention, which is computed by ``Attention`` if its inputs fit. Shares near 0
    and 1, and tensors of integers or flags, are left to torch.
    """

    name = "dropout"

    def __init__(self, say: Callable[[str], None] = lambda text: None) -> None:
        self._say = say
        self._compiling: Callable[[], bool] = lambda: False
        self._bytes: RandomBytes | None = None

    @property
    def drawn(self) -> int:
        """How many masks were drawn so far."""
        if self._bytes is None:
            return 0
        return self._bytes.drawn

    def hooks(self) -> list[Hook]:
        """Torch itself, and its attention."""
        functional = "torch.nn.functional"
        return [
            ("torch", "", self.replace),
            (functional, "scaled_dot_product_attention", self._attend),
        ]

    def report(self) -> dict[str, str]:
        """What a rank shows."""
        return {"dropout": "bytes"} if self.drawn else {}

    def replace(self, torch: Any) -> None:
        """Replace torch's kernel on CPUs, until the process ends."""
        self._torch = torch
        self._bytes = RandomBytes(torch)
        self.attention = Attention(torch, self._bytes.kept)
        compiler = getattr(torch, "compiler", None)
        self._compiling = getattr(compiler, "is_compiling", self._compiling)
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
        if self._bytes is None or bits_for(p) is None or not mask.is_floating_point():
            # This overload, whose share is a tensor, is still torch's own.
            share = self._torch.tensor(p, dtype=self._torch.float64)
            return mask.bernoulli_(share, generator=generator)
        return self._bytes.fill(mask, p, generator)

    def _attend(
        self,
        original: Original,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> object:
        inputs = (query, key, value, attn_mask)
        draws = 0.0 < dropout_p < 1.0 and bits_for(1.0 - dropout_p) is not None and not args
        if draws and not self._compiling() and self.attention.fits(*inputs, is_causal):
            return self.attention.attend(*inputs, dropout_p, is_causal, kwargs.get("scale"))
        return original(*inputs, dropout_p, is_causal, *args, **kwargs)
