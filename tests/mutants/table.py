"""Every fault against the tests of its room, as a table."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from mutants.planting import planted
from mutants.rooms import PROJECT, Fault, Room, harmless, rooms
from mutants.trying import noticed

LEAST_CAUGHT = 0.9
"""Of all faults; those that may survive are counted as survivors too."""

KEPT = PROJECT / ".mutants"
"""What survived the last time: a file for each module."""

HEAD = f"{'module':<40} {'faults':>7} {'caught':>7} {'survived':>9} {'harmless':>9} {'share':>6}"


def main() -> int:
    """Try what is asked for, then print the table of all that was tried, now or earlier."""
    given = _arguments()
    began = time.monotonic()
    red: list[str] = []
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if not given.table:
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            copy = Path(folder) / "project"
            shutil.copytree(PROJECT, copy, ignore=shutil.ignore_patterns(".*", "mutants"))
            for room in rooms():
                try:
                    _try_room(copy, room, given.words, given.most)
                except RuntimeError as error:
                    red.append(str(error))
    enough = _print()
    sys.stderr.writelines(f"not tried: {why}\n" for why in red)
    sys.stderr.write(f"{time.monotonic() - began:.0f} s\n")
    return 0 if enough and not red else 1


def _try_room(copy: Path, room: Room, words: Sequence[str], most: int | None) -> None:
    for module in room.modules:
        if words and not any(word in module for word in words):
            continue
        planted_here = list(planted(module, (copy / module).read_text(encoding="utf-8"), most=most))
        if not planted_here:
            continue
        faults = [Fault(module=module, was=m.was, becomes=m.becomes) for m in planted_here]
        found = noticed(copy, module, planted_here, room)
        survived = []
        for mutant, fault, caught in zip(planted_here, faults, found, strict=True):
            if not caught:
                survived.append(fault)
                sys.stderr.write(f"{module}:{mutant.line}\n  - {fault.was}\n  + {fault.becomes}\n")
        _keep(module, len(faults) - len(survived), survived)


def _print() -> bool:
    """Print the table; whether enough is caught, and every survivor is known as harmless."""
    known = harmless()
    total = [0, 0, 0]
    unknown: list[Fault] = []
    print(HEAD)
    for room in rooms():
        for module in room.modules:
            if not _place(module).exists():
                continue
            caught, survived = _counted(module)
            if not caught and not survived:
                continue  # it holds nothing to decide
            unknown += [fault for fault in survived if fault not in known]
            counts = (caught, len(survived), sum(fault in known for fault in survived))
            total = [before + more for before, more in zip(total, counts, strict=True)]
            print(_row(module, *counts), flush=True)
    print(_row("all", *total))
    for fault in unknown:
        print(f"\n{fault.module}\n  - {fault.was}\n  + {fault.becomes}")
    return not unknown and total[0] >= LEAST_CAUGHT * (total[0] + total[1])


def _row(name: str, caught: int, survived: int, known: int) -> str:
    share = caught / max(1, caught + survived)
    return f"{name:<40} {caught + survived:>7} {caught:>7} {survived:>9} {known:>9} {share:>6.0%}"


def _place(module: str) -> Path:
    return KEPT / f"{module.removesuffix('.py').replace('/', '.')}.json"


def _keep(module: str, caught: int, survived: Sequence[Fault]) -> None:
    KEPT.mkdir(exist_ok=True)
    document = {"caught": caught, "survived": [asdict(fault) for fault in survived]}
    _place(module).write_text(json.dumps(document, indent=1), encoding="utf-8")


def _counted(module: str) -> tuple[int, list[Fault]]:
    document = json.loads(_place(module).read_text(encoding="utf-8"))
    return document["caught"], [Fault(**entry) for entry in document["survived"]]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutants")
    parser.add_argument("words", nargs="*", help="of the paths of modules; all without any")
    parser.add_argument("--most", type=int, help="of each module only so many, always the same")
    parser.add_argument("--table", action="store_true", help="only print what is known")
    return parser.parse_args()
