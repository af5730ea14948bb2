"""From the text of an error to its cause: rows, interface tables and checks, on words that
people report."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from clean_machine import CLEAN, changed
from click.testing import CliRunner
from golden_texts import Golden
from rows import every_row

from cputune import CannotError, Severity
from cputune.cli import cli
from cputune.doctor.registry import all_checks
from cputune.doctor.symptoms import (
    MOST_CHARACTERS,
    NEAR_LINES,
    explain,
    judge_symptom,
    quotes_of,
    symptoms,
)
from cputune.text.documents import toml

HERE = Path(__file__).parent
REPORTED = HERE / "reported_errors.txt"
"""A name, a tab, and a line as it is in the thread that the row names, or as its program prints it:
those added last are standard messages, some of them written from memory.
"""

QUOTED = [(check.code, quote) for check in all_checks() for quote in quotes_of(check)]


def reported() -> list[tuple[str, str]]:
    lines = REPORTED.read_text(encoding="utf-8").splitlines()
    return [(name, line) for name, _, line in (one.partition("\t") for one in lines)]


def public() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = toml((HERE / "public_errors.toml").read_text(encoding="utf-8"))[
        "errors"
    ]
    return rows


def name_of(text: str, **versions: str) -> str | None:
    found = explain(text, versions)
    return found.symptom.name if found is not None else None


def words_of(text: str, **versions: str) -> str:
    found = explain(text, versions)
    one = found.symptom
    return " | ".join((one.title, one.cause, one.fix, one.command or ""))


# What a job prints before it trains, with words that rows look for in a log.
BANNER = """\
WARNING: Retrying (Retry(total=4)) after connection broken by 'ReadTimeoutError()': /simple/pip/
Collecting flash_attn
Building wheel for flash_attn (setup.py): finished with status 'done'
Successfully installed PyYAML-5.4.1 flash-attn-2.5.8
flash-attn                  2.5.8
intel-extension-for-pytorch 2.8.0
lightning                   2.6.6
torchmetrics                1.4.0
{'strategy': 'auto', 'distributed': False, 'logging': 10, 'data_files': None, 'on': 'slurm'}
Map: 100%|██████████| 1000/1000 [00:01<00:00, 800.00 examples/s]
+ torchrun --nproc_per_node 1 train.py
"""


@every_row(("name", "line"), reported())
def test_an_error_is_known_by_the_words_that_people_report(name: str, line: str) -> None:
    text = f'Traceback (most recent call last):\n  File "train.py", line 3\n{line}\nend'
    assert name_of(text) == name
    assert name_of(line) == name, "the words alone"
    if re.match(r"[\w.]+(?:Error|Exception): ", line):
        assert name_of(BANNER + text) == name, "after harmless lines"
    found = explain(line)
    assert found is not None
    assert not found.symptom.title.endswith(": "), "nothing follows the colon"


@every_row("row", public(), ids=lambda row: str(row["source"]).partition(",")[0])
def test_a_public_thread_gets_its_cause(row: dict[str, Any]) -> None:
    assert name_of(row["text"]) == row["is"]
    assert name_of(BANNER + row["text"].strip("\n")) == row["is"], "after harmless lines"
    words = words_of(row["text"])
    assert [word for word in row["says"] if word not in words] == [], words


LAST = (
    (
        "mpi-slots",
        "There are not enough slots available in the system\n 3. Resource manager (e.g., SLURM)",
    ),
    (
        "mpi-root",
        "mpirun has detected an attempt to run as root.\nYou can override this protection",
    ),
    ("illegal-instruction", "Illegal instruction (core dumped)"),
    ("wheel-build", "ERROR: Failed building wheel for dlib"),
    ("wheel-flash", "ERROR: Failed building wheel for flash-attn"),
    (None, "Stopped the board server (SIGTERM)\nTraining finished"),
)


@every_row(("name", "last"), LAST)
def test_the_last_words_of_a_log_decide_and_not_its_banner(name: str | None, last: str) -> None:
    assert name_of(BANNER + last) == name


def test_evidence_of_a_row_is_near_its_failure() -> None:
    log = "File already read\nCollecting flash-attn\n{}error: subprocess-exited-with-error"
    assert name_of(log.format("  note\n" * (NEAR_LINES - 1))) == "wheel-flash"
    assert name_of(log.format("  note\n" * NEAR_LINES)) == "wheel-build"


@every_row(("code", "quote"), QUOTED, ids=[f"{c}: {q}" for c, q in QUOTED])
def test_what_a_check_quotes_leads_to_the_check(code: str, quote: str) -> None:
    found = explain(quote.replace("…", "4.2"))
    assert found.is_known
    assert code in found.symptom.finds


def test_every_row_has_words_that_people_report_or_a_source() -> None:
    names = [one.name for one in symptoms()]
    assert len(names) == len(set(names)) >= 140
    seen = {name for name, _ in reported()} | {row["is"] for row in public()}
    assert len(set(names) & seen) >= 55


def test_rows_name_checks_that_exist_and_their_source() -> None:
    codes = {check.code for check in all_checks()}
    for one in symptoms():
        assert set(one.finds) <= codes, one.name
        assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+|https://\S+", one.source), one.name
        assert not one.fix.endswith("."), one.name
        assert one.cause.endswith("."), one.name
        assert not one.harmless or one.goes_on, one.name


def test_what_this_machine_shows_of_the_cause_follows_with_its_numbers() -> None:
    facts = changed(limits={"shm_bytes": 64 << 20, "open_files": 256, "open_files_hard": 4096})
    found = list(judge_symptom("received 0 items of ancdata", facts))
    assert [one.code for one in found] == ["symptom", "open-files"]
    assert "256 open files" in found[1].evidence
    assert found[0].command == found[1].command
    killed = list(judge_symptom("Killed", changed(limits={"cpu_seconds": 600})))
    assert [one.code for one in killed] == ["symptom", "cpu-seconds"]
    assert killed[0].command is None, "the command of this machine is in its own finding"


def test_versions_of_this_machine_are_those_of_a_log_from_here_only() -> None:
    here = Path(pytest.__file__).parent.parent
    text = 'Traceback (most recent call last):\n  File "{}/transformers/x.py", line 3, in f\n{}'
    raised = "KeyError: 'somewhere'"
    (found, *_) = judge_symptom(text.format(here, raised), CLEAN)
    assert "is installed here" in found.evidence
    (found, *_) = judge_symptom(text.format("/elsewhere/site-packages", raised), CLEAN)
    assert "is installed here" not in found.evidence
    # A text without paths: what is installed here has the argument, so it rather did not run.
    lacks = "TypeError: TrainingArguments.__init__() got an unexpected keyword argument '{}'"
    (found, *_) = judge_symptom(lacks.format("eval_strategy"), CLEAN)
    assert "pip install -U 'transformers>=4.41" in str(found.command)
    assert "if it was this environment: start Python again" in found.remedy


UNKNOWN = """\
CUDA not available, using CPU
Traceback (most recent call last):
  File "/home/you/bad.py", line 4, in main
    return load(3)
  File "/opt/venv/lib/python3.11/site-packages/datasets/table.py", line 77, in load
    raise KeyError(n)
