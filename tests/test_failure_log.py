"""What a log says about the end of a job: which failure decides, and where it was raised."""

from __future__ import annotations

import json

from golden_texts import Golden
from rows import every_row

from cputune.text.failure_log import Failure, FailureLog, Standing, package_of, read_failures

SITE = "/opt/venv/lib/python3.11/site-packages"
HANDLED = f"""\
CUDA not available, using CPU
Traceback (most recent call last):
  File "train.py", line 7, in <module>
    main()
    ~~~~^^
  File "{SITE}/datasets/arrow_dataset.py", line 321, in map
    raise ValueError("columns")
ValueError: columns of the two tables
differ in type

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "train.py", line 9, in <module>
    show(labels[3])
IndexError: list index out of range
"""
TORCHRUN = """\
[rank1]: Traceback (most recent call last):
[rank0]: Traceback (most recent call last):
[rank1]:   File "job.py", line 3, in <module>
[rank0]:   File "job.py", line 9, in <module>
[rank1]:     batch["labels"]
[rank1]: KeyError: 'labels'
[rank0]: RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1
E1127 10:00:00.1 1 torch/elastic/api.py:901] failed (exitcode: 1) local_rank: 1 (pid: 12)
Traceback (most recent call last):
  File "bin/torchrun", line 8, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
Root Cause (first observed failure):
[0]:
  time      : 2026-11-27_10:00:00
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 12)
"""


KILLED, CALLED = ("signal", "SIGKILL"), "subprocess.CalledProcessError"


def decisive(text: str) -> tuple[str, str, int]:
    found = read_failures(text).decisive
    return found.kind, found.name, found.line


def test_the_last_exception_decides_and_keeps_what_came_before(golden: Golden) -> None:
    found = read_failures(HANDLED).decisive
    golden(found.title)
    assert (found.line, found.frames[-1].file, found.frames[-1].line) == (16, "train.py", 9)
    assert [one.type_name for one in found.chain] == ["IndexError", "ValueError"]
    cause = found.chain[1]
    golden(cause.message)
    where = (cause.frames[-1].package, cause.frames[-1].module)
    assert where == ("datasets", "datasets.arrow_dataset")


def test_of_several_ranks_the_one_decides_that_failed_first() -> None:
    found = read_failures(TORCHRUN).decisive
    assert (found.title, found.rank, found.line) == ("KeyError: 'labels'", 1, 6)


@every_row(
    ("text", "kind", "name"),
    [
        ("Segmentation fault (core dumped)", "signal", "SIGSEGV"),
        ("job.sh: line 3:  77 Killed                  python train.py", *KILLED),
        (
            "mpirun noticed that process rank 1 with PID 0 on node a exited on signal 9 (Killed).",
            *KILLED,
        ),
        ("=   KILLED BY SIGNAL: 11 (Segmentation fault)", "signal", "SIGSEGV"),
        ("srun: error: node12: task 0: Illegal instruction (core dumped)", "signal", "SIGILL"),
        (f"{CALLED}: Command 'x' died with <Signals.SIGBUS: 7>.", "signal", "SIGBUS"),
        ("  exitcode  : -9 (pid: 77)", *KILLED),
        ("command terminated with exit code 137", *KILLED),
        ("""Error in call:\nTypeError("an argument 'n'")\nkey: a""", "exception", "TypeError"),
        ("[launch.py:3] ['python', '--signal', '4'] exits with return code = -9", *KILLED),
        ("python train.py --lr 1: error: no such file", "error", ""),
        ("Warning  BackOff  2m49s  kubelet  Back-off restarting failed container a", "error", ""),
        ("mpiexec -n 2 a: unable to run proxy on node2 (exit code 255)", "error", ""),
        (
            "    Traceback (most recent call last):\n      File 'a.py', line 1\n    KeyError: 'a'",
            "exception",
            "KeyError",
        ),
        (
            '  File "train.py", line 3, in main\n    run()\nOSError: [Errno 28] No space left',
            "exception",
            "OSError",
        ),
        ("srun: error: node12: task 0: Out Of Memory", "memory", "SIGKILL"),
        ("[12.3] Out of memory: Killed process 12 (python) total-vm:1kB", "memory", "SIGKILL"),
        ("slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT T DUE TO TIME LIMIT ***", "limit", ""),
        ("usage: t.py [-h]\nt.py: error: unrecognized arguments: --x", "usage", ""),
        (
            "terminate called after throwing an instance of 'c10::Error'\n  what():  no",
            "exception",
            "c10::Error",
        ),
        ("OMP: Error #15: Initializing libiomp5.so\nAborted (core dumped)", "error", ""),
    ],
)
def test_signals_launchers_the_kernel_and_usage_are_read(text: str, kind: str, name: str) -> None:
    assert decisive(text)[:2] == (kind, name)


