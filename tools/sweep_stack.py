"""Compare each first and last release in stack.toml with the wheels that it was read from.

    python tools/sweep_stack.py WHEELS

WHEELS is a folder; the wheels of transformers and accelerate that are not there yet are downloaded
with pip (about 900 MB, without torch). Prints each row that a wheel contradicts, and the rows that
no wheel can show, which were executed instead. Exits with 1 if a row is contradicted.
"""

from __future__ import annotations

import ast
import email
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from cputune.stack.tables import DISTRIBUTIONS, Library, LibraryTable, load

SWEPT: tuple[Library, ...] = ("transformers", "accelerate")

TRAINER, ARGUMENTS = "trainer.py", "training_args.py"
BEHAVIOURS: dict[str, tuple[str, str]] = {
    # a behaviour: the file of its library, and what is in it of releases that behave so
    "fp16-refused": (ARGUMENTS, r"[Mm]ixed precision training with AMP or APEX"),
    "torch-load-refused": ("utils/import_utils.py", r"def check_torch_load_is_safe"),
    "trainer-calls-ipex": (TRAINER, r"ipex\.optimize\("),
    "switches-ipex-off": (ARGUMENTS, r"ACCELERATE_USE_IPEX"),
    "trainer-prepares-by-accelerate": (TRAINER, r"self\.accelerator\.prepare\("),
    "accelerate-starts-ranks": (ARGUMENTS, r"PartialState\("),
    "trainer-imports-ccl": (ARGUMENTS, r"import (oneccl_bindings_for_pytorch|torch_ccl)"),
    "reads-mpirun-ccl": ("utils/launch.py", r"mpirun_ccl"),
}
PASSED = ("keep_torch_compile", "dispatch_batches")
"""Keywords that Trainer passes to accelerate: a row of ``trainer-calls`` quotes one of them."""


