"""Training scripts that others wrote: tuned, emitted, verified and launched to their end.

    python benchmarks/public_scripts.py                       # what is there and fits
    python benchmarks/public_scripts.py --only run_glue.py --only "trl sft"
    python benchmarks/public_scripts.py --sources ~/src --results rows.json --write

Nothing of them is kept here. Examples are in no wheel and no sdist, so they are read from
``--sources DIR`` with a checkout of each repository, DIR/transformers/examples and so on; one that
is not there is cloned from GitHub (``git clone --depth 1``), and where that cannot be, its rows are
left out with the reason. What a package brings (``trl.scripts.sft``,
``accelerate.test_utils.scripts``) needs nothing.

Models and data are made by ``tests/scripts/local.py`` and here, so small that a step takes
milliseconds. What a script fetches by a fixed name (bert-base-cased, glue, a metric) lies under
that name in the folder that it runs in, which is where the libraries look first.

One after the other each script is tuned (today's launch and plans of two ranks) and has a trial of
one rank; a plan of two ranks is written as ``torchrun.sh``, verified, and run to its end. A step
counts as passed for what it says itself: ``tune`` by trials that took steps on two ranks, the trial
by its comparison, ``verify`` by having no failed check and by its check "the same training", the
launch by its exit status.

Every row that was run is kept in ``--results FILE`` (JSON) as it ends, and is run again with
``--again`` alone. ``--write`` puts what is kept between the marks of benchmarks/scripts.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import wave
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import cputune
from cputune.inside.first_steps import LOOKED_AT
from cputune.plans.plan import Plan
from cputune.ranks.failure import last_words
from cputune.ranks.runner import ProcessRunner
from cputune.records.result import Measured, Result
from cputune.records.steps import Step, TimeUp, TrialError

HERE = Path(__file__).resolve().parent.parent
PAGE = HERE / "benchmarks" / "scripts.md"
BEGIN, END = "<!-- public scripts: begin -->", "<!-- public scripts: end -->"
OWNERS = {"sentence-transformers": "UKPLab"}
"""Of repositories that do not belong to huggingface."""
PYTORCH = "transformers/examples/pytorch"
FEATURE = "accelerate/examples/by_feature"
STEPS_OF_A_ROW = ("tuned", "one", "two")
STEPS = 40
"""Of loops that count their steps themselves: a trial cannot make them go on."""

TRAINER = (
    *("--do_train", "--output_dir", "trained", "--max_steps", "6", "--report_to", "none"),
    *("--per_device_train_batch_size", "8", "--use_cpu"),
)
LOOP = (
    *("--output_dir", "trained", "--max_train_steps", str(STEPS)),
    *("--per_device_train_batch_size", "8"),
)
PAIRS = (
    *("--train_file", "{place}/pairs.json", "--validation_file", "{place}/pairs.json"),
    *("--model_name_or_path", "{place}/bert"),
)
TEXTS = ("--train_file", "{place}/text.txt", "--validation_file", "{place}/text.txt")
ANSWERS = (
    *("--train_file", "{place}/answers.json", "--validation_file", "{place}/answers.json"),
    *("--model_name_or_path", "{place}/bert", "--max_seq_length", "32", "--doc_stride", "8"),
)
TAGS = (
    *("--train_file", "{place}/tags.json", "--validation_file", "{place}/tags.json"),
    *("--model_name_or_path", "{place}/bert"),
)
PHRASES = (
    *("--train_file", "{place}/phrases.json", "--validation_file", "{place}/phrases.json"),
    *("--model_name_or_path", "{place}/t5", "--source_lang", "en", "--target_lang", "ro"),
    *("--max_source_length", "32", "--max_target_length", "16"),
)
TRL = (
    *("--dataset_name", "{place}/rows", "--model_name_or_path", "{place}/llama"),
    *("--per_device_train_batch_size", "4", "--max_length", "32", "--max_steps", "6"),
    *("--output_dir", "trained", "--report_to", "none", "--use_cpu"),
)
CHOICES = ("--train_file", "{place}/choices.json", "--validation_file", "{place}/choices.json")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One script: ``path`` below the sources ("" for what a package brings), its words."""

    name: str
    path: str = ""
    launcher: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)

    def command(self, sources: Path, place: Path) -> list[str]:
        """What stands after ``--``."""
        script = [str(sources / self.path)] if self.path else []
        return [*self.launcher, *script, *(word.format(place=place) for word in self.words)]


