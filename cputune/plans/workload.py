"""What is trained while tuning: a recipe, or the user's script.

A recipe is a TOML file of validated data; ``recipes/README.md`` describes its keys.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from cputune.errors import RecipeError, UsageError
from cputune.host import Interpreter, read_document
from cputune.host.files import entries, exists, is_folder
from cputune.host.process import variables
from cputune.inside.messages import Framework
from cputune.launch.located_words import value_of
from cputune.launch.script import Batch, batch_of
from cputune.plans.equivalence import ModelAnswers, Training
from cputune.plans.training_command import read_typed
from cputune.text.documents import plain, record_of, toml
from cputune.text.hidden import HIDDEN, hide_arguments, without_secrets

DEFAULT_RECIPE = "bert-mini"
# The largest recipe file; the shipped ones have less than 1 KiB.
MOST_BYTES = 1 << 20

Task = Literal[
    "question-answering",
    "sequence-classification",
    "token-classification",
    "masked-lm",
    "causal-lm",
    "seq2seq-lm",
    "sentence-embedding",
    "image-classification",
]
Tokens = Annotated[int, Meta(ge=1, le=1 << 24)]
Variable = Annotated[str, Meta(pattern="^[A-Z][A-Z0-9_]*$")]
Samples = Annotated[int, Meta(ge=1, le=1 << 30)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """Low-rank matrices that train while the weights are frozen (Hu et al. 2021, arXiv:2106.09685).

    ``target_modules`` are ends of the names of the linear layers that get them.
    """

    rank: Annotated[int, Meta(ge=1, le=4096)]
    alpha: Annotated[float, Meta(gt=0, le=1e6)]
    dropout: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    target_modules: Annotated[tuple[str, ...], Meta(min_length=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """How long the samples of a data set are; random ones are made as long.

    ``quantiles`` are in tokens, special ones included, at equal distances from the shortest sample
    to the longest. Samples are padded to the recipe's ``sequence_length``, or each batch to its
    longest.
    """

    quantiles: Annotated[tuple[Tokens, ...], Meta(min_length=2, max_length=1001)]
    padding: Literal["max_length", "longest"] = "max_length"
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A training job as data.

    Attributes:
        model: a transformers configuration, from which a model with random weights is built.
        parameters: how many the model has.
        sample_bytes: what the backward pass keeps of a sample, at least.
        sequence_length, target_length: in tokens; of what a seq2seq model writes.
        global_batch_size: samples per optimizer step over all ranks.
        lora: if set, only its matrices train.
    """

    name: str
    description: str
    task: Task
    model: Mapping[str, Any]
    parameters: Annotated[int, Meta(ge=1, le=1 << 40)] | None = None
    sample_bytes: Annotated[int, Meta(ge=0, le=1 << 40)] = 0
    sequence_length: Tokens
    global_batch_size: Samples
    learning_rate: Annotated[float, Meta(gt=0, le=1e6)]
    target_length: Tokens | None = None
    lora: Lora | None = None
    lengths: Lengths | None = None
    source: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.model.get("model_type"), str):
            raise ValueError("model needs a model_type, as in a transformers configuration")
        if self.lengths is not None:
            quantiles = self.lengths.quantiles
        else:
            quantiles = ()
        if list(quantiles) != sorted(quantiles):
            raise ValueError("the quantiles of lengths must not decrease")

    @property
    def every_length(self) -> int | None:
        """Tokens of the samples of each batch; None if it is padded to its longest."""
        longest = self.lengths is not None and self.lengths.padding == "longest"
        if longest:
            return None
        return self.sequence_length

    def to_json(self) -> dict[str, Any]:
        """A mapping of plain JSON values."""
        document: dict[str, Any] = plain(self)
        return document


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """How much of a step's computation is padding, as seen in the current launch.

    Attributes:
        share: of the tokens that are padding.
        left: share of padding that remains if columns are cut that are padding in all samples.
        kept: why they may not be cut; None if loss and gradients stay the same.
        mend: the option by which the script pads less, if there is one.
    """

    share: Annotated[float, Meta(ge=0, le=1)]
    left: Annotated[float, Meta(ge=0, le=1)]
    kept: str | None = None
    mend: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Masks:
    """The masks of dropout of the first step of the current launch, as one rank saw them.

    Attributes:
        elements: of all of them.
        seconds: that torch takes to draw them, tried on a part in that rank.
        step_seconds: of that step, which is slower than later ones.
        attention: attention drew some of them.
    """

    elements: Annotated[int, Meta(ge=1)]
    seconds: Annotated[float, Meta(ge=0)]
    step_seconds: Annotated[float, Meta(ge=0)]
    attention: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Workload:
    """The job whose speed is measured. What a trial shows is not known before the first one.

    Attributes:
        name: the recipe's name, or the script's file name.
        argv: the user's script and its arguments, without secrets: ``train.py ...`` or
            ``-m package.train ...``.
        launch: the whole command, if a launcher starts the script; the baseline runs it.
        launch_ranks: processes that it starts on one machine.
        secrets: names of the variables whose values replace ``${NAME}`` in argv: tokens and
            passwords are never written to a file.
        framework: what it trains with.
        parses_arguments: the script trains with TrainingArguments from its command line
            (HfArgumentParser), so that a launch can pass ``--bf16`` and others.
        accumulation: batches of a rank in one optimizer step of the script.
        optimizer: how the script steps ("AdamW as a loop").
        model: numbers and tensors that its optimizer trains, and a digest of their shapes.
        data: samples of its data set; None for a recipe.
        mapped_blocks: tensors that glibc's malloc mapped alone in the first step of the current
            launch; the next one costs a page fault for each 4 KiB. None with another malloc.
        masks: of dropout, and what they cost.
        bf16_time: how many times as long a product of matrices takes in bf16 as in fp32, tried in a
            rank of the current launch.
        padding: in its batches.
        drawn: how its samples are drawn: "at random", "a stream", or the sampler's class.
        loading_share: share of the time of its steps that they wait for data.
        gradient_bytes: of the gradients of a step, which several ranks add.
        touched_bytes: of these, without embedding rows that its first step did not touch.
        samples_to_end: samples that the script trains on to its end.
        epochs: how often it goes through its data.
        global_batch_size: samples per optimizer step over all ranks.
        batch_per_rank: samples of each rank instead: the global batch grows with the ranks.
        training: the first steps of the current launch.
        model_answers: answers of its model about what plans would change.
    """

    name: str
    recipe: Recipe | None = None
    argv: tuple[str, ...] = ()
    launch: tuple[str, ...] = ()
    launch_ranks: Annotated[int, Meta(ge=1, le=1 << 16)] = 1
    secrets: tuple[Variable, ...] = ()
    framework: Framework | None = None
    parses_arguments: bool | None = None
    accumulation: Samples | None = None
    optimizer: str | None = None
    model: str | None = None
    data: Annotated[int, Meta(ge=0)] | None = None
    mapped_blocks: Annotated[int, Meta(ge=0)] | None = None
    masks: Masks | None = None
    bf16_time: Annotated[float, Meta(gt=0)] | None = None
    padding: Padding | None = None
    drawn: str | None = None
    loading_share: Annotated[float, Meta(ge=0, le=1)] | None = None
    gradient_bytes: Annotated[int, Meta(ge=0)] | None = None
    touched_bytes: Annotated[int, Meta(ge=0)] | None = None
    samples_to_end: Annotated[int, Meta(ge=1)] | None = None
    epochs: Annotated[float, Meta(gt=0)] | None = None
    global_batch_size: Samples | None = None
    batch_per_rank: Samples | None = None
    training: Training | None = None
    model_answers: ModelAnswers | None = None

    def __post_init__(self) -> None:
        if self.recipe is None and not self.argv:
            raise ValueError("a workload needs a recipe or a script")

    def __repr__(self) -> str:
        if self.recipe is not None:
            return f"<cputune.Workload of the recipe {self.name}>"
        return f"<cputune.Workload of {shlex.join(self.launch or self.argv)}>"

    @classmethod
    def of(
        cls, job: Workload | str | Sequence[str], *, python: Interpreter | None = None
    ) -> Workload:
        """A workload from ``"train.py --lr 3e-5"``, a list of words, or a recipe's name.

        A text that ends in ``.toml`` is a recipe, too. ``python`` trains; None: the Python that
        runs cputune. Raises CputuneError.
        """
        if isinstance(job, Workload):
            return job
        if isinstance(job, str) and (job in recipe_names() or job.endswith(".toml")):
            return cls.from_recipe(job)
        command = typed_words(job)
        if not command:
            raise UsageError("there is nothing to train", hint='"train.py --epochs 3", or a recipe')
        if isinstance(job, str) and _is_name(job):
            load_recipe(job)  # raises the error that suggests a recipe
        return cls.script(command, python=python)

    @classmethod
    def from_recipe(cls, name: str, *, batch_per_rank: int | None = None) -> Workload:
        """A shipped recipe by its name, or your own by its path (``*.toml``). Raises
        RecipeError.
        """
        recipe = load_recipe(name)
        return cls(
            name=recipe.name,
            recipe=recipe,
            framework="trainer",
            parses_arguments=True,
            global_batch_size=recipe.global_batch_size,
            batch_per_rank=batch_per_rank,
        )

    @classmethod
    def script(
        cls,
        argv: Sequence[str],
        *,
        global_batch_size: int | None = None,
        batch_per_rank: int | None = None,
        secret: Collection[str] = (),
        python: Interpreter | None = None,
    ) -> Workload:
        """The user's training script: ``["run_qa.py", "--do_train", ...]``.

        Also a whole command: ``python run_qa.py``, ``-m package.train``, ``accelerate launch``,
        ``torchrun``, ``mpirun``. A word that is a secret by its name or shape
        (``cputune.text.hidden``), or the value of an argument in ``secret``, is left out: trials
        take it from a variable (``--hub_token`` from HUB_TOKEN, or from the one that has this
        value). ``cputune.tune`` of a command sets that variable; if you make the workload yourself,
        set it before you tune. ``python`` trains; None: the Python that runs
        cputune. Raises UsageError without a script.
        """
        visible_words, hidden = hide_arguments(argv, secret=secret, variables=variables())
        typed = read_typed(visible_words, python)
        first = typed.argv[0]
        return cls(
            name=typed.argv[1] if first == "-m" else Path(first).name,
            argv=typed.argv,
            secrets=tuple(hidden),
            launch=typed.launch,
            launch_ranks=typed.ranks,
            global_batch_size=global_batch_size,
            batch_per_rank=batch_per_rank,
        )

    @property
    def hidden_arguments(self) -> tuple[str, ...]:
        """Names of the arguments whose values are left out: ``hub_token``."""
        hidden = []
        for before, word in pairwise(("", *self.argv)):
            if self.secret_of(word) is not None:
                if "=" in word:
                    name = word.partition("=")[0]
                else:
                    name = before
                hidden.append(name.lstrip("-+~"))
        return tuple(hidden)

    @property
    def program(self) -> tuple[str, ...]:
        """What is run, without its arguments: a script, or ``-m`` and a module."""
        count = 1
        if self.argv[:1] == ("-m",):
            count = 2
        return self.argv[:count]

    @property
    def typed_batch(self) -> Batch:
        """The batch that its words say, of TrainingArguments and of transformers' examples."""
        return batch_of(self.argv)

    @property
    def typed_accumulation(self) -> int | None:
        """Batches of an optimizer step: as it was seen, else as its words say.

        A configuration file may have said it.
        """
        return self.accumulation or self.typed_batch.accumulation

    @property
    def takes_flags(self) -> bool:
        """Whether the script is known to take the flags of a plan."""
        return self.parses_arguments is True and self.framework in (None, "trainer")

    def samples_per_rank(self, world_size: int) -> int | None:
        """Samples of one rank per optimizer step; None if the script decides.

        Raises ValueError if the global batch cannot be divided over the ranks.
        """
        if self.batch_per_rank is not None:
            return self.batch_per_rank
        if self.global_batch_size is None:
            return None
        if self.global_batch_size % world_size:
            raise ValueError(
                f"a global batch of {self.global_batch_size} cannot be divided over "
                f"{world_size} ranks"
            )
        return self.global_batch_size // world_size

    def samples_of_step(self, world_size: int) -> int | None:
        """Samples of an optimizer step over all ranks.

        None if the script's own batch counts and is not known. Raises ValueError for a batch that
        cannot be divided.
        """
        each = self.samples_per_rank(world_size)
        if each is None:
            return None
        return each * world_size

    def with_typed_batch(self) -> Workload:
        """The workload with the global batch that its words say, if no trial has shown another.

        ``--per_device_train_batch_size`` is of one rank and one batch: the launch as typed takes it
        in each of its ranks, and accumulates.
        """
        batch = self.global_batch_size or self.batch_per_rank
        if self.recipe is not None or self.framework == "pytorch" or batch:
            return self
        return replace(self, global_batch_size=self.typed_global_batch)

    @property
    def typed_global_batch(self) -> int | None:
        """The global batch that its words say; None if they say none."""
        each = self.typed_batch.per_step
        if each is None:
            return None
        return each * self.launch_ranks

    def refuses(self, question: str) -> str | None:
        """Why its model does not train the same with a knob; None if it does, or was not
        checked.
        """
        if self.model_answers is None or self.batch_per_rank is not None:
            return None
        return self.model_answers.refuses(question)

    def refuses_ranks(self, ranks: int) -> str | None:
        """The same for a number of ranks on all machines."""
        if self.model_answers is None or self.batch_per_rank is not None:
            return None
        return self.model_answers.refuses_ranks(self.launch_ranks, ranks)

    def keeps(self, typed: Training) -> bool:
        """Whether plans take the samples of the current launch, because no other batch was
        requested.
        """
        return self.batch_per_rank is None and self.global_batch_size == typed.batch

    def secret_of(self, word: str) -> tuple[str, str] | None:
        """The variable that a word of argv ends in, with what comes before it."""
        for name in self.secrets:
            if word == f"${{{name}}}" or word.endswith(f"=${{{name}}}"):
                return word.removesuffix(f"${{{name}}}"), name
        return None

    def filled(self, arguments: Sequence[str], variables: Mapping[str, str]) -> list[str]:
        """Words of argv with the values of their secrets. Raises UsageError for an unset one."""
        filled = []
        for word in arguments:
            secret = self.secret_of(word)
            if secret is None:
                filled.append(word)
                continue
            before, name = secret
            if name not in variables:
                raise UsageError(
                    f"{name} is not set",
                    hint=f"export {name}=…, or type the whole command again: secrets are not "
                    "stored in a result",
                )
            filled.append(before + variables[name])
        return filled

    def hide(self, text: str, variables: Mapping[str, str]) -> str:
        """A text that a trial wrote, without the values of secrets, the workload's and others."""
        values = {variables[name] for name in self.secrets if variables.get(name)}
        for value in sorted(values, key=len, reverse=True):  # one may be a part of another
            if len(value) > 5:
                pattern = re.escape(value)
            else:
                pattern = rf"(?<!\w){re.escape(value)}(?!\w)"
            text = re.sub(pattern, HIDDEN, text)
        return without_secrets(text, variables)

    def argument(self, flag: str) -> str | None:
        """The last value of a flag in argv, "" for a bare flag; None if it is absent.

        HfArgumentParser takes ``--per-device-...`` for ``--per_device_...`` too.
        """
        return value_of(self.argv, flag)

    def observed(self, **shown: object) -> Workload:
        """The same job with the fields that its first trial has shown, unless they were known."""
        new: dict[str, Any] = {k: value for k, value in shown.items() if getattr(self, k) is None}
        return replace(self, **new)

    def to_json(self) -> dict[str, Any]:
        """A mapping of plain JSON values."""
        document: dict[str, Any] = plain(self)
        return document


