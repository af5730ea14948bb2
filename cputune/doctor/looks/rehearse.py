"""Rehearse a launch: run the script as each rank would, up to its data and its first step.

    python rehearse.py '{"script": "train.py", "module": false, "arguments": ["--bf16"], "ranks": 2,
                         "numbered": true, "seconds": 25, "offline": false}'

Starts the ranks on loopback, ends them after these seconds, and prints a line of JSON for each
report of a rank: {"rank": 0, "error": "TypeError", "said": …, "where": "file:line", "during": …},
or {"rank": 0, "stopped": "Trainer"}. ``numbered``: a single rank has a number too, as under
torchrun. In a rank:

- data sets are replaced by an empty one, models are built on the meta device,
- nothing is downloaded, and nothing is written except caches and a folder that is removed,
- the script is stopped before it builds its Trainer, takes a step, writes a file, starts another
  program, or connects to another machine,
- then a tiny model trains one step with the TrainingArguments or the Accelerator that the script
  built, so that transformers, accelerate and torch check them.
"""

import ast
import contextlib
import faulthandler
import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Callable
from multiprocessing import popen_forkserver, popen_spawn_posix
from typing import Any, NoReturn
from unittest import mock

AS_RANK = "--as-rank"
LOOPBACK = ("127.", "::1", "localhost")
STARTING = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.kill")
CREATING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Before the ranks are ended each writes where it is.
OWN_DEADLINE_SECONDS = 3


# Quarters of a second that a forked process is given for a sum.
LOOKS_AT_FORK = 12


class Stopped(BaseException):
    """The script has come as far as it may; ``except Exception`` in a script does not catch it."""


def send(**facts: object) -> None:
    """Print the result so far; it survives a crash."""
    os.write(1, (json.dumps({"rank": int(os.environ.get("RANK", 0)), **facts}) + "\n").encode())


