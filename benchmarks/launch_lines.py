"""How long is each emitted launch? A table: kinds of plan × formats, lines and files.

    python benchmarks/launch_lines.py              # lines of the main file, files beside it
    python benchmarks/launch_lines.py --verify     # also trains by each, and counts its checks
    python benchmarks/launch_lines.py --like DIR   # lines that `emit --like` changes in own files

A cell is the lines of the main file below its header, ``+`` the lines of the files beside it, and
in brackets how many files there are. With ``--verify`` follow the checks that passed, of those that
were made. The scripts train a tiny model on this machine, bound to CPUs 0 and 1.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import cputune
from cputune.emitters import FORMATS, PRINTED_FORMATS, Emission, EmittedFile, render
from cputune.emitters.like import launch_in, like
from cputune.errors import CputuneError
from cputune.host import LiveHost
from cputune.host.facts import HostFacts
from cputune.launch.edit import unified
from cputune.plans.layout import baseline_plan
from cputune.plans.plan import Plan
from cputune.plans.workload import Workload
from cputune.verifier import verify

MODEL = """
import torch, transformers
config = transformers.BertConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
    intermediate_size=128, vocab_size=500, max_position_embeddings=64)
model = transformers.BertForSequenceClassification(config)
rows = [{"input_ids": [3 + i % 90] * (8 + i % 32), "labels": i % 2} for i in range(512)]
def collate(rows):
    longest = max(len(row["input_ids"]) for row in rows)
    ids = [row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in rows]
    return {"input_ids": torch.tensor(ids), "labels": torch.tensor([r["labels"] for r in rows]),
        "attention_mask": torch.tensor([[int(i > 0) for i in row] for row in ids])}
"""
TRAINER = f"""{MODEL}
parser = transformers.HfArgumentParser(transformers.TrainingArguments)
(args,) = parser.parse_args_into_dataclasses()
transformers.Trainer(model, args, train_dataset=rows, data_collator=collate).train()
"""
LOOP = f"""{MODEL}
import accelerate
accelerator = accelerate.Accelerator()
loader = torch.utils.data.DataLoader(rows, batch_size=8, shuffle=True, collate_fn=collate)
model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)
for batch in loader:
    loss = model(**batch).loss
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
"""
FEW = 5
OF_TRAINER = ("--output_dir", "out", "--max_steps", "20", "--report_to", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of plan and what it trains; ``framework`` None: a script that was never run."""

    name: str
    framework: str | None = "trainer"
    ranks: int = 1
    precision: str = "fp32"
    settings: tuple[tuple[str, str], ...] = ()

    def workload(self) -> Workload:
        """The job, as a study would know it."""
        if self.framework == "recipe":
            return Workload.from_recipe("bert-mini-sst2")
        arguments = () if self.framework == "accelerate" else OF_TRAINER
        name = "loop.py" if self.framework == "accelerate" else "train.py"
        job = Workload.script([name, *arguments], global_batch_size=8)
        seen = self.framework is not None
        parses = self.framework == "trainer" if seen else None
        return replace(job, framework=self.framework, parses_arguments=parses)

    def plan(self, facts: HostFacts) -> Plan:
        """The plan, on CPUs 0 and 1."""
        cpus = ((0, 1),) if self.ranks == 1 else ((0,), (1,))
        usual = baseline_plan(facts)
        return replace(
            usual,
            as_found=False,
            processes_per_node=self.ranks,
            threads_per_process=2 // self.ranks,
            cpus=cpus,
            precision=self.precision,
            settings=dict(self.settings),
        )


