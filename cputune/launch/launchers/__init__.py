"""The launchers that are known, one module for each."""

from __future__ import annotations

from cputune.launch.launchers.accelerate import ACCELERATE
from cputune.launch.launchers.deepspeed import DEEPSPEED
from cputune.launch.launchers.ipexrun import IPEXRUN
from cputune.launch.launchers.mpirun import MPIRUN
from cputune.launch.launchers.python import PYTHON
from cputune.launch.launchers.run_cpu import RUN_CPU
from cputune.launch.launchers.torchrun import TORCHRUN
from cputune.launch.option import Launcher

# Launchers that end in a Python; ``srun`` starts another program.
LAUNCHERS: tuple[Launcher, ...] = (
    PYTHON,
    TORCHRUN,
    ACCELERATE,
    MPIRUN,
    DEEPSPEED,
    RUN_CPU,
    IPEXRUN,
)
BY_NAME = {launcher.name: launcher for launcher in LAUNCHERS}
BY_PROGRAM = {program: launcher.name for launcher in LAUNCHERS for program in launcher.programs}
BY_MODULE = {module: launcher.name for launcher in LAUNCHERS for module in launcher.modules}
