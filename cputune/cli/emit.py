"""``cputune emit``: parsing, where files go, and what is said beside them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from cputune.cli._cluster import cluster_of
from cputune.cli._hosts import read_hostfile
from cputune.cli._seen import networks_seen
from cputune.cli._tuned import (
    WithScript,
    facts_of,
    launched,
    say,
    script_of,
    tuned,
)
from cputune.emitters import (
    FORMATS,
    MPI_DIALECTS,
    PRINTED_FORMATS,
    EmittedFile,
    Node,
    emit,
    parse_hosts,
)
from cputune.errors import CannotError, UsageError
from cputune.facts import Network
from cputune.host import read_document, write_atomically

DEFAULT_DIRECTORY = Path("launch")


def _completing(
    names: Sequence[str],
) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    return lambda _ctx, _parameter, typed: [name for name in names if name.startswith(typed)]


@click.command(name="emit", cls=WithScript)
@click.argument("result", required=False, type=click.Path(path_type=Path))
@click.option(
    "--format",
    "-f",
    "format_",
    required=True,
    metavar="FORMAT",
    shell_complete=_completing((*FORMATS, *PRINTED_FORMATS, "all")),
    help="One of: " + ", ".join((*FORMATS, *PRINTED_FORMATS, "all")) + ".",
)
@click.option(
    "-o", "--output", help="Directory or file; - prints the main file. Default: launch/, for env -."
)
@click.option("--force", is_flag=True, help="Replace files that exist.")
@click.option("--root", metavar="DIR", help="Plan for a recorded machine (doctor --record DIR).")
@click.option("--other-machine", is_flag=True, help="Take a result of another machine.")
@click.option("--nodes", type=int, help="Machines to run on. Default: as many as hosts, else 1.")
@click.option("--hostfile", type=click.Path(path_type=Path), help="Hosts, in any MPI's form.")
@click.option("--hosts", help="Hosts: a,b:2,[fd00::1].")
@click.option(
    "--mpi", metavar="NAME", help="One of: " + ", ".join(MPI_DIALECTS) + ". Default: as found."
)
@click.option("--accelerate-version", metavar="VERSION", help="Where the job runs, e.g. 1.12.")
@click.option("--transformers-version", metavar="VERSION", help="Where the job runs, e.g. 4.56.")
@click.option("--batch-per-rank", type=click.IntRange(min=1), help="Samples of each rank per step.")
@click.option(
    "--global-batch-size", type=click.IntRange(min=1), help="Samples of all ranks per step."
)
@click.option("--interface", help="Network interface between nodes, e.g. eth0.")
@click.option(
    "--doctor",
    "seen",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="What `doctor --hosts ... --json` saw: hosts and their interfaces.",
)
@click.option("--job-name", help="Name of the job on a cluster.")
@click.option("--namespace", help="Kubernetes namespace.")
@click.option("--image", help="Container image, e.g. registry.example.com/bert:1.")
@click.option("--base-image", help="Image that the Dockerfile starts from.")
@click.option("--pvc", help="Volume claim for data and output.")
@click.option("--pvc-size", help="Its size, e.g. 20Gi.")
@click.option("--storage-class", help="Its storage class.")
@click.option("--memory", help="Memory of a pod, e.g. 32Gi.")
@click.option("--shm", help="/dev/shm of a pod, e.g. 2Gi.")
@click.option("--node-selector", multiple=True, metavar="LABEL=VALUE", help="Nodes to run on.")
@click.option("--label", "labels", multiple=True, metavar="LABEL=VALUE", help="Of job and pods.")
@click.option(
    "--toleration",
    "tolerations",
    multiple=True,
    metavar="KEY[=VALUE][:EFFECT]",
    help="A taint of nodes that pods bear.",
)
@click.option("--image-pull-secret", "pull_secrets", multiple=True, help="Secret of the registry.")
@click.option(
    "--secret-env",
    "secret_variables",
    multiple=True,
    metavar="NAME=SECRET/KEY",
    help="A variable from a Secret, e.g. HF_TOKEN=hub/token.",
)
@click.option("--ttl", "ttl_seconds", type=int, help="Seconds that a PyTorchJob stays when done.")
@click.option("--user-id", type=int, help="User that pods run as. Default: 1000.")
@click.option("--runtime", help="ClusterTrainingRuntime of a TrainJob.")
@click.option("--time", "time_limit", help="Slurm time limit, e.g. 04:00:00.")
@click.option("--no-carrier", is_flag=True, help="Flags alone; refuse what they cannot carry.")
@click.option("--verify", is_flag=True, help="Then hand the files to their consumers.")
@click.option(
    "--share-machine", is_flag=True, help="Verify even while another process measures here."
)
@click.option("--partition", help="Slurm partition.")
@click.option("--account", help="Slurm account.")
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> None:
    """Write the launch files that reproduce a tuned plan.

    RESULT is what `cputune tune` wrote (cputune.json), or an id of `cputune history`. Without
    one the files hold the guides' default plan for this machine, and say that nothing was measured.

    \b
    cputune emit --format mpirun
    cputune emit --format all -o launch --nodes 2 --hosts node1,node2
    cputune emit --format torchrun -- run_qa.py --model_name_or_path bert-base-uncased
    """
    script = script_of(ctx)
    if options["output"] is None and options["format_"] in PRINTED_FORMATS:
        options["output"] = "-"
    if options["verify"] and options["output"] == "-":
        raise UsageError("--verify needs files", hint="cputune emit -f mpirun -o DIR --verify")
    if options["share_machine"] and not options["verify"]:
        raise UsageError("--share-machine is for --verify", hint="give --verify beside it")
    if options["verify"] and options["root"] is not None:
        raise UsageError("--verify starts ranks on this machine", hint="leave --root away")
    facts = facts_of(options["root"])
    result = tuned(options["result"], facts, other_machine=options["other_machine"])
    networks = {} if options["seen"] is None else networks_seen(options["seen"])
    hosts = _hosts(options["hostfile"], options["hosts"]) or _nodes_of(networks)
    files = emit(
        result,
        options["format_"],
        facts=facts,
        workload=launched(
            result,
            script,
            options["batch_per_rank"],
            options["global_batch_size"],
            nodes=options["nodes"] or len(hosts) or 1,
        ),
        nodes=options["nodes"],
        hosts=hosts,
        mpi=options["mpi"],
        python=sys.executable if facts.package("torch") and not facts.recorded else None,
        versions={
            name: options[f"{name}_version"]
            for name in ("accelerate", "transformers")
            if options[f"{name}_version"]
        },
        cluster=cluster_of(options),
        networks=networks,
        carrier=not options["no_carrier"],
    )
    for note in dict.fromkeys(note for file in files for note in file.notes):
        say(note)
    written = _write(
        files, options["output"], options["force"], several=options["format_"] == "all"
    )
    if options["verify"]:
        _verify(ctx, written, options["result"], share_machine=options["share_machine"])


def _hosts(hostfile: Path | None, hosts: str | None) -> tuple[Node, ...]:
    if hostfile is not None and hosts is not None:
        raise UsageError("--hostfile and --hosts exclude each other", hint="give one of them")
    if hosts is not None:
        return parse_hosts(hosts)
    if hostfile is None:
        return ()
    return read_hostfile(hostfile)


def _nodes_of(networks: Mapping[str, Network]) -> tuple[Node, ...]:
    """The hosts that the doctor has reached, where no others are named."""
    return tuple(Node(name=name) for name in networks)


def _write(
    files: Sequence[EmittedFile], output: str | None, force: bool, *, several: bool
) -> tuple[Path, ...]:
    """All files or none: every target is looked at before the first is written."""
    if output == "-":
        sys.stdout.write(files[0].text)
        if len(files) > 1:
            say("it needs beside it: " + ", ".join(file.name for file in files[1:]))
        return ()
    targets = _targets(files, output, several=several)
    for path, file in targets:
        if path.is_dir():
            raise CannotError(f"{path} is a directory", hint="choose another place with -o")
        if path.exists() and not force and not _holds(path, file.text):
            raise UsageError(f"{path} exists already", hint="give --force to replace it")
    directory = targets[0][0].parent
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotError(
            f"cannot make {directory}: {error.strerror}", hint="choose another place with -o"
        ) from error
    for path, file in targets:
        write_atomically(path, file.text, force=True, mode=0o755 if file.executable else 0o644)
    for path, _ in targets:
        click.echo(str(path))
    return tuple(path for path, _ in targets)


def _verify(
    ctx: click.Context, paths: Sequence[Path], result: Path | None, *, share_machine: bool
) -> None:
    from cputune.cli._output import tell
    from cputune.cli.verify import exit_code, print_text
    from cputune.report.tuning import waiting_line
    from cputune.verifier import verify
    from cputune.verifier.artefact import read

    verdicts = verify(
        [path for path in paths if read(path) is not None],
        result=result,
        share_machine=share_machine,
        on_wait=lambda owner: tell(waiting_line(owner)),
    )
    print_text(verdicts)
    ctx.exit(exit_code(verdicts))


def _targets(
    files: Sequence[EmittedFile], output: str | None, *, several: bool
) -> list[tuple[Path, EmittedFile]]:
    """Where each file goes: a name with a suffix is the main file's, where there is only one."""
    place = Path(output) if output else DEFAULT_DIRECTORY
    as_file = output is not None and place.suffix and not output.endswith("/") and not several
    if not as_file or place.is_dir():
        return [(place / file.name, file) for file in files]
    main, *others = files
    return [(place, main), *((place.parent / file.name, file) for file in others)]


def _holds(path: Path, text: str) -> bool:
    try:
        return read_document(path) == text
    except OSError:
        return False
