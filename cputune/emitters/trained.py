"""What a launch promises of its training, whether it was measured or not.

The words of each rank, digests of the files that they name (the script, its imports from its
folder, its data, a model's config.json), and, if the current launch was measured, what its
optimizer trained and the samples of its data set. ``verify`` compares the reports of ranks with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from cputune.emitters.format import Beside, EmittedFile, Output, Secret, Word
from cputune.emitters.imported import imported, module_files, text_of
from cputune.emitters.promise import PromisedTraining
from cputune.host import Host
from cputune.plans.workload import Workload

BESIDE = "$here/"
"""A file in the folder of the launch begins so."""


def trained(
    workload: Workload,
    command: Sequence[Word],
    host: Host | None,
) -> PromisedTraining:
    """What a launch of this command promises to train. Without a host no file is read."""
    words = tuple(map(_as_text, command))
    return PromisedTraining(
        words=words,
        files={} if host is None else digests(words, host),
        model=workload.model,
        data=workload.data,
    )


def with_companions(
    promised: PromisedTraining | None, companions: Iterable[EmittedFile]
) -> PromisedTraining | None:
    """The promise with digests of the files in the folder of the launch, except executable ones,
    which set the plan.
    """
    if promised is None:
        return None
    files = {
        BESIDE + companion.name: digest(companion.text)
        for companion in companions
        if not companion.executable
    }
    return replace(promised, files={**files, **promised.files})


def digests(words: Iterable[str], host: Host) -> dict[str, str]:
    """Digests of the files that words name, and of the config.json of models among them.

    ``--train_file=FILE`` names one too. Unreadable files are left out; of a large file the first 16
    MiB count.
    """
    named: list[str] = []
    before = ""
    for word in words:
        name = word.rpartition("=")[2] if word.startswith("-") else word
        if before == "-m":
            named += module_files(word, host)
        else:
            named += [name, *imported(name, host), f"{name}/config.json"]
        before = word
    texts = {path: text_of(path, host) for path in named}
    return {path: digest(text) for path, text in texts.items() if text is not None}


def digest(text: str) -> str:
    """Sixteen digits that tell one text from another."""
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]


def _as_text(word: Word) -> str:
    if isinstance(word, Secret):
        return f"{word.before}${{{word.variable}}}"
    if isinstance(word, Beside):
        return BESIDE + word.name
    if isinstance(word, Output):
        return word.before + word.name
    return str(word)