def coordinate(task: dict[str, Any]) -> None:
    """Start the ranks, pass on their lines, and end them all in time."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks, seconds = task["ranks"], task["seconds"]
    children: list[subprocess.Popen[bytes]] = []
    for number in ENDING:
        signal.signal(number, leave)
    folder = tempfile.mkdtemp(prefix="cputune-rehearsal-")
    try:
        for rank in range(ranks):
            # A signal between the fork and the append would leave a rank running.
            signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
            children.append(start(task, rank, folder, port))
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        deadline = time.monotonic() + seconds + OWN_DEADLINE_SECONDS
        for child in children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.1, deadline - time.monotonic()))
    finally:
        for rank, child in enumerate(children):
            end(child, rank, seconds)
        shutil.rmtree(folder, ignore_errors=True)


def leave(number: int, frame: object) -> NoReturn:
    """End in order at the first signal; others follow while the folder is removed."""
    for other in ENDING:
        signal.signal(other, signal.SIG_IGN)
    sys.exit(128 + number)


def start(task: dict[str, Any], rank: int, folder: str, port: int) -> subprocess.Popen[bytes]:
    """Start a rank in its own process group, in this session: a signal to it ends all."""
    ranks = task["ranks"]
    several = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    return subprocess.Popen(
        [sys.executable, __file__, AS_RANK, json.dumps({**task, "folder": folder})],
        env={
            **os.environ,
            "TMPDIR": folder,
            **(several if ranks > 1 or task["numbered"] else {}),
        },
        stdin=subprocess.DEVNULL,
        preexec_fn=become_a_rank,
    )


def become_a_rank() -> None:
    os.setpgrp()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def end(child: subprocess.Popen[bytes], rank: int, seconds: float) -> None:
    """End all of a rank and what it has started; report a rank that was late, or was ended."""
    late = child.poll() is None
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    report: dict[str, Any] = {"rank": rank}
    if late:
        report["late"] = seconds
    elif child.returncode < 0:
        report["signal"] = -child.returncode
    else:
        return
    os.write(1, (json.dumps(report) + "\n").encode())


def place_of(error: BaseException) -> str:
    """File and line that raised, outside this module."""
    for at in reversed(traceback.extract_tb(error.__traceback__)):
        if at.filename != __file__ and not at.filename.startswith("<"):
            return f"{at.filename}:{at.lineno}"
    return ""


def failed(error: BaseException, during: str) -> None:
    """Report a failure with the message of the library that raised it."""
    message = " ".join(str(error).split())[:400]
    send(error=type(error).__name__, said=message, where=place_of(error), during=during)


class Rehearsal:
    """What a script built until it was stopped; ``faked``: whether it used replaced data."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.arguments: Any = None
        self.accelerator: Any = None
        self.faked = False
        self.reported = False
        self.stopped = ""
        self.threads = 0
        self.trying = False
        self.half = ""

    def stop(self, what: str) -> NoReturn:
        """End the script here."""
        self.stopped = self.stopped or what
        raise Stopped(what)

    def stopping(self, what: str) -> Callable[..., NoReturn]:
        """A function that stops the script when it is called."""
        return lambda *args, **kwargs: self.stop(what)

    def watched(self, original: Any, kind: str) -> Callable[..., None]:
        """A constructor whose errors are always reported: they come from the arguments."""

        def built(this: Any, *args: Any, **kwargs: Any) -> None:
            try:
                original(this, *args, **kwargs)
            except Exception as error:
                if not self.reported:
                    failed(error, kind)
                self.reported = True
                raise Stopped(kind) from error
            setattr(self, "arguments" if kind == "TrainingArguments" else "accelerator", this)

        return built

    def data(self, *args: Any, **kwargs: Any) -> mock.MagicMock:
        """A data set that accepts every call, and is empty."""
        self.faked = True
        rehearsal = self

        class Data(mock.MagicMock):
            def map(this, function: Any = None, *args: Any, **kwargs: Any) -> mock.MagicMock:  # noqa: N805
                if (kwargs.get("num_proc") or 1) > 1 and computes_with_torch(function):
                    rehearsal.forks()
                return Data(name="data")

        return Data(name="data")

    def weights_of(self, model: Any) -> None:
        """Report the type of the weights that are trained, if most of them have 16 bits."""
        import torch

        if not isinstance(model, torch.nn.Module):
            return
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        self.report_half([(weight.dtype, weight.numel()) for weight in trained])

    def report_half(self, sizes: list[tuple[Any, int]]) -> None:
        """Report the type of most of these numbers, if it has 16 bits."""
        of_type: dict[str, int] = {}
        for dtype, count in sizes:
            name = str(dtype).removeprefix("torch.")
            of_type[name] = of_type.get(name, 0) + count
        most = max(of_type, key=lambda name: of_type[name], default="")
        if most in ("bfloat16", "float16") and not self.half:
            self.half = most
            send(half=most)

    def forks(self) -> None:
        """If the script forks processes, try whether torch hangs in one."""
        if self.trying or native_threads() <= self.threads:
            return
        self.trying = True  # the audit hook reports this fork, too
        hangs = hangs_in_a_fork()
        self.trying = False
        if hangs:
            frames = traceback.extract_stack()
            places = [f"{at.filename}:{at.lineno}" for at in frames]
            script = os.path.realpath(sys.argv[0])
            of_script = []
            for place in places:
                if os.path.realpath(place).startswith(f"{script}:"):
                    of_script.append(place)
            send(forked=True, where=(of_script or places)[-1])

    def trainer(self, original: Any) -> Callable[..., None]:
        """Replaces a Trainer's constructor: Python binds the arguments, then we stop."""
        import inspect

        signature = inspect.signature(original)

        def built(this: Any, *args: Any, **kwargs: Any) -> None:
            try:
                bound = signature.bind(this, *args, **kwargs)
            except TypeError as error:
                failed(TypeError(f"{type(this).__name__}.__init__() {error}"), "Trainer")
                self.reported = True
            else:
                self.weights_of(bound.arguments.get("model"))
            self.stop("Trainer")

        return built


def native_threads() -> int:
    """Threads of this process that Python has not started: those of OpenMP and others."""
    try:
        return len(os.listdir("/proc/self/task")) - threading.active_count()
    except OSError:
        return 0


def hangs_in_a_fork() -> bool:
    """Whether a forked process waits for ever for a sum that takes a millisecond."""
    import torch

    child = os.fork()
    if child == 0:
        try:
            torch.ones(1 << 22).sum()
        finally:
            os._exit(0)
    # A child that is only slow runs, or waits for a disk. A deadlocked one sleeps.
    asleep = 0
    try:
        for _ in range(LOOKS_AT_FORK):
            time.sleep(0.25)
            if os.waitpid(child, os.WNOHANG)[0] == child:
                return False
            with open(f"/proc/{child}/stat", encoding="utf-8", errors="replace") as file:
                state = file.read().rpartition(")")[2].split()[0]
            if state == "S":
                asleep = asleep + 1
            else:
                asleep = 0
    except OSError:
        return False
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return asleep > LOOKS_AT_FORK / 2