def test_a_kill_is_the_cause_of_the_other_ranks_exceptions() -> None:
    text = f"{TORCHRUN}\nkernel: [1.2] Memory cgroup out of memory: Killed process 12 (python)\n"
    assert decisive(text)[0] == "memory"
    assert decisive(f"{HANDLED}\nBus error (core dumped)")[1] == "SIGBUS"
    assert decisive(f"{HANDLED}\nTerminated")[1] == "IndexError", "a launcher ends the others so"


@every_row(
    "text",
    [
        "UserWarning: 'pin_memory' argument is set as true but no accelerator is found",
        "[W1127 10:00:00.0 socket.cpp:767] [c10d] cannot be initialized (errno: 97)",
        "W1127 10:00:00.000000 1234 torch/distributed/run.py:774] Setting OMP_NUM_THREADS",
        "CUDA is not available. Running on CPU",
        "OMP: Info #276: omp_set_nested routine deprecated",
        "INFO: 4 GPUs required for the large preset, 0 for this one",
        "100%|██████████| 100/100 [00:10<00:00, 10.00it/s]",
        "{'loss': 0.69, 'grad_norm': 1.2, 'epoch': 0.1}",
        # Words of a command, or of a configuration.
        "[mpiexec@a] Launch arguments: /usr/bin/ssh -q b proxy --abort-signal 9 --on-failure abort",
        "+ mpirun -n 2 --on-error abort python train.py --resume fail",
        "you@node:~$ torchrun --max-restarts 0 train.py --unsupported ignore",
        "cmd = /usr/bin/python -u train.py --policy abort --denied 0",
        "torchrun --nnodes 2 \\\n  --on-error abort \\\n  train.py --policy fail",
        '"on_failure": "abort",',
        "signal_on_failure='abort',",
        "Namespace(on_error='abort', signal=9)",
        # A stack that is printed.
        '  File "train.py", line 3, in main\n    show()\nDone',
    ],
)
def test_warnings_and_prints_do_not_decide(text: str) -> None:
    assert read_failures(text).decisive is None
    assert decisive(f"{text}\n{HANDLED}\n{text}\n")[1] == "IndexError"


def test_prefixes_of_launchers_and_terminals_are_taken_off() -> None:
    plain = 'Traceback (most recent call last):\n  File "a.py", line 1\nKeyError: 3'.splitlines()
    for prefix, rank in (
        ("[1,2]<stderr>:", 2),
        ("7: ", 7),
        ("trainer-1  | ", None),
        ("\x1b[31m", None),
    ):
        found = read_failures("\n".join(prefix + line for line in plain)).decisive
        assert found is not None, prefix
        assert (found.name, found.rank, found.frames[0].file) == ("KeyError", rank, "a.py")
    assert decisive(" 10%|#\rKeyError: 1") == ("exception", "KeyError", 1)


