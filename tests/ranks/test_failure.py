"""Why jobs end before their time, in words."""

from __future__ import annotations

import pytest
from golden_texts import Golden
from rows import every_row

from cputune.inside.messages import Raised
from cputune.ranks.failure import early_end, failure as why
from cputune.ranks.supervisor_main import Exit
from cputune.records.steps import Crashed, Infeasible, NoMeasurement, OutOfMemory


def failure(
    status: int, *, tail: str = "", errors: tuple[Raised, ...] = (), kills: int | None = 0
) -> Exception:
    ended: Exit = {"event": "exit", "rank": 0, "status": status, "tail": tail}
    return why([ended], errors, memory_kills=kills, steps=0, script="t.py")


def raised(kind: str, text: str) -> Raised:
    return {"event": "error", "kind": kind, "text": text}


@every_row(
    ("error", "kind", "words"),
    [
        (failure(-9, kills=1), OutOfMemory, "killed for memory"),
        (failure(137, kills=None), OutOfMemory, "killed for memory"),
        (failure(-9), Crashed, "killed from outside"),
        (failure(-11), Crashed, "SIGSEGV"),
        (failure(2), Crashed, "exit status 2"),
        (failure(0), NoMeasurement, "ended before its first step"),
        (failure(1, tail="... can't allocate memory: you tried"), OutOfMemory, "have memory"),
        (failure(1, errors=(raised("MemoryError", ""),)), OutOfMemory, "MemoryError"),
        (
            failure(1, errors=(raised("ValueError", "no\nway"),)),
            Crashed,
            "ValueError: no",
        ),
        (
            failure(-9, kills=1, errors=(raised("RuntimeError", "peer closed"),)),
            OutOfMemory,
            "killed for memory",
        ),
    ],
)
def test_failures_have_types_and_words(error: Exception, kind: type, words: str) -> None:
    assert type(error) is kind
    assert words in str(error)


@every_row(
    ("kind", "text", "said"),
    [
        (
            "AssertionError",
            "Torch not compiled with CUDA enabled",
            "let Trainer or Accelerator choose",
        ),
        ("RuntimeError", "Found no NVIDIA driver on your system.", "needs a GPU"),
        ("SystemExit", "CUDA is required", "needs a GPU"),
        ("LocalTokenNotFoundError", "Token is required", "export HF_TOKEN"),
        ("KeyError", "'LOCAL_RANK'", None),
    ],
)
def test_a_cause_in_the_script_is_reported_with_the_way_out(
    kind: str, text: str, said: str | None
) -> None:
    error = why([], [raised(kind, text)], memory_kills=None, steps=0, script="train.py")
    assert error.hopeless == (said is not None), "another exception may be the plan's"
    assert (said or text) in str(error)


ARGPARSE = "usage: t.py [-h] --lr LR\n            [--x X]\nt.py: error: --lr is required\n"
CLICK = "Usage: t.py [OPTIONS]\nTry 't.py --help' for help.\n\nError: No such option: --y\n"


@pytest.mark.parametrize(("tail", "said"), [(ARGPARSE, "--lr is required"), (CLICK, "--y")])
def test_arguments_that_a_script_does_not_take_cost_one_start(
    tail: str, said: str, golden: Golden
) -> None:
    error = failure(2, tail=tail)
    assert isinstance(error, Crashed)
    assert error.hopeless
    golden(str(error))
    assert str(error).endswith(said)


ACCELERATE = """Loading weights: 100%
Traceback (most recent call last):
  File "sft.py", line 3, in <module>
ValueError: Your setup doesn't support bf16/gpu. You need to assign use_cpu.
Traceback (most recent call last):
  File "bin/accelerate", line 8, in <module>
subprocess.CalledProcessError: Command '['python', 'sft.py']' returned non-zero exit status 1.
"""
TORCHRUN = """[rank1]: Traceback (most recent call last):
[rank1]: KeyError: 'speaker'
E1122 15:53:03.1 1 torch/elastic/api.py:901] failed (exitcode: 1) local_rank: 1
Traceback (most recent call last):
  File "bin/torchrun", line 8, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
====================
t.py FAILED
"""


@every_row(
    ("tail", "said"),
    [
        (TORCHRUN.replace("[rank1]: KeyError: 'speaker'", "no data"), "exit status 1: no data"),
        ("", "t.py ended before its first step with exit status 1"),
    ],
)
def test_the_cause_is_what_the_script_said_last_not_its_launcher(tail: str, said: str) -> None:
    error = failure(1, tail=tail)
    assert said in str(error)
    # Another plan may train; but a launch that refuses bf16 is mended before it is tuned.
    assert getattr(error, "hopeless", None) == (tail == ACCELERATE)


def test_a_script_that_has_said_its_exit_status_need_not_be_gone(golden: Golden) -> None:
    error = why([], [raised("SystemExit", "exit status 2")], memory_kills=0, steps=0, script="t.py")
    golden(str(error))
    assert isinstance(error, Crashed)


def test_an_exception_of_a_library_gets_the_answer_of_its_interface(golden: Golden) -> None:
    text = "TrainingArguments.__init__() got an unexpected keyword argument 'evaluation_strategy'"
    error = failure(1, errors=(raised("TypeError", text),))
    golden(str(error))
    assert getattr(error, "hopeless", False)


@every_row(
    ("seen", "steps", "kind", "words"),
    [
        (
            [],
            0,
            Infeasible,
            "no step of an optimizer was seen in t.py",
        ),
        (["Accelerator", "Trainer"], 0, NoMeasurement, "--do_train"),
        (["Accelerator"], 0, NoMeasurement, "an Accelerator"),
        (["Trainer"], 3, NoMeasurement, "after 3 steps"),
    ],
)
def test_a_script_that_ends_too_soon_is_reported_why(
    seen: list[str], steps: int, kind: type, words: str
) -> None:
    error = early_end(seen, "t.py", steps)
    assert type(error) is kind
    assert getattr(error, "hopeless", False) == (kind is Infeasible), "a plan mends none of it"
    assert words in str(error)