def computes_with_torch(function: Any) -> bool:
    """Whether a function refers to torch, to a model or to a tensor."""
    import torch

    while hasattr(function, "func"):  # functools.partial
        function = function.func
    code = getattr(function, "__code__", None)
    if code is None:
        return False
    outer = getattr(function, "__globals__", {})
    values = [outer.get(name) for name in code.co_names]
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):
            values.append(cell.cell_contents)
    return any(
        value is torch or isinstance(value, (torch.nn.Module, torch.Tensor)) for value in values
    )


def is_written(event: str, given: tuple[Any, ...]) -> bool:
    """Whether this audit event changes a file or a folder."""
    if event != "open":
        return event in ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "shutil.rmtree")
    mode, flags = given[1], given[2]
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return isinstance(flags, int) and bool(flags & CREATING)


def by_the_script(project: str) -> bool:
    """Whether the script is the caller, directly or through the standard library."""
    frame: types.FrameType | None = sys._getframe(2)  # what called the audit hook
    while frame is not None:
        file = frame.f_code.co_filename
        if "site-packages" in file:
            return False
        if os.path.realpath(file).startswith(project):
            return True
        frame = frame.f_back
    return False


def guard(rehearsal: Rehearsal, project: str) -> None:
    """Stop the script before it writes anything but caches and its own temporary files, starts
    another program, or connects to another machine.
    """
    home = os.path.expanduser("~")
    # For a variable that is not set "/dev/" is listed again: an empty text would allow every path.
    allowed = (
        rehearsal.folder,
        "/dev/",
        "/proc/",
        "/sys/",
        f"{home}/.cache",
        os.environ.get("XDG_CACHE_HOME") or "/dev/",
        f"{home}/.triton",
        *(os.environ.get(name) or "/dev/" for name in ("HF_HOME", "HF_HUB_CACHE", "TORCH_HOME")),
        f"{sys.prefix}/",
        f"{sys.base_prefix}/",
    )

    def audit(event: str, given: tuple[Any, ...]) -> None:
        if event == "socket.connect" and isinstance(given[1], tuple):
            if not str(given[1][0]).startswith(LOOPBACK):
                rehearsal.stop(f"the network: {given[1][0]}")
        elif event in STARTING and by_the_script(project):
            if rehearsal.trying:
                return
            if event == "os.fork":
                rehearsal.forks()
            rehearsal.stop("another program")
        elif is_written(event, given) and isinstance(given[0], (str, bytes, os.PathLike)):
            path = os.path.abspath(os.fsdecode(given[0]))
            there = event == "os.mkdir" and os.path.isdir(path)
            if not there and not path.startswith(allowed):
                rehearsal.stop(f"a file: {path}")

    sys.addaudithook(audit)


# Libraries with parts that are replaced. Importing all of them takes longer than torch.
REPLACED = ("accelerate", "datasets", "transformers")


def libraries_of(script: str, *, module: bool) -> tuple[str, ...]:
    """The libraries of ``REPLACED`` that a script may import: all, unless its text rules some out.

    A script that imports nothing but the standard library, torch, numpy and these cannot import
    another one of them, unless it does so by name.
    """
    harmless = {*getattr(sys, "stdlib_module_names", ()), "torch", "numpy", *REPLACED}
    try:
        with open(script, encoding="utf-8") as file:
            nodes = list(ast.walk(ast.parse(file.read())))
    except (OSError, SyntaxError, ValueError):
        return REPLACED
    imported: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            imported.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module).partition(".")[0])
        elif isinstance(node, ast.Name) and node.id in ("__import__", "exec", "eval"):
            return REPLACED
    if module or not imported <= harmless or imported & {"importlib", "pkgutil", "runpy"}:
        return REPLACED
    if "transformers" in imported:  # its Trainer builds an Accelerator
        return REPLACED
    return tuple(name for name in REPLACED if name in imported)