def main() -> int:
    """Sweep all tables; 1 if a row is contradicted."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    wrong = 0
    for library in SWEPT:
        table = load().library(library)
        wheels = {version: wheel(folder, library, version) for version in table.read}
        for said in contradictions(library, table, wheels):
            print(said)
            wrong += 1
        print(f"{library}: {len(wheels)} wheels, {wrong} contradictions so far")
    shown = {row.name for name in SWEPT for row in load().library(name).behaviours}
    print("not swept, executed instead:", ", ".join(sorted(shown - {*BEHAVIOURS, "trainer-calls"})))
    return 1 if wrong else 0


def wheel(folder: Path, library: str, version: Version) -> zipfile.ZipFile:
    """The wheel of a release, downloaded if it is not there."""
    path = folder / f"{library}-{version}-py3-none-any.whl"
    if not path.exists():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(folder)]
        only = ["--ignore-requires-python", "--only-binary=:all:", f"{library}=={version}"]
        subprocess.run([*pip, *only], check=True)
    return zipfile.ZipFile(path)


def text_of(archive: zipfile.ZipFile, library: str, name: str) -> str:
    """A file of the package; empty if it has none of this name."""
    try:
        return archive.read(f"{library}/{name}").decode()
    except KeyError:
        return ""


Wheels = dict[Version, zipfile.ZipFile]


def contradictions(library: Library, table: LibraryTable, wheels: Wheels) -> Iterator[str]:
    """What the wheels say otherwise than the rows of this library."""
    kinds: list[tuple[str, Callable[[zipfile.ZipFile], set[str]]]] = [
        ("arguments", arguments_of),
        ("optimizers", lambda w: values_of(w, "transformers", ARGUMENTS, "OptimizerNames")),
        ("keys", keys_of),
        ("options", options_of),
        (
            "dynamo_backends",
            lambda w: values_of(w, "accelerate", "utils/dataclasses.py", "DynamoBackend"),
        ),
    ]
    for kind, names in kinds:
        rows = getattr(table, kind)
        for version, archive in wheels.items() if rows else ():
            there = names(archive)
            claimed = {row.name for row in rows if row.covers(version)}
            known = {row.name for row in rows}
            for name in sorted((there & known) ^ claimed):
                has = "has" if name in there else "lacks"
                yield f"{library} {version} {has} {name} ({kind}), the row says otherwise"
    yield from behaviours_otherwise(library, table, wheels)
    last = {(version.major, version.minor): version for version in wheels}
    for version in last.values():  # a row stands for the last patch of its minor release
        yield from needs_otherwise(library, table, version, wheels[version])


def behaviours_otherwise(library: Library, table: LibraryTable, wheels: Wheels) -> Iterator[str]:
    """Behaviours that the source of a wheel shows otherwise than their rows."""
    for name, (file, pattern) in BEHAVIOURS.items():
        rows = [row for row in table.behaviours if row.name == name]
        for version, archive in wheels.items() if rows else ():
            seen = re.search(pattern, text_of(archive, library, file)) is not None
            if seen != any(row.covers(version) for row in rows):
                yield f"{library} {version}: {name} is {'' if seen else 'not '}in {file}"
    for word in PASSED:
        for row in table.behaviours:
            quoted = row.claim is not None and word in row.claim
            for version, archive in wheels.items() if quoted else ():
                if passes(archive, word) != row.covers(version):
                    passed = "not passed" if row.covers(version) else "passed"
                    yield f"{library} {version}: {word} is {passed}, the row says otherwise"


def passes(archive: zipfile.ZipFile, word: str) -> bool:
    """Whether Trainer passes this keyword to accelerate, whatever accelerate it is."""
    trainer = text_of(archive, "transformers", TRAINER)
    if word != "dispatch_batches":
        return re.search(word, trainer) is not None
    # by itself, or with all fields of an AcceleratorConfig; 4.40 asks accelerate for its version
    own = "dispatch_batches=self.args.dispatch_batches" in trainer
    config = "accelerator_config" in trainer and "dataloader_config" not in trainer
    return own or config


def class_fields(text: str, names: tuple[str, ...]) -> set[str]:
    """The annotated fields of these classes of a module."""
    found = set[str]()
    for node in ast.walk(ast.parse(text)) if text else ():
        if isinstance(node, ast.ClassDef) and node.name in names:
            for line in node.body:
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                    found.add(line.target.id)
    return found


def arguments_of(archive: zipfile.ZipFile) -> set[str]:
    """The fields of TrainingArguments."""
    return class_fields(text_of(archive, "transformers", ARGUMENTS), ("TrainingArguments",))


def keys_of(archive: zipfile.ZipFile) -> set[str]:
    """The keys of a configuration of one machine."""
    text = text_of(archive, "accelerate", "commands/config/config_args.py")
    return class_fields(text, ("BaseConfig", "ClusterConfig"))


def options_of(archive: zipfile.ZipFile) -> set[str]:
    """The options of accelerate launch."""
    return set(re.findall(r'"(--\w+)"', text_of(archive, "accelerate", "commands/launch.py")))


def values_of(archive: zipfile.ZipFile, library: str, file: str, name: str) -> set[str]:
    """The values of an enumeration, in small letters."""
    found = set[str]()
    text = text_of(archive, library, file)
    for node in ast.walk(ast.parse(text)) if text else ():
        if isinstance(node, ast.ClassDef) and node.name == name:
            for line in node.body:
                if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant):
                    found.add(str(line.value.value).lower())
    return found


def needs_otherwise(
    library: Library, table: LibraryTable, version: Version, archive: zipfile.ZipFile
) -> Iterator[str]:
    """What the metadata of a wheel declares otherwise than the table's ``needs``."""
    (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
    metadata = email.message_from_bytes(archive.read(name))
    declared = {"python": metadata["Requires-Python"] or ""}
    for text in metadata.get_all("Requires-Dist", []):
        requirement = Requirement(text)
        short = canonicalize_name(requirement.name).replace("-", "_")
        environment = {**default_environment(), "python_version": "3.11"}
        for extra in ("", "torch", "accelerate"):
            marker = requirement.marker
            if marker is None or marker.evaluate({**environment, "extra": extra}):
                declared[short] = str(requirement.specifier)
    needs = table.needs_of(version)
    for column in ("python", *DISTRIBUTIONS):
        said, row = declared.get(column, ""), getattr(needs, column, "")
        if said != row:
            yield f"{library} {version} declares {column} {said!r}, the row says {row!r}"


if __name__ == "__main__":
    sys.exit(main())