def test_a_notebook_and_a_box_are_tracebacks_too() -> None:
    cell = (
        "KeyError                Traceback (most recent call last)\nCell In[1], line 2\n      1 x\n"
    )
    assert decisive(f"{cell}File {SITE}/peft/x.py:12, in f(a)\n\nKeyError: 'a'")[1] == "KeyError"
    box = (
        "╭── Traceback (most recent call last) ──╮\n│ /home/you/a.py:3 in main │\n╰──╯\nKeyError: 1"
    )
    assert decisive(box)[1] == "KeyError"


def test_where_a_file_belongs() -> None:
    assert package_of(f"{SITE}/torch/nn/modules/module.py") == "torch"
    assert package_of("/home/you/src/transformers/src/transformers/trainer.py") == "transformers"
    assert package_of("/usr/lib/python3.11/subprocess.py") == "python"
    assert package_of("/home/you/train.py") == ""


def test_versions_that_a_log_names_are_read() -> None:
    log: FailureLog = read_failures(
        'transformers==4.44.2\n"transformers_version": "4.40.0"\ntorch-2.3.1+cpu'
    )
    assert log.versions == {"transformers": "4.44.2", "torch": "2.3.1"}


FRAMES = ('  File "/home/you/train.py", line 84, in <module>', "    run(batch)")
PREFIXES = (
    "[pod/trainer-{n}/pytorch] ",
    "trainer-worker-{n} pytorch ",
    "node{n}: ",
    "worker-alpha: ",
    "algo-{n}-3QNM9_1_51756cf | ",
    "svc.{n}.x7k2mq9d@node1    | ",
    "Nov 29 03:00:0{t} node{n} slurmstepd[12{n}]: ",
    "[2024-02-27T21:35:3{t}.10631{t}Z] fa88a9d{n} || ",
    "2024/02/27 21:35:3{t} [worker {n}] ",
    "E1129 10:00:0{t}.123456 12{n} worker.py:409] ",
    "[ERROR] [trainer-{n}] ",
    "INFO 11-29 03:00:0{t} executor.py:7] ",
    "<{n}> ",
    "#{n} 12.{t} ",
)
"""Of launchers, schedulers and collectors of logs: {n} is the process, {t} the time."""


@every_row("prefix", PREFIXES)
def test_what_is_before_a_traceback_is_a_prefix(prefix: str) -> None:
    lines = ["Traceback (most recent call last):", *FRAMES, "KeyError: 'labels'"]
    text = "\n".join(prefix.format(n=1, t=time) + line for time, line in enumerate(lines))
    found = read_failures(f"starting\n{text}\n").decisive
    assert (found.title, found.line) == ("KeyError: 'labels'", 5)
    assert [(one.line, one.code) for one in found.frames] == [(84, "run(batch)")]


@every_row("prefix", [one for one in PREFIXES if "{n}" in one])
def test_processes_that_are_mixed_are_separated_by_their_prefix(prefix: str) -> None:
    lines = []
    for time, line in enumerate(("Traceback (most recent call last):", *FRAMES)):
        lines += [prefix.format(n=n, t=time) + line for n in (1, 2)]
    lines += [
        prefix.format(n=1, t=4) + "RuntimeError: a peer has closed",
        prefix.format(n=2, t=4) + "KeyError: 'labels'",
    ]
    log = read_failures("\n".join(lines))
    assert [one.type_name for one in log.failures] == ["RuntimeError", "KeyError"]
    assert {len(one.frames) for one in log.failures} == {1}


def test_records_of_json_and_escaped_tracebacks_are_read() -> None:
    whole = "\n".join(("Traceback (most recent call last):", *FRAMES, "KeyError: 'labels'"))
    one = json.dumps({"time": "T", "severity": "ERROR", "message": whole})
    each = "\n".join(
        json.dumps({"log": f"{line}\n", "stream": "stderr"}) for line in whole.split("\n")
    )
    raised = json.dumps({"levelname": "ERROR", "message": "it broke", "exc_info": whole})
    escaped = "12:00:00 worker said: " + whole.replace("\n", "\\n").replace('"', '\\"')
    for text in (one, each, raised, escaped):
        found = read_failures(f"starting\n{text}\n").decisive
        assert (found.title, found.frames[0].line) == ("KeyError: 'labels'", 84), text
    assert read_failures('{"level": "info", "message": "it failed"}').decisive is None
    assert read_failures('{"train_loss": 0.4}').decisive is None