def replace_parts(rehearsal: Rehearsal, libraries: tuple[str, ...]) -> None:
    """Replace what loads data and weights, builds trainers, and steps."""
    import torch

    for module in (popen_spawn_posix, popen_forkserver):  # which Python's audit does not report
        module.Popen._launch = rehearsal.stopping("another program")
    torch.Tensor.backward = rehearsal.stopping("the first step")
    torch.optim.Optimizer.step = rehearsal.stopping("the first step")
    add_group = torch.optim.Optimizer.add_param_group

    def noted(this: Any, group: Any) -> None:
        add_group(this, group)
        weights = this.param_groups[-1]["params"]
        rehearsal.report_half([(weight.dtype, weight.numel()) for weight in weights])

    torch.optim.Optimizer.add_param_group = noted
    if "datasets" in libraries:
        replace_datasets(rehearsal)
    if "accelerate" in libraries:
        replace_accelerator(rehearsal)
    if "transformers" in libraries:
        replace_trainer(rehearsal)


def replace_datasets(rehearsal: Rehearsal) -> None:
    """Replace what loads data."""
    with contextlib.suppress(ImportError):
        import datasets

        for name in ("load_dataset", "load_from_disk", "load_dataset_builder"):
            setattr(datasets, name, rehearsal.data)
        for name in ("from_csv", "from_json", "from_text", "from_parquet", "from_generator"):
            setattr(datasets.Dataset, name, rehearsal.data)


def replace_accelerator(rehearsal: Rehearsal) -> None:
    """Watch what an Accelerator is built with."""
    with contextlib.suppress(ImportError):
        import accelerate

        init = accelerate.Accelerator.__init__
        accelerate.Accelerator.__init__ = rehearsal.watched(init, "Accelerator")


def replace_trainer(rehearsal: Rehearsal) -> None:
    """Watch TrainingArguments, stop at a Trainer, and build models without weights."""
    with contextlib.suppress(ImportError):
        import transformers

        ORIGINAL_TRAINER.append(transformers.Trainer.__init__)
        arguments, trainer = transformers.TrainingArguments, transformers.Trainer
        # a dataclass below it has its own __init__, and the same __post_init__
        post = arguments.__post_init__
        arguments.__post_init__ = rehearsal.watched(post, "TrainingArguments")
        trainer.__init__ = rehearsal.trainer(trainer.__init__)
        weightless(rehearsal, transformers)


