"""Forms of training that people have: each is tuned, or refused with its reason, and in what time.

    python benchmarks/forms.py                                # all of them, a few minutes
    python benchmarks/forms.py --only layer_drop --only "trl sft"
    python benchmarks/forms.py --results forms.json --write

The scripts are those of ``tests/forms``, beside the commands of TRL: Lightning, sentence-
transformers, torch.compile, several optimizers, averages of weights, streams, losses over a
batch. ``public_scripts.py`` has those that others wrote. Each is tuned as it is typed, in an empty
folder, by a study of three trials. What the study says, and after how many seconds, is the row; a
refusal is to come within ``MOST_SECONDS``.

Every row that was run is kept in ``--results FILE`` (JSON) and is run again with ``--again`` alone;
``--write`` puts what is kept between the marks of benchmarks/scripts.md.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from public_scripts import PAGE, TRL, make_place, read

HERE = Path(__file__).resolve().parent.parent
FORMS = HERE / "tests" / "forms"
BEGIN, END = "<!-- forms: begin -->", "<!-- forms: end -->"
MOST_SECONDS = 30
"""Within which a refusal is to come."""

CHOICE = tuple(word.replace("/rows", "/choice") for word in TRL)
COMMANDS = {
    "trl sft": ("trl", "sft", *TRL),
    "trl dpo": ("trl", "dpo", *CHOICE),
    "trl reward": ("trl", "reward", *CHOICE),
    "trl kto": ("trl", "kto", *CHOICE),
}
NEEDS = {"lightning": "lightning", "fabric": "lightning", "grpo": "trl", "trl": "trl"}


def commands() -> dict[str, tuple[str, ...]]:
    """What stands after ``--``, by name."""
    scripts = sorted(path for path in FORMS.glob("*.py") if path.stem != "made")
    return {**{path.stem: (str(path), "{place}") for path in scripts}, **COMMANDS}


def about(name: str) -> str:
    """What a form is, in the words of its script."""
    path = FORMS / f"{name}.py"
    if not path.exists():
        return f"`{name} …`"
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or name
    return said.rstrip(".")


def main() -> None:
    """Run the forms that are asked for, one at a time, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--place", type=Path, help="where models and data stay between runs")
    parser.add_argument("--only", action="append", help="name of a form; may be given again")
    parser.add_argument("--again", action="store_true", help="run forms that are kept, too")
    parser.add_argument("--results", type=Path, help="JSON file in which rows are kept")
    parser.add_argument("--max-time", default="100s", help="of each study")
    parser.add_argument("--write", action="store_true", help="put the table into scripts.md here")
    args = parser.parse_args()
    kept = read(args.results)
    with tempfile.TemporaryDirectory() as folder:
        place = (args.place or Path(folder) / "place").resolve()
        for name, words in commands().items():
            if (args.only and name not in args.only) or (name in kept and not args.again):
                continue
            package = NEEDS.get(re.split(r"[ _]", name)[0])
            if package is not None and find_spec(package) is None:
                print(f"{name}: not run: pip install {package}", flush=True)
                continue
            if not place.exists():
                make_place(place)
            cells = tuned([word.format(place=place) for word in words], place, args.max_time)
            print(f"{name}: {cells['outcome']} ({cells['seconds']} s)", flush=True)
            kept = {**read(args.results), name: cells}
            if args.results is not None:
                text = json.dumps(kept, indent=1, ensure_ascii=False, sort_keys=True)
                args.results.write_text(text + "\n", encoding="utf-8")
    if args.write:
        write(kept)


def tuned(words: list[str], place: Path, most: str) -> dict[str, str]:
    """What a study says of a command, and after how many seconds."""
    began = time.monotonic()
    bin_ = Path(sys.executable).parent
    variables = {"PATH": f"{bin_}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
    study = ("tune", "--budget", "3", "--max-time", most, "--share-machine", "--json")
    with tempfile.TemporaryDirectory() as work:
        done = subprocess.run(
            [sys.executable, "-m", "cputune", *study, "--", *words],
            cwd=work,
            env={**os.environ, **variables, "HF_HOME": str(place / "hf")},
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=600,
        )
        wrote = {*os.listdir(work)} - {"cputune.json", "cputune.db"}
    seconds = time.monotonic() - began
    outcome = outcome_of(done.stdout, done.stderr)
    if outcome.startswith("refused") and seconds > MOST_SECONDS:
        outcome = f"✗ late: {outcome}"
    if wrote:
        outcome = f"✗ it wrote {', '.join(sorted(wrote))}"
    return {"outcome": outcome, "seconds": f"{seconds:.0f}"}


def outcome_of(stdout: str, stderr: str) -> str:
    """The trials that gave a number, or why there is none; and why there are no two ranks."""
    try:
        result = json.loads(stdout)
    except ValueError:
        result = {}
    trials = result.get("trials")
    if not trials:
        told = re.findall(r"^error: (.*)", stderr, re.MULTILINE)
        said = result.get("error", {}).get("message") or (told or stderr.splitlines()[-1:])[0]
        return f"refused: {' '.join(str(said).replace(sys.executable, 'python').split())[:240]}"
    good = [one for one in trials if one["state"] != "failed"]
    words = f"tunes: {len(good)} of {len(trials)} trials measured"
    failed = [one["reason"].splitlines()[0] for one in trials if one["state"] == "failed"]
    return "; ".join([words, *dict.fromkeys(reason[:160] for reason in failed)])


def write(kept: Mapping[str, Mapping[str, str]]) -> None:
    """The table into the page."""
    text = PAGE.read_text(encoding="utf-8")
    passed = [name for name, cells in kept.items() if not cells["outcome"].startswith("✗")]
    table = [
        f"{len(passed)} of {len(kept)} are tuned, or are refused within {MOST_SECONDS} s with the "
        "reason (`python benchmarks/forms.py`):",
        "",
        "| form | what a study of three trials says | seconds |",
        "|---|---|---|",
        *(
            f"| {about(name)} | {cells['outcome'].replace('|', '/')} | {cells['seconds']} |"
            for name, cells in kept.items()
        ),
    ]
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text("\n".join([before + BEGIN, "", *table, "", END]) + after, encoding="utf-8")


if __name__ == "__main__":
    main()