KINDS = (
    Kind(name="Trainer, 1 rank, fp32"),
    Kind(name="Trainer, 1 rank, bf16", precision="bf16"),
    Kind(name="Accelerator, 1 rank, fp32", framework="accelerate"),
    Kind(name="Accelerator, 1 rank, bf16", framework="accelerate", precision="bf16"),
    Kind(name="recipe, 1 rank, fp32", framework="recipe"),
    Kind(name="never run, 1 rank, fp32", framework=None),
    Kind(name="dropout", settings=(("dropout", "bytes"),)),
    Kind(name="order", settings=(("order", "length"),)),
    Kind(name="padding", settings=(("padding", "cut"),)),
    Kind(name="Trainer, 2 ranks", ranks=2),
    Kind(name="recipe, 2 ranks", framework="recipe", ranks=2),
    Kind(name="Accelerator, 2 ranks", framework="accelerate", ranks=2),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--verify", action="store_true", help="train by each launch, too")
    parser.add_argument("--like", type=Path, help="a folder of launch scripts, YAML, jobs")
    parser.add_argument("--only", default="", help="kinds whose name holds this")
    options = parser.parse_args()
    facts = cputune.probe()
    if options.like is not None:
        changed_lines(options.like, facts)
        return
    names = (*PRINTED_FORMATS, *FORMATS)
    width = 24 if options.verify else 14
    print(f"{'':<28}" + "".join(f"{name:>{width}}" for name in names))
    with tempfile.TemporaryDirectory(prefix="cputune-lines-") as place:
        os.chdir(place)
        Path("train.py").write_text(TRAINER)
        Path("loop.py").write_text(LOOP)
        for kind in KINDS:
            if options.only in kind.name:
                cells = (cell(kind, name, facts, run=options.verify) for name in names)
                said = "".join(f"{text:>{width}}" for text in cells)
                print(f"{kind.name:<28}{said}", flush=True)


def changed_lines(folder: Path, facts: HostFacts) -> None:
    """Of each file the lines that the guides' plan changes, comments aside."""
    few = []
    for path in sorted(folder.iterdir()):
        text = path.read_text()
        try:
            launch = launch_in(text, path.name)
            words = ("train.py",) if launch is None else launch.argv
            workload = Workload.script(list(words), global_batch_size=8)
            asked = Emission(facts=facts, workload=workload, host=LiveHost())
            done = like(text, path.name, None, asked)
        except CputuneError as error:
            few.append(False)
            print(f"{path.name}: refused: {error}")
            continue
        lines = unified(path.name, text, done.text).splitlines()[2:]
        added = [line for line in lines if line.startswith("+") and line[:3] != "+# "]
        changed = max(len(added), sum(line.startswith("-") for line in lines))
        few.append(changed <= FEW)
        print(f"{path.name}: {changed} lines changed, {len(done.beside)} files beside")
    print(f"{sum(few)} of {len(few)} with at most {FEW} lines changed")


def cell(kind: Kind, format: str, facts: HostFacts, *, run: bool) -> str:
    """Lines and files of one launch, and what its checks say of it."""
    try:
        files = written(kind, format, facts)
    except CputuneError as error:
        return f"- {error}"[:12]
    main, *others = files
    beside = sum(file.text.count("\n") for file in others)
    text = f"{below_header(main.text)}+{beside} ({len(files)})"
    if run and FORMATS.get(format) and not main.name.endswith((".yaml", "slurm.sh")):
        text += f" {checked(files)}"
    return text


def written(kind: Kind, format: str, facts: HostFacts) -> tuple[EmittedFile, ...]:
    """The files of this plan."""
    asked = Emission(facts=facts, host=LiveHost(), python=sys.executable)
    return render(kind.plan(facts), kind.workload(), format, asked)


def below_header(text: str) -> int:
    """Lines of a main file below the comment that it begins with, without the plan's own line."""
    lines = text.splitlines()
    comments = itertools.takewhile(lambda line: line.startswith("#"), lines)
    return len(lines) - len(list(comments)) - text.count("\n# cputune-plan:")


def checked(files: tuple[EmittedFile, ...]) -> str:
    """``15/15``: the checks of `cputune verify` that passed, of those that were made."""
    for file in files:
        Path(file.name).write_text(file.text)
        Path(file.name).chmod(0o755 if file.executable else 0o644)
    (verdict,) = verify([Path(files[0].name)], steps=6)
    states = [check.state for check in verdict.checks]
    bad = [check.name for check in verdict.checks if check.state == "failed"]
    return f"{states.count('passed')}/{len(states)} " + ",".join(bad)


if __name__ == "__main__":
    main()