def weightless(rehearsal: Rehearsal, transformers: Any) -> None:
    """Build models from their configuration on the meta device, without weights and memory."""
    import torch
    from transformers.models.auto.auto_factory import _BaseAutoModelClass

    version = int(transformers.__version__.partition(".")[0])

    def typed(model: Any, config: Any, given: dict[str, Any]) -> Any:
        """The model with the type that from_pretrained gives its weights."""
        dtype = given.get("dtype", given.get("torch_dtype", "auto" if version >= 5 else None))
        if dtype == "auto":
            dtype = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None)
        if isinstance(dtype, str):
            dtype = getattr(torch, dtype, None)
        if dtype is None:
            return model
        return model.to(dtype)

    def automatic(cls: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        config = kwargs.get("config") or transformers.AutoConfig.from_pretrained(
            name, trust_remote_code=False
        )
        rehearsal.faked = True
        with torch.device("meta"):
            return typed(cls.from_config(config), config, kwargs)

    def direct(cls: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        config = kwargs.get("config") or cls.config_class.from_pretrained(name)
        rehearsal.faked = True
        with torch.device("meta"):
            return typed(cls(config), config, kwargs)

    _BaseAutoModelClass.from_pretrained = classmethod(automatic)
    transformers.PreTrainedModel.from_pretrained = classmethod(direct)


def run_script(rehearsal: Rehearsal, task: dict[str, Any]) -> None:
    """Run the script until it is stopped; report its own failure."""
    script, arguments = str(task["script"]), [str(word) for word in task["arguments"]]
    sys.argv = [script, *arguments]
    if task["module"]:
        folder = os.getcwd()
    else:
        folder = os.path.dirname(os.path.realpath(script))
    sys.path[0] = folder
    try:
        if task["module"]:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(script, run_name="__main__")
    except Stopped as stopped:
        send(stopped=rehearsal.stopped or str(stopped))
    except SystemExit as ended:
        if ended.code not in (None, 0) and not rehearsal.faked:
            send(exit=str(ended.code)[:300], during="the script")
            rehearsal.reported = True
    except Exception as error:
        absent = "offline" in str(error).lower() or "LocalEntryNotFound" in type(error).__name__
        if absent and not task["offline"]:
            send(stopped="a download")  # nothing is downloaded here: that proves nothing
        elif not rehearsal.faked and not rehearsal.reported:
            failed(error, "the script")
            rehearsal.reported = True
        else:
            send(stopped="made-up data")


def one_step(rehearsal: Rehearsal) -> None:
    """Train a tiny model for one step with what the script built."""
    import torch

    for name, original in ORIGINALS.items():
        if name == "backward":
            owner = torch.Tensor
        else:
            owner = torch.optim.Optimizer
        setattr(owner, name, original)
    if rehearsal.arguments is not None:
        by_trainer(rehearsal)
    elif rehearsal.accelerator is not None:
        by_accelerator(rehearsal)


ORIGINALS: dict[str, Any] = {}


def by_trainer(rehearsal: Rehearsal) -> None:
    """With the TrainingArguments of the script, on a BERT of one layer."""
    import transformers
    from transformers import BertConfig, BertForSequenceClassification

    given = rehearsal.arguments
    changes = {
        "output_dir": rehearsal.folder,
        "max_steps": 1,
        "gradient_accumulation_steps": 1,
        "report_to": [],
        "do_eval": False,
        "save_strategy": type(given.save_strategy)("no"),
        "load_best_model_at_end": False,
        "dataloader_num_workers": 0,
        "dataloader_persistent_workers": False,
        "dataloader_prefetch_factor": None,
        "torch_compile": False,
        "push_to_hub": False,
        "group_by_length": False,
        "train_sampling_strategy": "random",
        "resume_from_checkpoint": None,
        "disable_tqdm": True,
        "logging_dir": rehearsal.folder,
    }
    for name in ("eval_strategy", "evaluation_strategy"):
        if hasattr(given, name):
            changes[name] = type(getattr(given, name))("no")
    vars(given).update({name: value for name, value in changes.items() if hasattr(given, name)})
    tiny = BertConfig(
        vocab_size=32,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        max_position_embeddings=8,
    )
    count = min(4096, 2 * given.train_batch_size * int(os.environ.get("WORLD_SIZE", 1)))
    row = {"input_ids": [1, 2, 3, 4], "attention_mask": [1, 1, 1, 1], "labels": 1}
    trainer = transformers.Trainer.__new__(transformers.Trainer)
    try:
        ORIGINAL_TRAINER[0](
            trainer,
            model=BertForSequenceClassification(tiny),
            args=given,
            train_dataset=[row] * max(2, count),
        )
        trainer.train()
    except Exception as error:
        failed(error, "one step of a tiny model")


ORIGINAL_TRAINER: list[Any] = []


def by_accelerator(rehearsal: Rehearsal) -> None:
    """With the Accelerator of the script, on a linear layer."""
    import torch

    accelerator = rehearsal.accelerator
    model = torch.nn.Linear(4, 1)
    try:
        optimizer = torch.optim.AdamW(model.parameters())
        model, optimizer = accelerator.prepare(model, optimizer)
        accelerator.backward(model(torch.ones(2, 4)).sum())
        optimizer.step()
    except Exception as error:
        failed(error, "one step of a tiny model")


def rehearse(task: dict[str, Any]) -> None:
    """One rank: the script, then one step."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.update(WANDB_MODE="disabled", HF_HUB_DISABLE_TELEMETRY="1", PYTHONWARNINGS="ignore")
    faulthandler.dump_traceback_later(task["seconds"], exit=False)
    sys.dont_write_bytecode = True
    rehearsal = Rehearsal(str(task["folder"]))
    import torch

    ORIGINALS.update(backward=torch.Tensor.backward, step=torch.optim.Optimizer.step)
    script = os.path.realpath(str(task["script"]))
    replace_parts(rehearsal, libraries_of(script, module=bool(task["module"])))
    rehearsal.threads = native_threads()
    guard(rehearsal, os.getcwd() if task["module"] else os.path.dirname(script))
    run_script(rehearsal, task)
    if not rehearsal.reported:
        with contextlib.suppress(Stopped):
            one_step(rehearsal)
    send(done=True)
    os._exit(0)  # threads of a script, and ranks that wait for one another, hold nothing up


def main() -> None:
    if sys.argv[1] == AS_RANK:
        sys.stdout = sys.stderr
        rehearse(json.loads(sys.argv[2]))
    else:
        coordinate(json.loads(sys.argv[1]))


if __name__ == "__main__":
    main()
