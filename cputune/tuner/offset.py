"""What another machine of the same kind has measured, as it would be here.

Machines of one kind still differ by some percent, and stay so: their place in the rack, their
memory, their neighbours. So a speed is taken as a ratio to that of today's launch on the same
machine. What a machine wanders by between two trials is left in, as in one's own trials; the
confirmation, which every tuner makes on its own machine, decides.
"""

from __future__ import annotations

import math
from dataclasses import replace

from cputune.result import Throughput, Trial
from cputune.tuner.book import Heard
from cputune.tuner.race import WANDER
from cputune.tuner.reading import Run
from cputune.tuner.statistics import Z95


def as_here(trial: Trial, run: Run, *, there: Throughput | None, here: Throughput | None) -> Heard:
    """A trial of another machine, scaled by the speed of today's launch ``there`` and ``here``.

    Where one of the two is not known it is taken as it is, as far from sure as a machine wanders.
    """
    if there is None or here is None:
        return Heard(trial=replace(trial, elsewhere=True), run=run, error=WANDER)
    factor = here.median / there.median
    rate, most = trial.samples_per_second, trial.at_most_samples_per_second
    scaled = replace(
        trial,
        elsewhere=True,
        samples_per_second=None if rate is None else _times(rate, factor),
        at_most_samples_per_second=None if most is None else most * factor,
    )
    shifted = replace(run, logs=[value - math.log(factor) for value in run.logs])
    return Heard(trial=scaled, run=shifted, error=math.hypot(_error(there), _error(here)))


def _times(rate: Throughput, factor: float) -> Throughput:
    return Throughput(median=rate.median * factor, low=rate.low * factor, high=rate.high * factor)


def _error(rate: Throughput) -> float:
    """Standard error of the logarithm, from the 95 % interval."""
    return math.log(rate.high / rate.low) / (2 * Z95) if rate.low > 0 else WANDER
