"""Sets hooks in the training frameworks when the script imports them, or at once in a forked
rank.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from cputune.inside import CHILD_VARIABLE, FORCE_VARIABLE, site_directory
from cputune.inside.applying.ending import run_together
from cputune.inside.applying.force import Force
from cputune.inside.applying.hooking import Hook, Original, nothing, set_hooks
from cputune.inside.applying.parts import made, the_parts
from cputune.inside.applying.run_script import hooks_of
from cputune.inside.lightning import Fitting
from cputune.inside.loops import Loops
from cputune.inside.messages import OF_LAUNCHERS, Speaker
from cputune.inside.meter import Meter
from cputune.inside.stacks import write_stack_on_signal

# Names of the folder that scripts write to; argparse gets another one.
OUTPUT_NAMES = ("output_dir", "logging_dir", "project_dir", "save_dir")

# Characters of an error; more than is shown, so that it is cleaned before it is cut.
MOST_WORDS = 8000

# Pads every sample to the longest possible length in scripts of transformers.
PADS = "pad_to_max_length"

# Names of the length of the training, and of the passes over the data.
LENGTH = {
    **dict.fromkeys(("max_train_steps", "max_steps"), "steps_to_end"),
    **dict.fromkeys(("num_train_epochs", "num_epochs", "epochs"), "epochs"),
}

# Keeps trackers from reporting trials as runs of the user, and ``__pycache__`` out of folders.
#
# COMET_AUTO_LOG_DISABLE disables comet_ml's experiments (``comet_ml/experiment.py``).
SILENT = {
    "WANDB_MODE": "disabled",
    "WANDB_DISABLED": "true",
    "COMET_AUTO_LOG_DISABLE": "1",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "NEPTUNE_MODE": "debug",
    "SWANLAB_MODE": "disabled",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "CODECARBON_LOG_LEVEL": "error",
    "PYTHONDONTWRITEBYTECODE": "1",
}

# Folders below the scratch folder for what would be written to the working folder.
ELSEWHERE = {
    "WANDB_DIR": "output",
    "MLFLOW_TRACKING_URI": "output/mlruns",
    "COMET_OFFLINE_DIRECTORY": "output",
    "CODECARBON_OUTPUT_DIR": "output",
    "NUMBA_CACHE_DIR": "../prepared",
}


class Places(Protocol):
    """The folder of a trial, and what a script would write goes to in it."""

    scratch: str
    output: str


def install() -> Meter:
    """Set every hook in this process. Nothing is reported before the script trains."""
    meter = Meter(Speaker())
    force = os.environ.get(FORCE_VARIABLE)
    os.environ.update(SILENT)
    for name, part in ELSEWHERE.items():
        os.environ[name] = os.path.join(meter.scratch, part)
    sys.dont_write_bytecode = True
    write_stack_on_signal(meter.scratch)
    meter.facts["ipex"] = False
    applied: list[Hook] = []
    if force:
        applied = hooks_of(made(Force(**json.loads(force)), meter.refuse))
        cutter = the_parts().get("padding")
        if cutter is not None:
            cutter.on_asked = meter.resume
            meter.shortened = cutter.shortened
    set_hooks(
        [
            *applied,
            ("argparse", "ArgumentParser.parse_known_args", partial(_read_arguments, meter)),
            *Fitting(meter).hooks(),
            *Loops(meter).hooks(),
            *led_elsewhere(meter),
            *meter.hooks(),
            ("torch._dynamo.callback", "", partial(_leave_compiling_out, meter)),
            ("intel_extension_for_pytorch", "optimize", partial(_note_ipex, meter)),
        ]
    )
    return meter


def _read_arguments(meter: Meter, original: Any, *args: object, **kwargs: object) -> object:
    """Note the script's arguments, and replace its output folder."""
    namespace, rest = original(*args, **kwargs)
    meter.flags.update(vars(namespace))
    for name, key in LENGTH.items():
        value = getattr(namespace, name, None)
        if isinstance(value, (int, float)) and value > 0:
            meter.facts[key] = value  # type: ignore[literal-required]
    if getattr(namespace, PADS, None) is True:
        typed = any(word == f"--{PADS}" for word in sys.argv)
        meter.facts["padding_mend"] = f"without --{PADS}" if typed else f"--{PADS} False"
    for name in OUTPUT_NAMES:
        if isinstance(given := getattr(namespace, name, None), (str, os.PathLike)):
            elsewhere = meter.output if isinstance(given, str) else Path(meter.output)
            setattr(namespace, name, elsewhere)
    if getattr(namespace, "push_to_hub", None) is True:
        vars(namespace)["push_to_hub"] = False
    return namespace, rest


