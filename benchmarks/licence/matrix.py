"""Script × lever: what the licence says of a corpus of scripts, beside what is true of each.

    python benchmarks/licence/matrix.py [--only WORD] [-o FILE]

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
from cputune.plans.equivalence import Licence
from cputune.plans.workload import Workload
from cputune.ranks.runner import ProcessRunner
from cputune.records.steps import TrialError

MAY = "may be cut"


def asked(planted: Planted, folder: Path) -> tuple[Licence, str | None]:
    """What the licence says of a script, and why its padding is kept (empty: it has none)."""
    path = folder / f"{planted.name.replace(' ', '_').replace(',', '').replace(':', '')}.py"
    path.write_text(source(planted), encoding="utf-8")
    with ProcessRunner(Workload.script([str(path)]), probe(), offline=True) as runner:
        for _ in islice(runner.steps(runner.today_as_typed), 4):
            pass
        runner.ask()
        workload = runner.workload
    padding = workload.padding
    return workload.licence or Licence(), None if padding is None else padding.kept or MAY


def judged(planted: Planted, licence: Licence, padding: str | None) -> list[tuple[str, bool, str]]:
    """Each lever of a script, whether it trains the same, and why it is refused."""
    rows = [("ranks", planted.parts, licence.refuses("ranks") or licence.unlike)]
    if planted.padding is not None:
        rows.append(("padding", planted.padding, "" if padding == MAY else padding or ""))
    if planted.accumulates is not None:
        rows.append(("accumulation", planted.accumulates, licence.refuses("accumulation") or ""))
    if planted.workers is not None:
        rows.append(("workers", planted.workers, licence.refuses("workers") or ""))
    return rows


def main() -> int:
    """Print the table; 1 where a lever was granted that changes the training."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="scripts whose name holds this word")
    parser.add_argument("--features", action="store_true", help="those of features.py alone")
    parser.add_argument("-o", "--output", help="the table as Markdown")
    options = parser.parse_args()
    lines = ["| script | lever | true | the licence | largest deviation |", "|---|---|---|---|---|"]
    wrong, refused, harmless = [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        for planted in FEATURES if options.features else (*CORPUS, *FEATURES):
            if options.only not in planted.name:
                continue
            try:
                licence, padding = asked(planted, Path(folder))
            except TrialError as error:
                lines.append(f"| {planted.name} | – | – | it does not train: {error} | – |")
                wrong.append(f"{planted.name}: does not train")
                print(lines[-1], flush=True)
                continue
            rows = judged(planted, licence, padding)
            for lever, true, why in rows:
                may = true and planted.repeats
                harmless += may
                if may and why:
                    refused.append(f"{planted.name}: {lever}")
                if not may and not why:
                    wrong.append(f"{planted.name}: {lever}")
                apart = licence.largest(lever)
                figure = "–" if apart is None else f"{apart:.1e}"
                truth = "the same" if may else "another training"
                lines.append(
                    f"| {planted.name} | {lever} | {truth} | {why or 'granted'} | {figure} |"
                )
                print(lines[-1], flush=True)
    granted = 1 - len(refused) / harmless if harmless else 1.0
    end = (
        f"{len(wrong)} wrong licences {wrong}; "
        f"{granted:.0%} of {harmless} harmless levers granted, not {refused}"
    )
    print(end)
    if options.output:
        Path(options.output).write_text("\n".join([*lines, "", end, ""]), encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