def row(path: str, *words: str, launcher: str = "", needs: str = "datasets") -> Row:
    """A script of the sources."""
    return Row(
        name=path.rsplit("/", 1)[-1],
        path=path,
        launcher=tuple(launcher.split()),
        words=words,
        needs=tuple(needs.split()),
    )


TWO = "torchrun --nproc-per-node 2"
LAUNCH = "accelerate launch --cpu"
ENCODER = ("--model_name_or_path", "{place}/encoder")
SEQUENCE = ("--max_seq_length", "32")
BERT, LLAMA = ("--model_name_or_path", "{place}/bert"), ("--model_name_or_path", "{place}/llama")
ROWS = (
    row(f"{PYTORCH}/text-classification/run_glue.py", *PAIRS, *SEQUENCE, *TRAINER,
        needs="evaluate"),
    row(f"{PYTORCH}/text-classification/run_glue_no_trainer.py", *PAIRS, "--max_length", "32",
        *LOOP, launcher=LAUNCH, needs="evaluate"),
    row(f"{PYTORCH}/language-modeling/run_mlm.py", *TEXTS, *BERT, "--line_by_line", *SEQUENCE,
        *TRAINER, needs="evaluate"),
    row(f"{PYTORCH}/language-modeling/run_clm.py", *TEXTS, *LLAMA, "--block_size", "32", *TRAINER,
        launcher=TWO, needs="evaluate"),
    Row(name="trl sft", launcher=("python", "-m", "trl.scripts.sft"), words=TRL, needs=("trl",)),
    row(f"{PYTORCH}/question-answering/run_qa.py", *ANSWERS, *TRAINER, needs="evaluate"),
    row(f"{PYTORCH}/token-classification/run_ner.py", *TAGS, *TRAINER, needs="evaluate"),
    row(f"{PYTORCH}/token-classification/run_ner_no_trainer.py", *TAGS, "--max_length", "32", *LOOP,
        needs="evaluate"),
    row(f"{PYTORCH}/question-answering/run_qa_no_trainer.py", *ANSWERS, *LOOP, needs="evaluate"),
    row(f"{PYTORCH}/multiple-choice/run_swag.py", *CHOICES, *ENCODER, *SEQUENCE,
        *TRAINER),
    row(f"{PYTORCH}/multiple-choice/run_swag_no_trainer.py", *CHOICES, *ENCODER, *SEQUENCE,
        *LOOP, needs="evaluate"),
    row(f"{PYTORCH}/text-classification/run_classification.py", *PAIRS, *SEQUENCE, *TRAINER,
        "--text_column_names", "sentence1", "--label_column_name", "label",
        "--metric_name", "accuracy", needs="evaluate"),
    row(f"{PYTORCH}/translation/run_translation.py", *PHRASES, *TRAINER, needs="evaluate"),
    row(f"{PYTORCH}/translation/run_translation_no_trainer.py", *PHRASES, *LOOP,
        "--val_max_target_length", "16", "--num_beams", "1", needs="evaluate"),
    row(f"{PYTORCH}/audio-classification/run_audio_classification.py", "--dataset_name",
        "{place}/sounds", "--model_name_or_path", "{place}/wav2vec2", "--eval_split_name", "train",
        "--max_length_seconds", "1", "--remove_unused_columns", "False", *TRAINER,
        needs="evaluate torchcodec"),
    Row(name="python -m trl.scripts.dpo", launcher=("python", "-m", "trl.scripts.dpo"),
        words=tuple(w.replace("/rows", "/choice") for w in TRL), needs=("trl",)),
    Row(name="trl reward", launcher=("python", "-m", "trl.scripts.reward"),
        words=tuple(w.replace("/rows", "/choice") for w in TRL), needs=("trl",)),
    row("trl/examples/scripts/orpo.py", *(w.replace("/rows", "/choice") for w in TRL), needs="trl"),
    row("trl/examples/scripts/cpo.py", *(w.replace("/rows", "/choice") for w in TRL), needs="trl"),
    row("accelerate/examples/nlp_example.py", "--cpu", needs="evaluate"),
    row("accelerate/examples/complete_nlp_example.py", "--cpu", "--output_dir", "trained",
        launcher=LAUNCH, needs="evaluate"),
    row(f"{FEATURE}/gradient_accumulation.py", "--cpu", "--gradient_accumulation_steps", "2",
        needs="evaluate"),
    row(f"{FEATURE}/checkpointing.py", "--cpu", "--checkpointing_steps", "epoch", "--output_dir",
        "trained", needs="evaluate"),
    row(f"{FEATURE}/multi_process_metrics.py", "--cpu", launcher=TWO, needs="evaluate"),
    row(f"{FEATURE}/memory.py", "--cpu", needs="evaluate"),
    row(f"{FEATURE}/ddp_comm_hook.py", "--cpu", needs="evaluate"),
    row(f"{FEATURE}/early_stopping.py", "--cpu", needs="evaluate"),
    Row(name="accelerate.test_utils.scripts.external_deps.test_performance",
        launcher=("python", "-m", "accelerate.test_utils.scripts.external_deps.test_performance"),
        words=("--output_dir", "trained"), needs=("evaluate",)),
    row("peft/examples/sft/train.py", *TRL, "--use_peft_lora", "--lora_r", "4", "--splits",
        "train,test", needs="trl peft"),
    row("sentence-transformers/examples/sentence_transformer/unsupervised_learning/SimCSE/"
        "train_simcse_from_file.py", "{place}/text.txt", needs="sentence_transformers"),
)  # fmt: skip
NOT_RUN = (
    (
        "run_clm_no_trainer.py, run_mlm_no_trainer.py, run_fim.py, run_summarization.py",
        "by themselves they end with transformers 5 and accelerate 1.15: names that they use are "
        "gone (`DistributedType.TPU`, `is_offline_mode`)",
    ),
    (
        "image classification, diffusers' text-to-image LoRA",
        "torchvision's wheel on PyPI needs the CUDA build of torch",
    ),
    (
        "peft_no_lora_accelerate.py",
        "its data set is named in the script, and has to be fetched",
    ),
    (
        "the other examples of sentence-transformers",
        "they ask for fp16 or bf16 in a way that transformers refuses without a GPU",
    ),
)
METRIC = """import datasets
import evaluate

WORDS = datasets.Sequence(datasets.Value("string"))
QUESTION = {{"id": datasets.Value("string"), "prediction_text": datasets.Value("string")}}
ANSWERS = datasets.Sequence(
    {{"text": datasets.Value("string"), "answer_start": datasets.Value("int32")}}
)
FEATURES = {{
    "seqeval": {{"predictions": WORDS, "references": WORDS}},
    "sacrebleu": {{"predictions": datasets.Value("string"), "references": WORDS}},
    "squad": {{
        "predictions": QUESTION,
        "references": {{"id": datasets.Value("string"), "answers": ANSWERS}},
    }},
}}
NUMBERS = {{"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}}


class Metric(evaluate.Metric):
    def _info(self):
        features = datasets.Features(FEATURES.get("{name}", NUMBERS))
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, predictions, references):
        same = sum(one == other for one, other in zip(predictions, references, strict=True))
        names = ("accuracy", "f1", "precision", "recall", "score", "exact_match")
        names += tuple("overall_" + name for name in names)
        return dict.fromkeys(names, same / len(references))
"""
"""Stands where ``evaluate.load(name)`` looks first; evaluations of loops are cut to their loss."""


