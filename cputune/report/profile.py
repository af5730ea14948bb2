"""Where the time of the best plan goes, in two or three lines."""

from __future__ import annotations

from collections.abc import Iterator

from cputune.figures import figure
from cputune.result import Profile, Result

LEAST_SHARE = 0.005
"""A kind that takes less is not worth a word."""

WORTH_A_HINT = 0.05

HINTS = {"dropout masks": ("dropout", "draws the masks on all threads")}
"""By what the time is spent on: the knob that is for it, and what that does."""

WORDS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def profile_lines(result: Result) -> tuple[str, ...]:
    """What its time is spent on, how far its products are from the limit, and what would help."""
    profile = result.profile
    if profile is None:
        return ()
    shares = ", ".join(
        f"{kind} {100 * share:.0f} %"
        for kind, share in profile.shares.items()
        if share >= LEAST_SHARE
    )
    return (f"where its time goes: {shares}", *_limit(profile), *_hints(result, profile))


def _limit(profile: Profile) -> Iterator[str]:
    if profile.gflops is None:
        yield "how far its matrix products are from the limit is not known: IPEX tells none"
    elif profile.limit_gflops:
        yield (
            f"its matrix products: {figure(profile.gflops)} GFLOP/s over the whole step, "
            f"{100 * profile.gflops / profile.limit_gflops:.0f} % of the "
            f"{figure(profile.limit_gflops)} that its cores reach in "
            f"{WORDS.get(profile.dtype or '', profile.dtype)}"
        )


def _hints(result: Result, profile: Profile) -> Iterator[str]:
    """The knobs that nobody has asked for, where they could matter."""
    could_be = {out.what for out in result.left_out}
    for kind, (knob, does) in HINTS.items():
        if profile.shares.get(kind, 0.0) >= WORTH_A_HINT and knob in could_be:
            yield f"--knobs +{knob} {does} (docs/knobs.md)"
