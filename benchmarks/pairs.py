"""Which transformers trains beside which accelerate, by training: ``python benchmarks/pairs.py``.

Every pair of the newest patches of two minor releases trains a tiny model twice on the CPU: three
steps of a ``Trainer`` with its arguments parsed as scripts do, evaluation and a checkpoint, and
three steps of a loop with an ``Accelerator``, gathering and saving. The outcome is written to
``cputune/stack/pairs.json``, which ``cputune.stack.fit`` reads: what ran, what did not and with
which error. What was not tried is not in it.

Packages are installed without their dependencies into folders of their own (``pip install --no-deps
--target``), with the tokenizers, huggingface_hub and numpy that the pair declares, and put before
the others on the import path. torch is imported once and a process forked from there for each pair:
the pairs differ in everything but torch. Run again, it goes on where it was, and prints counts.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

OUTPUT = Path(__file__).resolve().parent.parent / "cputune" / "stack" / "pairs.json"
FIRST = {"transformers": "4.36", "accelerate": "0.26"}
BASE = [
    *("packaging", "psutil", "pyyaml", "tqdm", "regex", "requests", "filelock", "fsspec", "httpx"),
    *("httpx2", "typer", "shellingham", "safetensors", "hf-xet", "setuptools"),
]
OLD_NUMPY = "numpy==1.26.4"
LIMIT_SECONDS = 240


def main() -> None:
    """Install what is missing, train what is left, write after each pair."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "cputune-pairs")
    parser.add_argument("--torch", default="2.13.0+cpu")
    parser.add_argument("--minutes", type=float, default=600.0, help="stop after so long")
    parser.add_argument("--only", nargs=2, metavar=("TRANSFORMERS", "ACCELERATE"))
    parser.add_argument("--fresh", action="store_true", help="try again what was tried")
    parser.add_argument("-o", "--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    until = time.monotonic() + 60 * options.minutes
    options.work.mkdir(parents=True, exist_ok=True)
    python = base(options.work, options.torch)
    done = {} if options.fresh else read(options.output, options.torch)
    versions = {name: newest_patches(python, name) for name in FIRST}
    wanted = [tuple(options.only)] if options.only else in_order(versions)
    servers: dict[str, Server] = {}
    try:
        for count, pair in enumerate(pair for pair in wanted if pair not in done):
            if time.monotonic() > until:
                break
            folders, numpy = places(python, options.work, *pair)
            if folders == []:
                continue
            if folders is None:
                done[pair] = {"installs": numpy}
            else:
                key = numpy or "numpy of the base"
                if key not in servers:
                    extra = [str(installed(python, options.work, numpy))] if numpy else []
                    servers[key] = Server(python, extra)
                done[pair] = servers[key].train(folders)
            print(count + 1, *pair, done[pair] or "ran", flush=True)
            write(options.output, options.torch, done)
    finally:
        for server in servers.values():
            server.end()
    ran = sum(not errors for errors in done.values())
    print(f"{ran} of {len(done)} pairs ran; {len(in_order(versions)) - len(done)} were not tried")


# --- what to try ----------------------------------------------------------------------------


def newest_patches(python: str, name: str) -> list[str]:
    """The newest patch of each minor from FIRST on, the newest first."""
    said = pip(python, "index", "versions", name).stdout
    found = re.search(r"Available versions: (.*)", said)
    kept: dict[tuple[int, ...], str] = {}
    for version in found[1].split(", ") if found else ():
        numbers = tuple(int(part) for part in re.findall(r"\d+", version))
        if numbers[:2] >= tuple(int(part) for part in FIRST[name].split(".")):
            kept.setdefault(numbers[:2], version)
    return list(kept.values())


def in_order(versions: dict[str, list[str]]) -> list[tuple[str, str]]:
    """The newest of each beside all, then the others by halves: what lies farthest apart first."""
    left, right = versions["transformers"], versions["accelerate"]

    def halves(place: int, count: int) -> int:
        """How often a range has to be halved until this place of it comes."""
        ends, depth = (0, count - 1), 0
        while place not in ends:
            middle, depth = sum(ends) // 2, depth + 1
            ends = (ends[0], middle) if place <= middle else (middle, ends[1])
        return depth

    places = [(i, j) for i in range(len(left)) for j in range(len(right))]
    places.sort(key=lambda p: (0 not in p, halves(p[1], len(right)), halves(p[0], len(left)), p))
    return [(left[i], right[j]) for i, j in places]


# --- what is installed ----------------------------------------------------------------------


def pip(python: str, *words: str) -> subprocess.CompletedProcess[str]:
    """One run of pip."""
    return subprocess.run(
        (python, "-m", "pip", *words), capture_output=True, text=True, check=False
    )


def base(work: Path, torch: str) -> str:
    """An environment with torch and what everything needs."""
    python = work / "base" / "bin" / "python"
    if not (work / "base" / "made").exists():
        subprocess.run((sys.executable, "-m", "venv", str(work / "base")), check=True)
        done = pip(str(python), "install", "-q", f"torch=={torch}", "numpy", *BASE)
        if done.returncode:
            sys.exit(done.stderr)
        (work / "base" / "made").touch()
    return str(python)


def installed(python: str, work: Path, requirement: str) -> Path | None:
    """The folder of one requirement, installed without its dependencies; None: it cannot be."""
    place = work / re.sub(r"[^\w.]+", "_", requirement)
    if not place.exists():
        making = place.with_name(place.name + ".part")
        done = pip(
            python, "install", "-q", "--no-deps", "--no-compile", "--only-binary", ":all:",
            "--target", str(making), requirement,
        )  # fmt: skip
        if done.returncode:
            print(done.stderr.strip()[-300:], file=sys.stderr)
            return None
        making.rename(place)
    return place


def places(
    python: str, work: Path, transformers: str, accelerate: str
) -> tuple[list[str] | None, str | None]:
    """The folders of a pair and of what it declares, and its numpy where that is the old one.

    No folder where the metadata of transformers wants another accelerate: that needs no trial.
    """
    pair = (f"transformers=={transformers}", f"accelerate=={accelerate}")
    folders = []
    for requirement in pair:
        place = installed(python, work, requirement)
        if place is None:
            return None, f"pip finds no {requirement}"
        folders.append(place)
    from packaging.specifiers import SpecifierSet

    declared = [line for folder in folders for line in required(folder)]
    extras = [line for line in required(folders[0], "torch") if line.startswith("accelerate")]
    if not SpecifierSet(specifiers(extras, "accelerate")).contains(accelerate):
        return [], None
    for name in ("tokenizers", "huggingface_hub"):
        wanted = specifiers(declared, name)
        place = installed(python, work, f"{name}{wanted}")
        if place is None:
            return None, f"pip finds no {name}{wanted}"
        folders.append(place)
    old = "<2" in specifiers(declared, "numpy")
    return [str(folder) for folder in folders], OLD_NUMPY if old else None


def required(folder: Path, extra: str | None = None) -> list[str]:
    """What a package declares without extras, or with this one alone."""
    text = next(folder.glob("*.dist-info/METADATA")).read_text(encoding="utf-8")
    lines = re.findall(r"(?m)^Requires-Dist: (.*)$", text.partition("\n\n")[0])
    if extra:
        return [line for line in lines if re.search(rf"extra\s*==\s*['\"]{extra}['\"]", line)]
    return [line for line in lines if "extra" not in line]


def specifiers(declared: list[str], name: str) -> str:
    """All that is declared for one package, joined: ``>=0.14,<0.19``."""
    found = []
    for line in declared:
        told = re.match(r"([\w.-]+)\s*\(?([^;)]*)", line)
        if told and told[1].lower().replace("-", "_") == name:
            found += [part.strip() for part in told[2].split(",") if part.strip()]
    return ",".join(sorted(set(found)))


# --- training -------------------------------------------------------------------------------


class Server:
    """A process with torch imported, that forks one of its own for each pair."""

    def __init__(self, python: str, first: list[str]) -> None:
        environment = {
            **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
            "PYTHONPATH": os.pathsep.join(first),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        self._process = subprocess.Popen(
            (python, __file__, "--serve"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def train(self, folders: list[str]) -> dict[str, str]:
        """What failed, by stage; nothing where all ran."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(folders) + "\n")
        self._process.stdin.flush()
        told: dict[str, str] = json.loads(self._process.stdout.readline())
        return told

    def end(self) -> None:
        """Let it end."""
        self._process.communicate()


def serve() -> None:
    """Import torch, then fork for every line of folders."""
    for name in ("numpy", "torch", "torch._dynamo", "torch.distributed.fsdp", "psutil", "requests"):
        with contextlib.suppress(ImportError):
            __import__(name)
    for line in sys.stdin:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.setsid()
            with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nothing:
                os.chdir(folder)
                os.dup2(nothing.fileno(), 1)
                os.dup2(nothing.fileno(), 2)
                sys.path[:0] = json.loads(line)
                os.write(writing, json.dumps(try_pair()).encode())
            os._exit(0)
        os.close(writing)
        until, said = time.monotonic() + LIMIT_SECONDS, b""
        while select.select([reading], [], [], max(0.0, until - time.monotonic()))[0]:
            piece = os.read(reading, 65536)
            if not piece:
                break
            said += piece
        else:
            os.killpg(child, signal.SIGKILL)
            said = json.dumps({"trainer": f"did not end in {LIMIT_SECONDS} seconds"}).encode()
        os.close(reading)
        _, status = os.waitpid(child, 0)
        text = said.decode() or json.dumps({"import": f"the process ended with status {status}"})
        print(text, flush=True)


def try_pair() -> dict[str, str]:
    """The stages that fail, each with the end of its error."""
    failed: dict[str, str] = {}
    for name, stage in (("trainer", with_trainer), ("accelerator", with_accelerator)):
        try:
            stage()
        except BaseException as error:
            traceback.print_exc()
            said = " ".join(f"{type(error).__name__}: {error}".split())
            failed[name] = re.sub(r"/\S*/(?=[\w.-]+)", "", said)[:300]
    return failed


def tiny_model() -> object:
    """A BERT of two layers that classifies."""
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    return BertForSequenceClassification(
        BertConfig(vocab_size=50, intermediate_size=32, max_position_embeddings=16, **sizes)
    )


def rows() -> list[dict[str, list[int] | int]]:
    """Eight of them, each of eight words and a label."""
    return [
        {"input_ids": [(i + j) % 50 for j in range(8)], "attention_mask": [1] * 8, "labels": i % 2}
        for i in range(8)
    ]


def with_trainer() -> None:
    """Three steps, evaluation and a checkpoint, the arguments parsed as scripts do."""
    import math

    from transformers import HfArgumentParser, Trainer, TrainingArguments

    names = TrainingArguments.__dataclass_fields__
    strategy = "eval_strategy" if "eval_strategy" in names else "evaluation_strategy"
    words = (
        f"--output_dir out --use_cpu True --max_steps 3 --per_device_train_batch_size 2 "
        f"--{strategy} steps --eval_steps 3 --save_steps 3 --logging_steps 1 --report_to none"
    )
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(words.split())
    trainer = Trainer(
        model=tiny_model(), args=arguments, train_dataset=rows(), eval_dataset=rows(),
        compute_metrics=lambda told: {"n": float(len(told.predictions))},
    )  # fmt: skip
    done = trainer.train()
    assert done.global_step == 3, "it did not train"
    assert math.isfinite(done.training_loss), "it did not learn"
    assert any("eval_n" in entry for entry in trainer.state.log_history), "it did not evaluate"
    saved = list(Path("out/checkpoint-3").glob("model.safetensors"))
    assert saved, "it saved no checkpoint"


def with_accelerator() -> None:
    """Three steps of a loop of one's own."""
    import torch
    from accelerate import Accelerator
    from transformers import default_data_collator, get_linear_schedule_with_warmup

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=1)
    model = tiny_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader(rows(), batch_size=2, collate_fn=default_data_collator)
    schedule = get_linear_schedule_with_warmup(optimizer, 0, 3)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for _, batch in zip(range(3), loader, strict=False):
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        assert torch.isfinite(accelerator.gather_for_metrics(loss.detach()))
    accelerator.save_state("state")
    accelerator.unwrap_model(model).save_pretrained("saved", save_function=accelerator.save)


# --- the file -------------------------------------------------------------------------------


def read(path: Path, torch: str) -> dict[tuple[str, str], dict[str, str]]:
    """What was tried before, beside the same torch."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    if told["torch"] != torch.partition("+")[0]:
        return {}
    found: dict[tuple[str, str], dict[str, str]] = {}
    for transformers, outcomes in told["pairs"].items():
        for accelerate, place in outcomes.items():
            found[transformers, accelerate] = told["failures"][place] if place >= 0 else {}
    return found


def write(path: Path, torch: str, done: dict[tuple[str, str], dict[str, str]]) -> None:
    """Transformers → accelerate → which failure, -1 for none; the failures stand once."""
    failures: list[dict[str, str]] = []
    pairs: dict[str, dict[str, int]] = {}
    newest = sorted(done, key=lambda pair: [[*map(int, v.split("."))] for v in pair], reverse=True)
    for pair in newest:
        errors = done[pair]
        if errors and errors not in failures:
            failures.append(errors)
        pairs.setdefault(pair[0], {})[pair[1]] = failures.index(errors) if errors else -1
    head = {
        "schema": 1,
        "date": datetime.date.today().isoformat(),
        "made_by": "benchmarks/pairs.py",
        "torch": torch.partition("+")[0],
        "python": platform.python_version(),
    }
    said = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    lines = [f"  {json.dumps(failure, ensure_ascii=False)}" for failure in failures]
    said.append(' "failures": [\n' + ",\n".join(lines) + "\n ]")
    lines = [f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in pairs.items()]
    said.append(' "pairs": {\n' + ",\n".join(lines) + "\n }")
    temporary = path.with_suffix(".part")
    temporary.write_text("{\n" + ",\n".join(said) + "\n}\n", encoding="utf-8")
    temporary.replace(path)


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["--serve"] else main()
