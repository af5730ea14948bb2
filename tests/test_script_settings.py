"""Lines of a script that set threads or the type of its weights."""

from __future__ import annotations

from rows import every_row

from cputune.plans.script_settings import named, settings_of


@every_row(
    ("line", "kind", "value"),
    [
        ("torch.set_num_threads(4)", "threads", "4"),
        ("torch.set_num_threads(args.threads)", "threads", None),
        ("os.environ['MKL_NUM_THREADS'] = str(n)", "threads", None),
        ("environ.update({'OMP_NUM_THREADS': '3', 'HOME': '/x'})", "threads", "3"),
        ("os.environ.update(OMP_NUM_THREADS='3')", "threads", "3"),
        ("os.putenv('OMP_NUM_THREADS', '3')", "threads", "3"),
        ("model = model.to(torch.bfloat16)", "weights", "bfloat16"),
        ("model.half()", "weights", "float16"),
        ("AutoModel.from_pretrained(name, dtype='bfloat16')", "weights", "bfloat16"),
    ],
)
def test_a_line_that_sets_something(line: str, kind: str, value: str | None) -> None:
    (found,) = settings_of(f"import os, torch\n{line}\n")
    assert (found.kind, found.value, found.line, found.function) == (kind, value, 2, "")
    assert named(found, "src/train.py").startswith("train.py:2 ")


def test_the_function_around_a_line_is_named_but_main() -> None:
    text = (
        "def main():\n    torch.set_num_threads(1)\ndef begin(n):\n    torch.set_num_threads(2)\n"
    )
    assert [(one.function, one.value) for one in settings_of(text)] == [("", "1"), ("begin", "2")]


@every_row(
    "line",
    [
        "os.environ.setdefault('OMP_NUM_THREADS', '2')",
        "os.environ['HOME'] = '/x'",
        "print(os.environ['OMP_NUM_THREADS'])",
        "model.to('cpu')",
        "model.to(torch.float32)",
        "AutoModel.from_pretrained(name, dtype='auto')",
        "torch.set_num_threads(",
    ],
)
def test_a_line_that_sets_nothing(line: str) -> None:
    assert settings_of(line) == ()
