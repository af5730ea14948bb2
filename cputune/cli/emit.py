"""``cputune emit``: its options, and where the files go."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import click

from cputune.cli import completing, help_groups
from cputune.cli.inputs import (
    DEFAULT_RESULT,
    batch_options,
    choose_python,
    facts_of,
    launched,
    print_note,
    python_option,
    secret_option,
    tuned,
    typed_hosts,
)
from cputune.cli.option_defaults import (
    ConfiguredCommand,
    options_from,
    output_option,
    record_from_options,
    script_of,
)
from cputune.doctor.files.yaml_spans import read_documents
from cputune.emitters import FORMATS, PRINTED_FORMATS, EmittedFile, emit, parse_hosts
from cputune.emitters.command import PLAN_FILE
from cputune.emitters.folder import DIGEST, digest_of
from cputune.emitters.format import Emission
from cputune.emitters.like import launch_in, like
from cputune.errors import CannotError, UsageError
from cputune.host import LiveHost, read_document, write_atomically
from cputune.launch.edit import unified
from cputune.records.options import Cluster, EmitOptions
from cputune.records.result import Result
from cputune.records.written_files import remember, require_own

DEFAULT_DIRECTORY = Path("launch")
_NAMES = tuple(FORMATS) + tuple(PRINTED_FORMATS) + ("all",)


@click.command(
    name="emit",
    cls=ConfiguredCommand,
    takes_script=True,
    groups=help_groups.EMIT,
    usual=help_groups.USUAL_EMIT,
)
@click.argument(
    "result",
    required=False,
    metavar="[RESULT] [-- SCRIPT ARGS...]",
    shell_complete=completing.results,
)
@click.option(
    "--format",
    "-f",
    type=click.Choice(_NAMES),
    metavar="FORMAT",
    help="One of: " + ", ".join(_NAMES) + ".",
)
@click.option(
    "--like",
    metavar="FILE",
    help="Change your own launch file; prints the diff.",
    shell_complete=completing.files,
)
@output_option("Directory or file; - prints the main file. Default: launch/, for command -.", None)
@click.option("--force", is_flag=True, help="Replace files that cputune did not write.")
@click.option(
    "--root",
    metavar="DIR",
    help="Plan for a recorded machine (doctor --record DIR).",
    shell_complete=completing.folders,
)
@click.option("--other-machine", is_flag=True, help="Accept a result of another machine.")
@click.option(
    "--patch",
    metavar="FILE",
    help="YAML with your own fields, merged into the job.",
    shell_complete=completing.files,
)
@click.option(
    "--hostfile",
    metavar="FILE",
    help="Hosts, in any MPI's form.",
    shell_complete=completing.files,
)
@click.option("--hosts", help="Hosts: a,b:2,[fd00::1].", shell_complete=completing.HOSTS)
@options_from(EmitOptions)
@python_option
@click.option("--accelerate-version", metavar="VERSION", help="The job's accelerate: 1.12.")
@click.option("--transformers-version", metavar="VERSION", help="The job's transformers: 4.56.")
@batch_options
@secret_option
@options_from(Cluster)
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> None:
    """Write the launch files that reproduce a tuned plan.

    RESULT is what `cputune tune` wrote (cputune.json), or an id of `cputune history`. Without
    one the files have a default plan for this machine, and say that it was not measured.

    \b
    cputune emit --format mpirun
    cputune emit --format all -o launch --nodes 2 --hosts node1,node2
    cputune emit --format torchrun -- run_qa.py --model_name_or_path bert-base-uncased
    cputune emit --like train.sh | patch -p0
    """
    script = script_of(ctx)
    if (options["format"] is None) == (options["like"] is None):
        raise UsageError(
            "give either --format or --like", hint="--format torchrun, or --like train.sh"
        )
    output = options["output"]
    if output is None and options["format"] in PRINTED_FORMATS:
        output = "-"
    emit_options = record_from_options(EmitOptions, options)
    trains = choose_python(options["python"], script or ())
    facts = facts_of(options["root"], python=trains)
    if options["root"] is not None and options["python"] is not None:
        # A recorded machine, and the environment that will train on it.
        facts = replace(facts, packages=facts_of(python=trains).packages)
    result = tuned(options["result"], facts, other_machine=options["other_machine"])
    hosts = typed_hosts(options["hosts"], options["hostfile"], parse_hosts)
    batch = options["batch_per_rank"], options["global_batch_size"]
    versions = {name: options[f"{name}_version"] for name in ("accelerate", "transformers")}
    launch_file, patch, python = None, None, None
    if options["like"] is not None:
        launch_file = _own_launch(options["like"])
        script = launch_file.script or script
    if options["patch"] is not None:
        patch = _patch(options["patch"], options["format"])
    if facts.package("torch") and not facts.recorded:
        python = trains.executable
    nodes = emit_options.nodes or max(1, len(hosts))
    more: dict[str, Any] = {
        "facts": facts,
        "workload": launched(
            result, script, *batch, nodes=nodes, secret=options["secret"], python=trains
        ),
        "nodes": emit_options.nodes,
        "hosts": hosts,
        "mpi": emit_options.mpi,
        "keep": emit_options.keep,
        "no_guard": emit_options.no_guard,
        "ranks_per_node": emit_options.ranks_per_node,
        "self_contained": emit_options.self_contained,
        "importable": not facts.recorded and trains.has_module("cputune"),
        "python": python,
        "versions": {name: version for name, version in versions.items() if version},
        "cluster": record_from_options(Cluster, options),
        "named": options["result"] or str(DEFAULT_RESULT),
        "host": LiveHost(trains),
        "patch": patch,
    }
    if launch_file is not None:
        _like(launch_file, result, Emission(**more), output, force=options["force"])
        return
    files = emit(result, options["format"], **more)
    for note in dict.fromkeys(chain.from_iterable(file.notes for file in files)):
        print_note(note)
    _write(files, output, options["force"], several=options["format"] == "all")


def _patch(path: str, format: str | None) -> dict[str, Any]:
    if format not in ("pytorchjob", "trainjob", "all"):
        raise UsageError(
            "--patch needs a Kubernetes job", hint="--format pytorchjob, or --format trainjob"
        )
    try:
        contents = [document.value for document in read_documents(read_document(path), path)]
    except OSError as error:
        raise CannotError(
            f"cannot read {path}: {error.strerror or error}", hint="--patch takes a YAML file"
        ) from error
    if len(contents) != 1 or not isinstance(contents[0], dict):
        raise UsageError(
            f"{path} must be one YAML document with fields", hint="spec: …, metadata: …"
        )
    return contents[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnLaunch:
    """A launch file of the user. ``script`` is what it trains, if that could be read."""

    path: str
    text: str
    script: tuple[str, ...] | None


def _own_launch(path: str) -> OwnLaunch:
    try:
        if path == "-":
            text = sys.stdin.read()
        else:
            text = read_document(path)
    except OSError as error:
        problem = f"cannot read {path}: {error.strerror or error}"
        raise CannotError(problem, hint="--like takes a launch file") from error
    launch = launch_in(text, path)
    script = None
    if launch is not None:
        script = launch.argv
    return OwnLaunch(path=path, text=text, script=script)


def _like(
    launch_file: OwnLaunch,
    result: Result | None,
    emission: Emission,
    output: str | None,
    *,
    force: bool,
) -> None:
    done = like(launch_file.text, launch_file.path, result, emission)
    for note in done.notes:
        print_note(note)
    if output is None:
        click.echo(unified(launch_file.path, launch_file.text, done.text), nl=False)
        for file in done.beside:
            click.echo(unified(file.name, "", file.text), nl=False)
        return
    changed = EmittedFile(name=Path(launch_file.path).name, text=done.text, executable=True)
    _write([changed, *done.beside], output, force, several=False)


def _write(files: Sequence[EmittedFile], output: str | None, force: bool, *, several: bool) -> None:
    """Write all files or none: all targets are checked before the first one is written."""
    if output == "-":
        sys.stdout.write(files[0].text)
        if len(files) > 1:
            print_note("it also needs: " + ", ".join(file.name for file in files[1:]))
        return
    targets = _targets(files, output, several=several)
    for path, file in targets:
        if path.is_dir():
            raise CannotError(f"{path} is a directory", hint="choose another path with -o")
        require_own(path, file.text, force=force or _is_plan_as_written(path))
    if not force:
        _keep_plan_of_others(dict(targets))
    targets[0][0].parent.mkdir(parents=True, exist_ok=True)
    for path, file in targets:
        mode = 0o644
        if file.executable:
            mode = 0o755
        write_atomically(path, file.text, force=True, mode=mode)
    remember({path: file.text for path, file in targets})
    for path, _ in targets:
        click.echo(str(path))


def _is_plan_as_written(path: Path) -> bool:
    """Whether a plan.json has the digest of itself: another format lists other files in it."""
    if path.name != PLAN_FILE or not path.is_file():
        return False
    try:
        document = json.loads(read_document(path))
    except (OSError, ValueError, UsageError):
        return False
    return isinstance(document, dict) and document.get(DIGEST) == digest_of(document)


def _keep_plan_of_others(targets: dict[Path, EmittedFile]) -> None:
    """Raise CannotError if plan.json would be replaced, and another launch there still needs it."""
    for path, file in targets.items():
        if file.name != PLAN_FILE or not path.exists():
            continue
        if _trained_by(read_document(path)) == _trained_by(file.text):
            continue
        for other in sorted(path.parent.iterdir()):
            is_launch = other.suffix in {".sh", ".yaml"} and other not in targets
            if is_launch and PLAN_FILE in read_document(other):
                raise CannotError(
                    f"{path} has the plan of {other.name}, which is another one",
                    hint="-o FOLDER writes to another folder, --force replaces the plan",
                )


def _trained_by(text: str) -> object:
    """What launches take from a plan.json: the plan, and what is set in the process."""
    try:
        document = json.loads(text)
        return document.get("plan"), document.get("apply")
    except (ValueError, AttributeError):
        return text


def _targets(
    files: Sequence[EmittedFile], output: str | None, *, several: bool
) -> list[tuple[Path, EmittedFile]]:
    """The path of each file. If ``output`` has a suffix it is the path of the main file, else a
    folder.

    A suffix has two letters or more: ``launch-0.28`` and ``v1.x`` are folders.
    """
    place = DEFAULT_DIRECTORY
    if output:
        place = Path(output)
    suffix = re.fullmatch(r"\.[A-Za-z][A-Za-z0-9_]+", place.suffix)
    as_file = output is not None and suffix and not output.endswith("/") and not several
    if not as_file or place.is_dir():
        return [(place / file.name, file) for file in files]
    main, *others = files
    return [(place, main)] + [(place.parent / file.name, file) for file in others]
