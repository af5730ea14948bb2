"""Launches that fail for real, and what the doctor has to say of each.

Each row is a script, its launch, and what it is started in (a namespace, a limit, a mount, a
cgroup). ``test_failing.py`` runs it and gives its log to the doctor; no log is kept here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

TORCHRUN = ("torchrun", "--nproc_per_node=2", "--master_port={port}")

RANKS = """
import datetime, os, signal, time
import torch
import torch.distributed as dist
"""
JOINS = 'dist.init_process_group("gloo")\nrank = dist.get_rank()\nx = torch.ones(4)\n'
GROUP = RANKS + JOINS
WATCHED = (
    RANKS
    + """
import faulthandler
faulthandler.register(signal.SIGUSR1, file=open(f"stack-{os.environ.get('RANK', 0)}", "w"))
def ready():
    open(f"ready-{os.environ.get('RANK', 0)}", "w").close()
"""
)
TRAINER = """
from transformers import HfArgumentParser, Trainer, TrainingArguments
(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
"""
LOADER = """
import faulthandler, os, signal, sys, time
import torch
from torch.utils.data import DataLoader, Dataset
faulthandler.register(signal.SIGUSR1, file=open("stack-0", "w"))
class Rows(Dataset):
    def __len__(self): return 8
    def __getitem__(self, at):
        {row}
for batch in DataLoader(Rows(), batch_size=2, num_workers={workers}): pass
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """A launch that fails, or that never ends.

    Attributes:
        script: the text of train.py.
        launch: the words; {python} and {port} are filled in.
        files: other files of its folder.
        inside: words of a shell before the launch, in namespaces of its own.
        limits: options of prlimit.
        cgroup: a controller, and the settings of the cgroup that the launch runs in.
        before: one of these codes is found by ``doctor -- LAUNCH``.
        hangs: it is examined with --pid once all of its ranks are ready, and ended.
        during: codes that --pid finds; ``shown`` is in the evidence of one.
        after: one of these rows of ``known_errors/`` (or "interface", "unknown") explains the log.
        says: words of the failure that is shown.
        fast: it takes a second, so that CI runs it.
    """

    script: str = ""
    launch: tuple[str, ...] = ("{python}", "train.py")
    files: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    inside: str = ""
    limits: tuple[str, ...] = ()
    cgroup: tuple[str, dict[str, str]] | None = None
    listens: bool = False
    before: tuple[str, ...] = ()
    hangs: int = 0
    during: tuple[str, ...] = ()
    shown: str = ""
    after: tuple[str, ...] = ()
    says: str = ""
    fast: bool = False


FAILING: dict[str, Failing] = {
    # --- scripts ------------------------------------------------------------------------
    "a module is missing": Failing(
        script="import no_such_library\n",
        before=("launch-import",),
        after=("interface",),
    ),
    "a file of ours hides a module": Failing(
        script="import random\nprint(random.randint(0, 1))\n",
        files={"random.py": "seed = 1\n"},
        before=("module-shadowed", "launch-import"),
        after=("shadowed",),
    ),
    "the script is not there": Failing(
        launch=("{python}", "trian.py"), before=("launch-script",), after=("script-absent",)
    ),
    "keyboard input in a job": Failing(
        script="input('go on? ')\n", after=("asks-input",), fast=True
    ),
    "a segfault": Failing(
        script="import ctypes\nctypes.string_at(0)\n", after=("segfault",), fast=True
    ),
    "weights of several types": Failing(
        script="import torch\nn = torch.nn.Linear(4, 4).bfloat16()\nn(torch.ones(2, 4))\n",
        before=("rehearsal-fails",),
        after=("mixed-dtype",),
    ),
    "a pickle that torch.load refuses": Failing(
        script="import torch\nclass A: pass\ntorch.save(A(), 'a.pt')\ntorch.load('a.pt')\n",
        after=("weights-only",),
    ),
    "half of a checkpoint": Failing(
        script="import torch\ntorch.save(torch.ones(999), 'a.pt')\n"
        "open('b.pt', 'wb').write(open('a.pt', 'rb').read()[:900])\ntorch.load('b.pt')\n",
        after=("file-truncated",),
    ),
    "rows of different lengths": Failing(
        script=LOADER.format(row="return torch.ones(at)", workers=0), after=("batch-mismatch",)
    ),
    "a worker of the loader raises": Failing(
        script=LOADER.format(row="raise ValueError(f'row {at} is broken')", workers=1),
        says="row 0 is broken", after=("unknown",),
    ),
    "a worker of the loader is killed": Failing(
        script=LOADER.format(row="os.kill(os.getpid(), signal.SIGKILL)", workers=1),
        after=("killed",),
    ),
    "a function that spawn cannot send": Failing(
        script="import torch.multiprocessing as mp\n"
        "if __name__ == '__main__':\n    mp.spawn(lambda rank: 1, nprocs=1)\n",
        after=("pickle",),
    ),
    "no fallback for a module of the stack": Failing(
        script="import torch._six\n", before=("rehearsal-fails",), after=("interface",)
    ),
    # --- arguments ----------------------------------------------------------------------
    "a flag that is gone": Failing(
        script=TRAINER,
        launch=("{python}", "train.py", "--output_dir", "out", "--no_cuda"),
        before=("file-flag-refused",),
        after=("interface",),
    ),
    "an optimizer of another package": Failing(
        script=TRAINER + "import torch\nTrainer(torch.nn.Linear(2, 2), args, train_dataset=[1])"
        ".create_optimizer()\n",
        launch=("{python}", "train.py", "--output_dir", "o", "--optim", "galore_adamw"),
        before=("launch-import", "argument-package"),
        says="galore_torch", after=("unknown",),
    ),
    "a model that may not be downloaded": Failing(
        script="from transformers import AutoConfig\nAutoConfig.from_pretrained('no/model')\n",
        variables={"HF_HUB_OFFLINE": "1"},
        before=("rehearsal-fails",),
        after=("hub-unreachable",),
    ),
    # --- ranks --------------------------------------------------------------------------
    "a backend that needs GPUs": Failing(
        script=RANKS + "dist.init_process_group('nccl')\n",
        launch=(*TORCHRUN, "train.py"),
        before=("rehearsal-fails", "file-backend"),
        after=("nccl",),
    ),
    "a rank without an address": Failing(
        script=RANKS + "dist.init_process_group('gloo')\n",
        before=("rehearsal-fails",),
        after=("master-addr",),
    ),
    "an address that nobody knows": Failing(
        script=RANKS
        + "dist.init_process_group('gloo', timeout=datetime.timedelta(seconds=10))\n",
        variables={
            "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "no-such-host.invalid",
            "MASTER_PORT": "29500",
        },
        before=("master-addr-unknown",),
    ),
    "a port in use": Failing(
        script=GROUP, launch=(*TORCHRUN, "train.py"), listens=True,
        before=("master-port-taken", "launcher-fails"), after=("port-taken",),
    ),
    "torchrun binds by GPUs": Failing(
        script=GROUP, launch=(*TORCHRUN, "--numa-binding=node", "train.py"),
        before=("numa-binding-gpu", "launcher-fails"), after=("torchrun-gpus",),
    ),
    "torchrun counts GPUs": Failing(
        script=GROUP, launch=("torchrun", "--nproc_per_node=gpu", "train.py"),
        before=("variable-refused", "launcher-fails"), after=("torchrun-gpus",),
    ),
    "one rank raises": Failing(
        script=GROUP + "if rank == 1: raise ValueError('the labels are wrong')\n"
        "dist.all_reduce(x)\n",
        launch=(*TORCHRUN, "train.py"), says="the labels are wrong", after=("unknown",),
    ),
    "one rank is late": Failing(
        script=RANKS + "dist.init_process_group('gloo', timeout=datetime.timedelta(seconds=2))\n"
        "if dist.get_rank() == 1: time.sleep(9)\ndist.all_reduce(torch.ones(4))\n",
        launch=(*TORCHRUN, "train.py"), after=("timed-out",),
    ),
    "shapes that differ between ranks": Failing(
        script=GROUP + "dist.all_reduce(torch.ones(4 + rank))\n",
        launch=(*TORCHRUN, "train.py"), after=("collective-sizes",),
    ),
    "two collectives at once": Failing(
        script=WATCHED + JOINS + "dist.all_reduce(x); ready()\n"
        "dist.all_reduce(x) if rank == 0 else dist.broadcast(x, 0)\n",
        launch=(*TORCHRUN, "train.py"), hangs=2,
        during=("job-collectives",), shown="is in all_reduce, rank 1",
    ),
    "a rank that never comes": Failing(
        script=WATCHED + "ready()\ndist.init_process_group('gloo', rank=0, world_size=2,"
        " init_method='tcp://127.0.0.1:{port}')\n",
        hangs=1, during=("job-waits",), shown="other ranks to connect",
    ),
    "a rank that sleeps": Failing(
        script=WATCHED + JOINS + "dist.all_reduce(x); ready()\n"
        "if rank: time.sleep(600)\ndist.all_reduce(x)\n",
        launch=(*TORCHRUN, "train.py"), hangs=2, during=("job-waits",), shown="in a collective",
    ),
    # --- processes that hang ------------------------------------------------------------
    "a pool that was forked after threads": Failing(
        script=WATCHED + "torch.set_num_threads(2)\na = torch.randn(900, 900); a @ a\n"
        "import multiprocessing\ndef work(n): return float((a @ a).sum())\nready()\n"
        "with multiprocessing.get_context('fork').Pool(2) as pool: pool.map(work, range(2))\n",
        hangs=1,
        during=("job-waits",), shown="forked after",
    ),
    "a pool that will be forked after threads": Failing(
        script=RANKS + "torch.set_num_threads(2)\na = torch.randn(900, 900); a @ a\n"
        "import multiprocessing\ndef work(n): return float((a @ a).sum())\n"
        "with multiprocessing.get_context('fork').Pool(2) as pool: pool.map(work, range(2))\n",
        before=("fork-after-threads",),
    ),
    "a process that is stopped": Failing(
        script=WATCHED + "ready()\nos.kill(os.getpid(), signal.SIGSTOP)\n",
        hangs=1, during=("job-waits",), shown="it is stopped",
    ),
    "a loader that crawls": Failing(
        script=LOADER.format(
            row="open('ready-0', 'w').close(); time.sleep(60); return torch.ones(1)", workers=1
        ),
        hangs=1, during=("job-waits",), shown="worker of its DataLoader",
    ),
    # --- the machine --------------------------------------------------------------------
    "no loopback": Failing(
        script=GROUP, launch=(*TORCHRUN, "train.py"), inside="unshare -rn",
        before=("loopback-down",),
    ),
    "shared memory is full": Failing(
        script=LOADER.format(row="return torch.ones(1 << 20)", workers=1),
        inside="unshare -rm sh -c 'mount -t tmpfs -o size=1m none /dev/shm && exec \"$@\"' sh",
        before=("shm-small",), after=("shm-full",),
    ),
    "the disk is full": Failing(
        script="import torch\ntorch.save(torch.ones(1 << 20), 'out/a.pt')\n",
        files={"out/here": ""},
        inside="unshare -rm sh -c 'mount -t tmpfs -o size=1m none out && exec \"$@\"' sh",
        after=("checkpoint-not-written",),
    ),
    "a folder that cannot be written": Failing(
        script="open('out/log.txt', 'w')\n", files={"out/here": ""},
        inside="unshare -rm sh -c 'mount -t tmpfs -o ro none out && exec \"$@\"' sh",
        after=("read-only",), fast=True,
    ),
    "too little address space": Failing(
        script="import torch\ntorch.ones(1 << 28).sum()\n", limits=("--as=1500000000",),
        before=("virtual-memory",), after=("cannot-allocate",),
    ),
    "too few open files": Failing(
        script="files = [open('train.py') for _ in range(99)]\n", limits=("--nofile=50",),
        before=("open-files",), after=("open-files",),
    ),
    "too few processes": Failing(
        script="import threading, time\nfor _ in range(90):\n"
        "    threading.Thread(target=time.sleep, args=(3,), daemon=True).start()\n",
        cgroup=("pids", {"pids.max": "40"}), before=("rehearsal-fails",), after=("threads",),
    ),
    "a tenth of a CPU": Failing(
        script=WATCHED + "ready()\na = torch.randn(900, 900)\nwhile True: a @ a\n",
        cgroup=("cpu", {"cpu.cfs_quota_us": "10000"}),
        before=("quota-threads", "quota-throttled"), hangs=1,
        during=("quota-throttled",),
    ),
}  # fmt: skip