def typed_words(job: str | Sequence[str]) -> list[str]:
    """The words of a command that is one text or a list. Raises UsageError at an open quote."""
    if not isinstance(job, str):
        return [str(word) for word in job]
    try:
        return shlex.split(job)
    except ValueError as error:
        raise UsageError(
            f"cannot read the command {job!r}: {str(error).lower()}",
            hint="close the quotes, or give a list of words",
        ) from error


def _is_name(job: str) -> bool:
    """Whether this is one word, not a file, that looks like the name of a recipe."""
    if re.fullmatch(r"[A-Za-z][\w-]*", job) is None or exists(job):
        return False
    return "-" in job or bool(difflib.get_close_matches(job, recipe_names(), n=1))


def left_out(names: Iterable[str]) -> str:
    """The message about values that are not written to files."""
    return (
        f"Left out, as it is a secret: the value of {', '.join(names)}. Set it in "
        "the environment of the launch."
    )


def recipes_dir() -> Path:
    """Inside the wheel, or next to the package in a checkout."""
    inside = Path(str(resources.files("cputune") / "recipes"))
    if is_folder(inside):
        return inside
    return inside.parent.parent / "recipes"


def recipe_names() -> tuple[str, ...]:
    """The shipped recipes, sorted."""
    return tuple(sorted(path.stem for path in entries(recipes_dir()) if path.suffix == ".toml"))


def load_recipe(name: str) -> Recipe:
    """Read and validate a recipe by name or path. Raises RecipeError."""
    is_path = name.endswith(".toml") or "/" in name
    if is_path:
        path = Path(name)
    else:
        path = recipes_dir() / f"{name}.toml"
    try:
        text = read_document(path, most_bytes=MOST_BYTES)
    except OSError as error:
        names = ", ".join(recipe_names())
        if not is_path:
            hint = f"recipes: {names}"
            near = difflib.get_close_matches(name, recipe_names(), n=1)
            if near:
                hint = f"did you mean {near[0]}?"
            raise RecipeError(f"no recipe is called {name!r}", hint=hint) from error
        raise RecipeError(
            f"cannot read the recipe {name!r}: {error.strerror}",
            hint=f"give the path of a TOML file, or one of: {names}",
        ) from error
    try:
        document = toml(text)
    except ValueError as error:
        raise RecipeError(f"{path} is not TOML: {error}", hint="see recipes/README.md") from error
    try:
        return record_of(Recipe, {"name": path.stem, **document})
    except ValueError as error:
        raise RecipeError(f"{path}: {error}", hint="see recipes/README.md for the keys") from error