# --- cause, consequence, reporter ---


ROLES = {"RuntimeError": "reporter", "OSError": "consequence", "SIGSEGV": "consequence"}
"""Of failures in these tests, by their names."""


def decided(text: str) -> str:
    def standing_of(failure: Failure) -> Standing:
        if failure.kind == "error":
            return Standing(known="known" in failure.text)
        return Standing(role=ROLES.get(failure.name, "cause"), known=True)

    found = read_failures(text).decide(standing_of)
    return found.title


def raised(title: str) -> str:
    return "\n".join(("Traceback (most recent call last):", *FRAMES, title, ""))


def test_a_consequence_decides_after_its_cause_and_before_a_report() -> None:
    closed = raised("OSError: closed")
    assert decided(closed + raised("ValueError: cause")) == "ValueError: cause"
    assert decided(raised("RuntimeError: report") + closed) == "OSError: closed"


def test_a_crash_follows_from_the_known_error_before_it() -> None:
    crash = "Segmentation fault (core dumped)"
    assert decided(f"an error that is known\n{crash}") == "an error that is known"
    assert decided(f"{crash}\nan error that is known") == crash
    assert decided(f"an error of others\n{crash}") == crash
    assert decided("an error that is known\nBus error") == "Bus error"


def test_what_a_destructor_raises_does_not_end_a_job() -> None:
    ignored = "Exception ignored in: <function A.__del__ at 0x7f>\n"
    for after in (raised("AttributeError: gone"), "AttributeError: gone\n"):
        assert decided(raised("ValueError: cause") + ignored + after) == "ValueError: cause"
        assert read_failures(ignored + after).decisive is None


def test_prefixes_may_follow_one_another() -> None:
    text = "trainer-1  | 2026-11-27T10:00:00Z \x1b[31m[rank1]: KeyError: 3"
    found = read_failures(f"{text}\n\n\n").decisive
    assert (found.text, found.rank, found.line) == ("KeyError: 3", 1, 1)


def test_lines_of_another_level_keep_it() -> None:
    lines = ("Traceback (most recent call last):", *FRAMES, "KeyError: 'labels'")
    text = "\n".join(f"[ERROR] [trainer] {line}" for line in lines)
    log = read_failures(f"[WARNING] [trainer] a download failed\n{text}")
    assert [one.kind for one in log.failures] == ["warning", "exception"]


def test_the_stack_of_a_c_exception_and_the_banner_of_torchrun_are_no_errors() -> None:
    stack = "frame #0: c10::Error::Error(c10::SourceLocation) + 0x96 (0x7f in libc10.so)"
    assert read_failures(stack).decisive is None
    assert decisive("train.py FAILED\nit cannot go on")[2] == 2


def test_the_rank_that_the_launcher_names_decides_although_another_wrote_first() -> None:
    lines = TORCHRUN.replace("Connection closed by peer [127.0.0.1]:1", "out of range").splitlines()
    lines.insert(5, lines.pop(6))  # rank 0 writes first
    found = read_failures("\n".join(lines)).decisive
    assert found.rank == 1


def test_of_error_lines_the_first_decides_and_a_cpp_exception_has_its_words() -> None:
    assert decisive("hydra: error: no host\nhydra: error: no daemon\n") == ("error", "", 1)
    found = read_failures(
        "terminate called after throwing an instance of 'E'\n  what():  no"
    ).decisive
    assert (found.title, found.message) == ("E: no", "no")