def led_elsewhere(meter: Places) -> list[Hook]:
    """Hooks in libraries that write files by themselves."""

    def tensorboard(
        original: Any, writer: Any, log_dir: Any = None, *args: object, **given: object
    ) -> None:
        given.pop("logdir", None)  # the older name of tensorboardX
        original(writer, meter.output, *args, **given)

    def wandb(original: Any, *args: object, **kwargs: object) -> Any:
        return original(*args, **{**kwargs, "mode": "disabled"})

    def cache_file(original: Any, data: Any, fingerprint: str) -> str:
        """Keep prepared data next to the user's (``load_from_disk``), for all trials."""
        path = str(original(data, fingerprint))
        kept = sys.modules["datasets.config"].HF_DATASETS_CACHE
        if os.path.exists(path) or path.startswith(str(kept)):
            return path
        prepared = os.path.join(os.path.dirname(meter.scratch), "prepared")
        os.makedirs(prepared, exist_ok=True)
        return os.path.join(prepared, os.path.basename(path))

    def hydra(key: str, original: Any, *args: object, overrides: Any, **kwargs: object) -> Any:
        return original(*args, overrides=[*overrides, f"{key}='{meter.output}'"], **kwargs)

    return [
        ("hydra._internal.hydra", "Hydra.run", partial(hydra, "hydra.run.dir")),
        ("hydra._internal.hydra", "Hydra.multirun", partial(hydra, "hydra.sweep.dir")),
        ("torch.utils.tensorboard.writer", "SummaryWriter.__init__", tensorboard),
        ("tensorboardX.writer", "SummaryWriter.__init__", tensorboard),
        ("wandb", "init", wandb),
        ("mlflow", "set_tracking_uri", nothing),
        ("datasets.arrow_dataset", "Dataset._get_cache_file_path", cache_file),
    ]


def _leave_compiling_out(meter: Meter, module: ModuleType) -> None:
    """Take the time of torch.compile out of a step, if the script uses it."""
    began: list[float] = []

    def end(*_: object) -> None:
        since = began.pop()
        if not began:
            meter.resume(since)
            meter.forget_delays()

    module.on_compile_start(lambda *_: began.append(time.perf_counter()))
    module.on_compile_end(end)


def _note_ipex(meter: Meter, original: Original, *args: object, **kwargs: object) -> object:
    meter.facts["ipex"] = True
    return original(*args, **kwargs)


def tell_what_is_raised(meter: Meter) -> None:
    """In a process of a launcher: report the exception that ends it, if torch is loaded.

    The launcher itself has no torch, and ends because its rank did.
    """
    original = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if "torch" in sys.modules and kind.__name__ not in OF_LAUNCHERS:
            _tell_error(meter, kind.__name__, str(error))
        original(kind, error, trace)

    sys.excepthook = excepthook


def _tell_error(meter: Meter, kind: str, text: str) -> None:
    meter.speaker.say({"event": "error", "kind": kind, "text": text[:MOST_WORDS]})


def watch_children() -> None:
    """Let every Python below this process know that a rank has started it."""
    others = os.environ.get("PYTHONPATH")
    site = str(site_directory())
    os.environ["PYTHONPATH"] = f"{site}:{others}" if others else site
    os.environ[CHILD_VARIABLE] = str(os.getpid())


def run_script(argv: list[str]) -> int:
    """Run ``argv[0]`` as ``__main__`` with the rest as its arguments; returns its exit status.

    An exception is reported with its name, and its traceback goes to stderr.
    """
    meter = install()
    watch_children()
    meter.speaker.say({"event": "note", "text": "started"})
    try:
        run_together(argv)
    except SystemExit as exit_:
        status = _status(exit_.code)
        if status:
            if isinstance(exit_.code, str):
                text = exit_.code
            else:
                text = f"exit status {status}"
            _tell_error(meter, "SystemExit", text)
            return status
    except KeyboardInterrupt:
        return 130
    except BaseException as error:  # reported, then raised as the script's own
        _tell_error(meter, type(error).__name__, str(error))
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_globals.get("__name__") != "__main__":
            trace = trace.tb_next  # without frames of cputune and runpy
        traceback.print_exception(type(error), error, trace)
        return 1
    meter.end()
    return 0


def _status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1