KeyError: 3
"""


def test_an_unknown_error_is_named_with_its_line_and_the_package_that_raised_it(
    golden: Golden,
) -> None:
    facts = changed(packages={"datasets": "4.8.5"})
    (found,) = judge_symptom(UNKNOWN, facts)
    assert found.severity is Severity.ERROR
    golden(found.title)
    golden(found.evidence)
    golden(found.remedy)
    (own,) = judge_symptom(
        UNKNOWN.replace("/opt/venv/lib/python3.11/site-packages/datasets/", ""), CLEAN
    )
    golden(own.title)
    frames = UNKNOWN.splitlines(keepends=True)
    (alone,) = judge_symptom("".join(frames[:3] + frames[-1:]), CLEAN)
    golden(alone.remedy)


@pytest.mark.parametrize(
    "text",
    [
        "CUDA not available, using CPU",
        "INFO: 4 GPUs required for the large preset, 0 for this one\n" * 9,
        "epoch 1\nloss 0.3\n",
        "",
        'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    main()\n',
    ],
)
def test_prints_and_warnings_are_no_diagnosis(text: str, golden: Golden) -> None:
    with golden.raises(CannotError):
        list(judge_symptom(text, CLEAN))


def test_a_line_that_was_printed_is_not_the_cause_of_an_exception() -> None:
    found = explain(f"No CUDA GPUs are available, so this runs on the CPU\n{UNKNOWN}")
    assert not found.is_known
    assert found.failure.type_name == "KeyError"


def test_a_note_that_training_survives_is_a_warning_and_a_harmless_one_advice() -> None:
    (warning,) = judge_symptom(dict(reported())["tokenizers-forked"], CLEAN)
    assert warning.severity is Severity.WARNING
    (note,) = judge_symptom("OMP: Info #276: omp_set_nested routine deprecated", CLEAN)
    assert note.severity is Severity.ADVICE
    assert name_of(f"{dict(reported())['tokenizers-forked']}\nKilled") == "killed"


def test_the_end_of_a_long_log_is_read() -> None:
    text = "step 1\n" * (MOST_CHARACTERS // 7 + 1) + "Bus error (core dumped)"
    assert len(text) > MOST_CHARACTERS
    assert name_of(text) == "bus-error"
    line = "x" * 5000 + " Address already in use " + "y" * 5000
    (seen,) = judge_symptom(f"OSError: {line}", CLEAN)
    assert len(seen.evidence) < 2000


PROCESSING = "TypeError: Trainer.__init__() got an unexpected keyword argument 'processing_class'"
TOKENIZER = PROCESSING.replace("processing_class", "tokenizer")


@every_row(
    ("text", "versions", "words"),
    [
        (PROCESSING, {}, "pip install -U 'transformers>=4.46'"),
        (PROCESSING, {"transformers": "4.40.2"}, "found: transformers 4.40.2"),
        (TOKENIZER, {}, "use processing_class"),
        (TOKENIZER, {"transformers": "5.23.0"}, "found: transformers 5.23.0"),
        (
            "TypeError: __init__() got an unexpected keyword argument 'use_cpu'",
            {},
            "transformers>=4.32",
        ),
        (
            "TypeError: __init__() got an unexpected keyword argument 'use_cpu'",
            {},
            "or use no_cuda",
        ),
        (
            "TypeError: TrainingArguments.__init__() got an unexpected keyword argument "
            "'eval_strategy'",
            {},
            "4.41",
        ),
        (
            "TypeError: TrainingArguments.__init__() got an unexpected keyword argument "
            "'warmup_ratio'",
            {},
            "warmup_steps",
        ),
        (
            "TypeError: TrainingArguments.__init__() got an unexpected keyword argument "
            "'learn_rate'",
            {},
            "learning_rate",
        ),
        ("t.py: error: unrecognized arguments: --evaluation_strategy steps", {}, "eval_strategy"),
        (
            "t.py: error: unrecognized arguments: --eval_strategy=steps",
            {"transformers": "4.38.2"},
            "evaluation_strategy",
        ),
        (
            "ValueError: not used by the HfArgumentParser: ['--no_cuda', '--use_ipex']",
            {},
            "use_cpu",
        ),
        (
            "accelerate: error: unrecognized arguments: --mpirun_ccl",
            {"accelerate": "1.15.0"},
            "0.28 to 1.12",
        ),
        # Of another library that has a class of this name, or of one that is not named.
        (
            "TypeError: Trainer.__init__() got an unexpected keyword argument 'gpus'",
            {},
            "lightning<2",
        ),
        (
            "TypeError: Client.__init__() got an unexpected keyword argument 'proxies'",
            {},
            "httpx<0.28",
        ),
        (
            "TypeError: Image.__init__() got an unexpected keyword argument 'width'",
            {},
            "Another library",
        ),
        ("AttributeError: 'Version' object has no attribute 'major'", {}, "-U packaging"),
        ("AttributeError: 'str' object has no attribute 'decode'", {}, "This Python no longer"),
        ("AttributeError: 'str' object has no attribute 'keys'", {}, "a name or a path"),
        ("ModuleNotFoundError: No module named 'transformers.deepspeed'", {}, "to 4."),
        ("ModuleNotFoundError: No module named 'torch.nn.attention'", {}, "torch>=2.2"),
        ("ModuleNotFoundError: No module named 'torch.utils.data'", {}, "hides it"),
        (
            "ImportError: cannot import name 'AdamW' from 'transformers' "
            "(/home/you/src/transformers/src/transformers/__init__.py)",
            {},
            "torch.optim.AdamW",
        ),
        (
            "ImportError: cannot import name 'apply_chunking_to_forward' from "
            "'transformers.modeling_utils' (/v/site-packages/transformers/modeling_utils.py)",
            {},
            "apply_chunking_to_forward of transformers",
        ),
        ("AttributeError: module 'torch' has no attribute 'compile'", {}, "torch>=2.0"),
        ("AttributeError: 'TrainingArguments' object has no attribute 'no_cuda'", {}, "to 4.57"),
        (
            "ValueError: The config file at /c.yaml had unknown keys "
            "(['enable_cpu_affinity']), please",
            {},
            "accelerate>=0.29",
        ),
        (
            "ValueError: The config file at /c.yaml had unknown keys (['ipex_config']), please",
            {},
            "1.12",
        ),
    ],
)
def test_the_interface_tables_answer_for_every_version(
    text: str, versions: dict[str, str], words: str
) -> None:
    assert name_of(text, **versions) == "interface"
    assert words in words_of(text, **versions)


def test_a_library_that_asks_for_what_is_gone_is_upgraded_and_never_the_other_downgraded(
    golden: Golden,
) -> None:
    text = (
        'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\n    '
        "import trl\n"
        '  File "/v/lib/python3.11/site-packages/trl/trainer/ppo.py", line 9, in <module>\n'
        "    from transformers import top_k_top_p_filtering\n"
        "ImportError: cannot import name 'top_k_top_p_filtering' from 'transformers' "
        "(/v/x/__init__.py)\n"
    )
    found = explain(text)
    golden(found.symptom.command)


@pytest.mark.parametrize("how", ["words", "file", "stdin"])
def test_the_command_takes_words_a_file_and_stdin(how: str, tmp_path: Path) -> None:
    text, log = "epoch 1\nOSError: [Errno 28] No space left on device\n", tmp_path / "train.log"
    log.write_text(text)
    given = {"words": text, "file": str(log), "stdin": "-"}[how]
    done = CliRunner().invoke(cli, ["doctor", "--symptom", given, "--json"], input=text)
    assert done.exit_code == 1
    assert '"symptom"' in done.output
    assert "huggingface/diffusers#4957" in done.output


def test_a_method_that_is_overridden_with_the_signature_of_another_release(golden: Golden) -> None:
    given = "takes 3 positional arguments but 4 were given"
    words = words_of(f"TypeError: Mine.training_step() {given}")
    assert "num_items_in_batch" in words
    assert "before 4.46" in words
    words = words_of("TypeError: Mine.log() got an unexpected keyword argument 'start_time'")
    golden(words)
    words = words_of(
        "TypeError: Mine._save_checkpoint() got an unexpected keyword argument 'metrics'"
    )
    golden(words)
    words = words_of("TypeError: on_init_end() got an unexpected keyword argument 'model'")
    assert "**kwargs" in words
    for unknown in ("f() takes 3", "Mine.training_step() takes 2"):  # 3 were enough before
        text = f"TypeError: {unknown} positional arguments but {int(unknown[-1]) + 1} were given"
        assert name_of(text) == "unknown"
    assert name_of("TypeError: login() got an unexpected keyword argument 'key'") == "unknown"
    assert name_of("TypeError: __init__() got an unexpected keyword argument 'tuning'") == "unknown"


def test_an_argument_of_another_class(golden: Golden) -> None:
    words = words_of("TypeError: __init__() got an unexpected keyword argument 'weight_decay'")
    golden(words)


def test_an_object_that_was_not_set_up(golden: Golden) -> None:
    words = words_of(
        "AttributeError: 'AcceleratorState' object has no attribute 'distributed_type'"
    )
    golden(words)
    assert "--force-reinstall" not in words


def test_a_message_of_a_library_is_its_own_explanation(golden: Golden) -> None:
    found = explain("ValueError: At most one of fp16 and bf16 can be True, but not both")
    assert not found.is_known
    golden(found.symptom.cause)
    golden(found.symptom.fix)


def test_a_few_typed_words_in_the_form_of_an_exception() -> None:
    assert name_of("StrangeInvalid: the words of it") == "unknown"
    assert name_of("FutureWarning: the words of it") is None
    assert name_of("StrangeInvalid: the words of it\n" * 6) is None


SIZES = (
    "The size of tensor a ({}) must match the size of tensor b ({}) at non-singleton dimension {}"
)


@every_row(
    ("a", "b", "at", "said"),
    [
        (716, 512, 1, "max_length=512"),
        (1024, 512, 1, "truncation=True"),
        (30524, 30522, 2, "resize_token_embeddings"),
        (128256, 2, 0, None),
        (512, 716, 1, None),
        (8, 3, 0, None),
    ],
)
def test_what_two_sizes_mean(a: int, b: int, at: int, said: str | None) -> None:
    text = f"RuntimeError: {SIZES.format(a, b, at)}"
    if said is None:
        assert name_of(text) == "tensor-shapes"
    else:
        assert said in words_of(text)
