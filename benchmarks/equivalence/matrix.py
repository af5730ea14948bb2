"""Script × lever: what the model_answers says of a corpus of scripts, beside what is true of each.

    python benchmarks/equivalence/matrix.py [--only WORD] [-o FILE]

Each script is started twice: as typed, and to ask its model. What is true of it is known by how it
is written (``corpus``). Nothing is measured.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from corpus import CORPUS, Planted, source
from features import FEATURES

from cputune.host.probing import probe
from cputune.plans.equivalence import ModelAnswers
from cputune.plans.workload import Workload
from cputune.ranks.runner import ProcessRunner
from cputune.records.steps import TrialError

MAY = "may be cut"


def asked(planted: Planted, folder: Path) -> tuple[ModelAnswers, str | None]:
    """What the model_answers says of a script, and why its padding is kept (empty: it has none)."""
    path = folder / f"{planted.name.replace(' ', '_').replace(',', '').replace(':', '')}.py"
    path.write_text(source(planted), encoding="utf-8")
    with ProcessRunner(Workload.script([str(path)]), probe(), offline=True) as runner:
        for _ in islice(runner.steps(runner.baseline_as_typed), 4):
            pass
        runner.check_model()
        workload = runner.workload
    padding = workload.padding
    return (
        workload.model_answers or ModelAnswers(),
        None if padding is None else padding.kept or MAY,
    )


def judged(
    planted: Planted, model_answers: ModelAnswers, padding: str | None
) -> list[tuple[str, bool, str]]:
    """Each knob value of a script, whether it trains the same, and why it is refused."""
    rows = [("ranks", planted.parts, model_answers.refuses("ranks") or model_answers.unlike)]
    if planted.padding is not None:
        rows.append(("padding", planted.padding, "" if padding == MAY else padding or ""))
    if planted.accumulates is not None:
        rows.append(
            ("accumulation", planted.accumulates, model_answers.refuses("accumulation") or "")
        )
    if planted.workers is not None:
        rows.append(("workers", planted.workers, model_answers.refuses("workers") or ""))
    return rows


def main() -> int:
    """Print the table; 1 if a knob value was accepted that changes the training."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="scripts whose name holds this word")
    parser.add_argument("--features", action="store_true", help="those of features.py alone")
    parser.add_argument("-o", "--output", help="the table as Markdown")
    options = parser.parse_args()
    lines = [
        "| script | knob value | true | the check | largest deviation |",
        "|---|---|---|---|---|",
    ]
    wrong, refused, harmless = [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        for planted in FEATURES if options.features else (*CORPUS, *FEATURES):
            if options.only not in planted.name:
                continue
            try:
                model_answers, padding = asked(planted, Path(folder))
            except TrialError as error:
                lines.append(f"| {planted.name} | – | – | it does not train: {error} | – |")
                wrong.append(f"{planted.name}: does not train")
                print(lines[-1], flush=True)
                continue
            rows = judged(planted, model_answers, padding)
            for lever, true, why in rows:
                may = true and planted.repeats
                harmless += may
                if may and why:
                    refused.append(f"{planted.name}: {lever}")
                if not may and not why:
                    wrong.append(f"{planted.name}: {lever}")
                apart = model_answers.largest(lever)
                figure = "–" if apart is None else f"{apart:.1e}"
                truth = "the same" if may else "another training"
                lines.append(
                    f"| {planted.name} | {lever} | {truth} | {why or 'accepted'} | {figure} |"
                )
                print(lines[-1], flush=True)
    accepted = 1 - len(refused) / harmless if harmless else 1.0
    end = (
        f"{len(wrong)} wrong answers {wrong}; "
        f"{accepted:.0%} of {harmless} harmless knob values accepted, not {refused}"
    )
    print(end)
    if options.output:
        Path(options.output).write_text("\n".join([*lines, "", end, ""]), encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