def main() -> None:
    """Run the rows that fit, one at a time, and print the table as it grows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sources", type=Path, default=None, help="folder of checkouts")
    parser.add_argument("--place", type=Path, help="where models and data stay between runs")
    parser.add_argument("--only", action="append", help="name of a row; may be given again")
    parser.add_argument("--plain", action="store_true", help="only run each as it is typed")
    parser.add_argument("--again", action="store_true", help="run rows that are kept, too")
    parser.add_argument("--results", type=Path, help="JSON file in which rows are kept")
    parser.add_argument("--budget", type=int, default=2, help="trials of each study")
    parser.add_argument("--max-time", type=float, default=100, help="seconds of each study")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no row after these")
    parser.add_argument("--write", action="store_true", help="put the table into scripts.md here")
    args = parser.parse_args()
    kept = read(args.results)
    ProcessRunner.steps = undelayed(ProcessRunner.steps)  # type: ignore[method-assign]
    rows = [one for one in ROWS if not args.only or one.name in args.only]
    with tempfile.TemporaryDirectory() as folder:
        sources = (args.sources or Path(folder) / "sources").resolve()
        place = (args.place or Path(folder) / "place").resolve()
        # Offline, and with the launchers of this environment.
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        os.environ.update(PATH=path, HF_HUB_OFFLINE="1", HF_HOME=str(place / "hf"))
        left = [one for one in rows if args.again or args.plain or one.name not in kept]
        if left and not place.exists():
            make_place(place)
        began = time.monotonic()
        for one in left:
            if time.monotonic() - began > args.seconds:
                break
            why = cannot(one, sources)
            if why is not None:
                print(f"{one.name}: {why}", flush=True)
                continue
            if args.plain:
                print(f"{one.name}: {passed_plainly(one, sources, place)}", flush=True)
                continue
            cells = passed(one, sources, place, args)
            print(line(one, cells), flush=True)
            kept = {**read(args.results), one.name: cells}  # others may have written there
            if args.results is not None:
                text = json.dumps(kept, indent=1, ensure_ascii=False, sort_keys=True)
                args.results.write_text(text + "\n", encoding="utf-8")
    if args.write:
        write([line(one, kept[one.name]) for one in ROWS if one.name in kept], kept)


def read(results: Path | None) -> dict[str, dict[str, str]]:
    """The rows that are kept, by name."""
    if results is None or not results.exists():
        return {}
    kept: dict[str, dict[str, str]] = json.loads(results.read_text(encoding="utf-8"))
    return kept


def went_through(cells: Mapping[str, str] | None) -> bool:
    """Whether a row passed every step."""
    return cells is not None and all(cells[name].startswith("✓") for name in STEPS_OF_A_ROW)


def line(one: Row, cells: Mapping[str, str]) -> str:
    """A row of the table."""
    steps = " | ".join(cells[name] for name in STEPS_OF_A_ROW)
    return f"| {typed(one)} | {steps} |"


def make_place(place: Path) -> None:
    """The models and the data of tests/scripts, and the same data as public scripts want it."""
    subprocess.run(
        [sys.executable, str(HERE / "tests/scripts/local.py"), str(place)],
        check=True,
        capture_output=True,
    )
    rows = [json.loads(line) for line in (place / "data/train.jsonl").read_text().splitlines()]
    for name, kept in {
        "pairs": [{k: r[k] for k in ("sentence1", "sentence2", "label")} for r in rows],
        "tags": [
            {"tokens": w, "ner_tags": [("O", "B")[len(x) % 2] for x in w]}
            for w in (r["text"].split() for r in rows)
        ],
        "choices": [
            {
                "sent1": r["sentence1"],
                "sent2": "w1",
                **{f"ending{n}": f"w{n} w2" for n in range(4)},
                "label": r["label"],
            }
            for r in rows
        ],
    }.items():
        (place / f"{name}.json").write_text("".join(json.dumps(k) + "\n" for k in kept))
    (place / "text.txt").write_text("".join(r["text"] + "\n" for r in rows))
    answers = [
        {
            "id": str(number),
            "question": r["sentence2"],
            "context": r["text"],
            "answers": {"text": [r["text"].split()[0]], "answer_start": [0]},
        }
        for number, r in enumerate(rows)
    ]
    (place / "answers.json").write_text(json.dumps({"data": answers}))
    phrases = [{"translation": {"en": r["text"], "ro": r["sentence2"]}} for r in rows]
    (place / "phrases.json").write_text("".join(json.dumps(k) + "\n" for k in phrases))
    make_models(place)
    make_sounds(place / "sounds" / "train")
    glue = place / "by_name" / "nyu-mll" / "glue"
    glue.mkdir(parents=True)
    pairs = "".join(
        json.dumps({**{k: r[k] for k in ("sentence1", "sentence2", "label")}, "idx": n}) + "\n"
        for n, r in enumerate(rows)
    )
    parts = ("train", "validation", "test")
    for part in parts:
        (glue / f"{part}.jsonl").write_text(pairs)
    files = "".join(f"  - split: {part}\n    path: {part}.jsonl\n" for part in parts)
    (glue / "README.md").write_text(
        f"---\nconfigs:\n- config_name: mrpc\n  data_files:\n{files}---\n"
    )
    for name in ("bert-base-cased", "distilroberta-base"):
        (place / "by_name" / name).symlink_to(place / "bert")
    for name, keys in {
        "rows": {"text": "text"},
        "choice": {"chosen": "sentence1", "rejected": "sentence2"},
    }.items():
        (place / name).mkdir()
        first = {"prompt": "w1 w2"} if name == "choice" else {}
        text = "".join(
            json.dumps({**first, **{k: " " + r[v] for k, v in keys.items()}}) + "\n" for r in rows
        )
        for part in ("train", "test"):
            (place / name / f"{part}.jsonl").write_text(text)


def make_models(place: Path) -> None:
    """One encoder with a decoder and one that hears, as small as those of tests/scripts."""
    from transformers import (
        BertModel,
        T5Config,
        T5ForConditionalGeneration,
        Wav2Vec2Config,
        Wav2Vec2FeatureExtractor,
        Wav2Vec2ForSequenceClassification,
    )

    small = {"num_heads": 2, "num_layers": 2, "d_model": 32, "d_kv": 16, "d_ff": 64}
    BertModel.from_pretrained(place / "bert").save_pretrained(place / "encoder")
    t5 = T5Config(vocab_size=65, pad_token_id=0, eos_token_id=3, decoder_start_token_id=0, **small)
    T5ForConditionalGeneration(t5).save_pretrained(place / "t5")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        for model in ("t5", "encoder"):
            shutil.copy(place / "bert" / name, place / model / name)
    heard = Wav2Vec2Config(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        conv_dim=(32, 32, 32),
        conv_kernel=(10, 8, 4),
        conv_stride=(5, 8, 8),
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2,
    )
    Wav2Vec2ForSequenceClassification(heard).save_pretrained(place / "wav2vec2")
    Wav2Vec2FeatureExtractor().save_pretrained(place / "wav2vec2")


def make_sounds(folder: Path) -> None:
    """Tones of half a second in two classes, as ``datasets`` reads a folder of sounds."""
    for number in range(128):
        name = ("low", "high")[number % 2]
        (folder / name).mkdir(parents=True, exist_ok=True)
        pitch = (220 + number, 880 + number)[number % 2]
        wave_form = (round(8000 * math.sin(2 * math.pi * pitch * at / 16000)) for at in range(8000))
        with wave.open(str(folder / name / f"{number}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(16000)
            file.writeframes(
                b"".join(value.to_bytes(2, "little", signed=True) for value in wave_form)
            )


def cannot(one: Row, sources: Path) -> str | None:
    """Why a row is not run here; its sources are cloned where they are not there yet."""
    missing = [name for name in one.needs if find_spec(name) is None]
    if missing:
        return f"not run: pip install {' '.join(missing)}"
    if not one.path or (sources / one.path).exists():
        return None
    name = one.path.split("/")[0]
    if not (sources / name).exists():
        address = f"https://github.com/{OWNERS.get(name, 'huggingface')}/{name}"
        clone = ["git", "clone", "-q", "--depth", "1", address, str(sources / name)]
        subprocess.run(clone, check=False, capture_output=True, stdin=subprocess.DEVNULL)
    return None if (sources / one.path).exists() else f"not run: no checkout of {name}"


def typed(one: Row) -> str:
    """How it is typed, without its arguments."""
    return f"`{' '.join([*one.launcher, *([one.name] if one.path else [])])} …`"


def passed(one: Row, sources: Path, place: Path, args: argparse.Namespace) -> dict[str, str]:
    """The cells of a row that was run: tune, a trial of one rank, verify and launch of two."""
    began = time.monotonic()
    cells = dict.fromkeys(STEPS_OF_A_ROW, "–")
    with tempfile.TemporaryDirectory() as folder:
        work = prepared(Path(folder), place)
        before = sorted(os.listdir(work))
        try:
            os.chdir(work)
            result, cells["one"] = tuned(one.command(sources, place), args)
            cells["tuned"] = how_tuned(result, sorted({*os.listdir(work)} - {*before}))
            cells["two"] = launched(result, work)
        except (cputune.CputuneError, subprocess.TimeoutExpired, TimeUp) as error:
            cells["tuned"] = f"✗ {' '.join(str(error).split())[:300]}"
        finally:
            os.chdir(HERE)
    names = ("torch", "transformers", "accelerate", "trl", "peft", "datasets")
    cells["versions"] = ", ".join(f"{name} {version(name).split('+')[0]}" for name in names)
    cells["seconds"] = f"{time.monotonic() - began:.0f}"
    return cells


def tuned(command: Sequence[str], args: argparse.Namespace) -> tuple[Result, str]:
    """A study of today's launch and plans of two ranks, on a machine that need not be quiet.

    And what a trial of one rank says, which fails where it does not train the same.
    """
    job, facts = cputune.Workload.script(command), cputune.probe()
    with ProcessRunner(job, facts, offline=True) as runner:
        result = cputune.tune(
            job,
            facts=facts,
            runner=runner,
            budget=args.budget,
            max_time_seconds=args.max_time,
            fix={"ranks": "2", "precision": "fp32"},
            share_machine=True,
        )
        runner.keep_to(lambda: math.inf)  # the time was the study's
        try:
            for _ in islice(runner.steps(plan_of(1)), LOOKED_AT + 1):
                pass
        except TrialError as error:
            return result, f"✗ {str(error)[:200]}"
        return result, "✓"


def plan_of(ranks: int) -> Plan:
    """So many ranks with a thread each, in fp32."""
    cpus = sorted(os.sched_getaffinity(0))
    chosen = tuple((cpu,) for cpu in (cpus[0], cpus[-1])[:ranks])
    return Plan(processes_per_node=ranks, threads_per_process=1, cpus=chosen, precision="fp32")


def undelayed(original: Callable[..., Iterator[Step]]) -> Callable[..., Iterator[Step]]:
    """No step is measured again because others compute here: no speed is asked for."""

    def steps(runner: ProcessRunner, plan: Plan) -> Iterator[Step]:
        with contextlib.closing(original(runner, plan)) as taken:  # type: ignore[type-var]
            for step in taken:
                yield replace(step, delayed_seconds=0.0)

    return steps


def how_tuned(result: Result, wrote: Sequence[str]) -> str:
    """What a study says: failures, what it wrote, else that a plan of two ranks took steps."""
    failed = [t for t in result.trials if t.state == "failed" and t.kind != "contended"]
    if wrote:
        return f"✗ it wrote {', '.join(wrote)}"
    if failed:
        return f"✗ {(failed[0].reason or '').splitlines()[0][:200]}"
    if any(trial.steps and trial.plan.world_size == 2 for trial in result.trials[1:]):
        return "✓"
    return "– no plan of 2 ranks was reached in time"


def passed_plainly(one: Row, sources: Path, place: Path) -> str:
    """How the script ends as it is typed, without cputune."""
    with tempfile.TemporaryDirectory() as folder:
        work = prepared(Path(folder), place)
        words = one.command(sources, place)
        first = [] if one.launcher else [sys.executable]
        ended = run([*first, *words], work, 600)
        return "✓" if ended.returncode == 0 else f"✗ {last_line(ended)}"


def prepared(work: Path, place: Path) -> Path:
    """The folder that a script runs in, with what it fetches by a fixed name."""
    shutil.copytree(place / "by_name", work, symlinks=True, dirs_exist_ok=True)
    for metric in ("accuracy", "glue", "sacrebleu", "seqeval", "squad"):
        (work / metric).mkdir()
        (work / metric / f"{metric}.py").write_text(METRIC.format(name=metric))
    return work


def launched(result: Result, work: Path) -> str:
    """Write a plan of two ranks as torchrun.sh, verify it, and run it to its end."""
    best = Measured(plan=plan_of(2), samples_per_second=result.baseline.samples_per_second)
    try:
        files = cputune.emit(replace(result, best=best), "torchrun", python=sys.executable)
        for file in files:
            (work / file.name).write_text(file.text)
        script = str(work / files[0].name)
        (verdict,) = cputune.verify([script], steps=3, share_machine=True)
    except cputune.CputuneError as error:
        return f"✗ {str(error)[:120]}"
    wrong = [c for c in verdict.checks if c.state == "failed" and c.name != "throughput"]
    if wrong:
        return f"✗ {wrong[0].name}: {wrong[0].summary[:200]}"
    same = next(
        (c.summary for c in verdict.checks if c.name == "the same training"), "not compared"
    )
    shutil.rmtree(work / "trained", ignore_errors=True)  # no run goes on with another's
    ended = run(["bash", script], work, 600)
    return f"✓ {same}" if ended.returncode == 0 else f"verified; ✗ {last_line(ended)}"


def run(words: Sequence[str], work: Path, seconds: int) -> subprocess.CompletedProcess[str]:
    """A command in the working folder."""
    return subprocess.run(
        list(words),
        cwd=work,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def last_line(ended: subprocess.CompletedProcess[str]) -> str:
    """What a command that failed said: its error, else its last line."""
    told = re.findall(r"^(?:error|hint): .*", ended.stderr, re.MULTILINE)
    words = last_words(ended.stderr)
    said = " ".join(told) or f"{words['kind']}: {words['text']}"
    return f"exit status {ended.returncode}: {said}".replace("|", "/")[:300]


def write(lines: Sequence[str], kept: Mapping[str, Mapping[str, str]]) -> None:
    """The table into the page, with the versions that it was made with."""
    text = PAGE.read_text(encoding="utf-8")
    versions = "; ".join(dict.fromkeys(cells["versions"] for cells in kept.values()))
    left = [one.name for one in ROWS if one.name not in kept]
    table = [
        f"{sum(map(went_through, kept.values()))} of {len(ROWS)} go the whole way ({versions}):",
        "",
        "| typed | tuned | trains the same on 1 rank | on 2 ranks, emitted, verified, to the end |",
        "|---|---|---|---|",
        *lines,
        "",
        "Not run:",
        "",
        *(f"- {what}: {why}" for what, why in NOT_RUN),
        *([f"- {', '.join(left)}: not with these versions yet"] if left else ()),
    ]
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text("\n".join([before + BEGIN, "", *table, "", END]) + after, encoding="utf-8")


if __name__ == "__main__":
    main()
