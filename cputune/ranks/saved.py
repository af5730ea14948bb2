"""The keys of files that a training saves, read without running any code in them."""

from __future__ import annotations

import io
import json
import pickle
import re
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# Of what is read of a file: its header, or its structure without the tensors.
MOST_BYTES = 64 << 20

DEEPEST = 4  # levels of keys that are read
EVALUATED = re.compile(
    r"eval(uation)?|val(id|idation)?|dev|test|acc(uracy)?|f1|precision|recall|auc|bleu|rouge[12l]?"
    r"|meteor|perplexity|ppl|mrr|ndcg|[wc]er|em|score|r?mse|mae|r2|iou|dice|matthews|pearson"
    r"|spearmanr?|metric"
)
# Words in the keys of an evaluation's metrics, and of other values next to them.
BESIDE = re.compile(
    r"train(ing)?|(run)?time|seconds?|steps?|samples|batch|flos|memory|size|num|count|epochs?"
    r"|world|rank|process|rate|lr|args|config"
)


def keys_of(path: Path) -> frozenset[str] | None:
    """The keys of a file of safetensors, ``torch.save`` or JSON; None if it is another file, or
    damaged.

    Keys within others are joined with dots.
    """
    try:
        content = _content(path)
    except Exception:  # a damaged pickle raises whatever its opcodes lead to
        return None
    return None if content is None else frozenset(_keys(content, "", DEEPEST))


def metrics_of(path: Path) -> dict[str, tuple[float, ...]]:
    """The metrics of an evaluation, by the keys of a JSON file; in a list one after the other.

    Times, speeds and sizes are left out, and values of training, which are of one rank's samples.
    """
    if path.suffix not in (".json", ".jsonl"):
        return {}
    try:
        content = _content(path)
    except Exception:  # a damaged file
        return {}
    metrics: dict[str, tuple[float, ...]] = {}
    for key, value in _numbers(content, "", DEEPEST):
        parts = re.split(r"[^a-z0-9]+", key.lower())
        if any(map(EVALUATED.fullmatch, parts)) and not any(map(BESIDE.fullmatch, parts)):
            metrics[key] = (*metrics.get(key, ()), value)
    return metrics


def _numbers(content: Any, key: str, deepest: int) -> Iterator[tuple[str, float]]:
    if isinstance(content, Mapping) and deepest:
        for name, value in content.items():
            yield from _numbers(value, f"{key}.{name}" if key else str(name), deepest - 1)
    elif isinstance(content, (list, tuple)):
        for value in content:
            yield from _numbers(value, key, deepest)
    elif isinstance(content, (int, float)) and not isinstance(content, bool):
        yield key, float(content)


def _content(path: Path) -> Any:
    if path.suffix == ".json":
        return json.loads(_start(path))
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in _start(path).splitlines() if line.strip()]
    if path.suffix == ".safetensors":
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header: dict[str, Any] = json.loads(file.read(min(length, MOST_BYTES)))
        return dict.fromkeys(name for name in header if name != "__metadata__")
    if path.suffix not in (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".tar"):
        return None
    if not zipfile.is_zipfile(path):
        return _Structure(io.BytesIO(_start(path))).load()
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
        with archive.open(name) as file:
            return _Structure(io.BytesIO(file.read(MOST_BYTES))).load()


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MOST_BYTES)


class _Anything:
    """Replaces every class and function that a pickle names; nothing of them is called."""

    def __new__(cls, *_: object, **__: object) -> _Anything:
        return object.__new__(cls)

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass

    def __setitem__(self, key: object, value: object) -> None:
        pass

    def append(self, value: object) -> None:
        """Take an element of a list and forget it."""

    def extend(self, values: object) -> None:
        """The same for several."""


class _Structure(pickle.Unpickler):
    """Reads dictionaries, lists and texts alone."""

    def find_class(self, module: str, name: str) -> type:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        return _Anything

    def persistent_load(self, pid: object) -> _Anything:
        return _Anything()


def _keys(content: Any, before: str, deepest: int) -> Iterator[str]:
    if isinstance(content, Mapping) and deepest:
        for key, value in content.items():
            if isinstance(key, str):
                yield f"{before}{key}"
                yield from _keys(value, f"{before}{key}.", deepest - 1)
    elif isinstance(content, (list, tuple)):
        for value in content:
            yield from _keys(value, before, deepest)
