"""What is trained while tuning: a shipped or own recipe, or the user's own script.

A recipe is a TOML file of validated data; ``recipes/README.md`` describes its keys.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from cputune.errors import RecipeError, UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_RECIPE = "bert-mini"
TASKS = ("question-answering", "sequence-classification", "masked-lm", "causal-lm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A training job as data.

    ``model`` is a transformers configuration (``model_type`` and its fields), from
    which a model with random weights is built where ``hub_id`` cannot be reached.
    ``sequence_length`` and ``doc_stride`` are in tokens, ``global_batch_size`` in
    samples per optimizer step over all ranks.
    """

    name: str
    description: str
    task: str
    model: Mapping[str, Any]
    hub_id: str | None
    sequence_length: int
    global_batch_size: int
    learning_rate: float
    dataset: str | None = None
    doc_stride: int | None = None
    source: str | None = None

    def to_json(self) -> dict[str, Any]:
        """A mapping of plain JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The job whose speed is measured.

    Attributes:
        name: the recipe's name, or the script's file name.
        recipe: what to train, for a recipe.
        argv: the user's own script and its arguments, untouched, for a script.
        framework: "trainer" or "accelerate"; None until a trial of the script has shown it.
        parses_arguments: whether the script reads TrainingArguments from its command
            line (HfArgumentParser), so that a launch can pass ``--bf16`` and the like.
        global_batch_size: samples per optimizer step over all ranks; None while the
            script has not shown it yet.
        batch_per_rank: the guides' way instead: every rank takes this many samples,
            so that the global batch grows with the ranks.
    """

    name: str
    recipe: Recipe | None = None
    argv: tuple[str, ...] = ()
    framework: str | None = None
    parses_arguments: bool | None = None
    global_batch_size: int | None = None
    batch_per_rank: int | None = None

    @classmethod
    def from_recipe(cls, name: str, *, batch_per_rank: int | None = None) -> Workload:
        """A shipped recipe by its name, or one of yours by its path (``*.toml``).

        Raises RecipeError where there is none, or where it does not validate.
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
    ) -> Workload:
        """The user's own training script: ``["run_qa.py", "--do_train", ...]``.

        Raises UsageError without a script.
        """
        if not argv:
            raise UsageError(
                "no script was given", hint="cputune tune -- train.py --your-arguments"
            )
        return cls(
            name=Path(argv[0]).name,
            argv=tuple(argv),
            global_batch_size=global_batch_size,
            batch_per_rank=batch_per_rank,
        )

    def samples_per_rank(self, world_size: int) -> int | None:
        """Samples of one rank per optimizer step; None where the script decides.

        Raises ValueError where the global batch cannot be divided over the ranks.
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

    def observed(
        self,
        *,
        framework: str | None,
        global_batch_size: int | None,
        parses_arguments: bool | None = None,
    ) -> Workload:
        """The same job, with what its first trial has shown filled in."""
        return replace(
            self,
            framework=self.framework or framework,
            parses_arguments=(
                parses_arguments if self.parses_arguments is None else self.parses_arguments
            ),
            global_batch_size=self.global_batch_size or global_batch_size,
        )

    def to_json(self) -> dict[str, Any]:
        """A mapping of plain JSON values."""
        document = asdict(self)
        document["argv"] = list(self.argv)
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Workload:
        """Read what ``to_json`` wrote. Raises RecipeError where it is not a workload."""
        try:
            values = dict(document)
            recipe = values.get("recipe")
            values["recipe"] = None if recipe is None else _recipe(recipe, "the result file")
            values["argv"] = tuple(values.get("argv", ()))
            if recipe is None and not values["argv"]:
                raise ValueError("neither a recipe nor a script")
            return cls(**values)
        except (TypeError, ValueError, KeyError) as error:
            raise RecipeError(f"not a workload: {error}") from error


def recipes_dir() -> Path:
    """Where the shipped recipes lie: inside the wheel, or beside the package in a checkout."""
    inside = Path(str(resources.files("cputune") / "recipes"))
    return inside if inside.is_dir() else inside.parent.parent / "recipes"


def recipe_names() -> tuple[str, ...]:
    """The shipped recipes, sorted."""
    return tuple(sorted(path.stem for path in recipes_dir().glob("*.toml")))


def load_recipe(name: str) -> Recipe:
    """Read and validate a recipe by name or path. Raises RecipeError."""
    own = name.endswith(".toml") or "/" in name
    path = Path(name) if own else recipes_dir() / f"{name}.toml"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        if own:
            raise RecipeError(
                f"cannot read the recipe {name!r}: {getattr(error, 'strerror', None) or error}",
                hint="give the path of a TOML file, or one of: " + ", ".join(recipe_names()),
            ) from error
        raise RecipeError(
            f"no recipe is called {name!r}", hint="recipes: " + ", ".join(recipe_names())
        ) from error
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{path} is not TOML: {error}", hint="see recipes/README.md") from error
    return _recipe({"name": path.stem, **document}, str(path))


_FIELDS: dict[str, tuple[type | tuple[type, ...], bool]] = {
    # key: (type, required)
    "name": (str, True),
    "description": (str, True),
    "task": (str, True),
    "model": (Mapping, True),
    "hub_id": (str, False),
    "sequence_length": (int, True),
    "global_batch_size": (int, True),
    "learning_rate": ((float, int), True),
    "dataset": (str, False),
    "doc_stride": (int, False),
    "source": (str, False),
}


def _recipe(document: Mapping[str, Any], where: str) -> Recipe:
    def bad(message: str) -> RecipeError:
        return RecipeError(f"{where}: {message}", hint="see recipes/README.md for the keys")

    unknown = sorted(set(document) - set(_FIELDS))
    if unknown:
        raise bad(f"unknown key {unknown[0]!r}")
    values: dict[str, Any] = {"hub_id": None}
    for key, (kind, required) in _FIELDS.items():
        value = document.get(key)
        if value is None:
            if required:
                raise bad(f"the key {key!r} is missing")
            continue
        if not isinstance(value, kind) or isinstance(value, bool):
            raise bad(f"{key} has the wrong type: {value!r}")
        values[key] = value
    if values["task"] not in TASKS:
        raise bad(f"unknown task {values['task']!r}; known are {', '.join(TASKS)}")
    for key in ("sequence_length", "global_batch_size", "learning_rate"):
        if not values[key] > 0:
            raise bad(f"{key} must be above 0, not {values[key]}")
    if not isinstance(values["model"].get("model_type"), str):
        raise bad("model needs a model_type, as in a transformers configuration")
    stride = values.get("doc_stride")
    if stride is not None and not 0 < stride < values["sequence_length"]:
        raise bad(f"doc_stride must lie between 0 and the sequence length, not {stride}")
    values["model"] = dict(values["model"])
    return Recipe(**values)
