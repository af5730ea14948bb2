"""The configuration file that ``accelerate launch --config_file`` names, with the launch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cputune.doctor.files.judged_launch import JudgedLaunch
from cputune.doctor.files.yaml_spans import Document, read_documents
from cputune.errors import UsageError

NAMES = "--config_file"
MACHINE = "machine_rank"


def options_of(document: Document) -> Iterator[str]:
    """The options of accelerate launch that the keys of a configuration stand for."""
    values = dict(document.mapping())
    values["mpirun_hostfile"] = document.get("mpirun_config", "mpirun_hostfile")
    for key, value in values.items():
        is_set = value is not None and value is not False
        # Each machine may have a file with its own number.
        if is_set and key != MACHINE and not isinstance(value, dict | list):
            yield f"--{key}={value}"


def configuration_of(launch: JudgedLaunch) -> tuple[str, Document | None]:
    """The file that a launch names, and its content; None if it cannot be read."""
    path = launch.inside.option(NAMES)
    if not path:
        return "", None
    folder, _, name = path.rpartition("/")
    if "$" in folder:  # "$here/accelerate.yaml": a file next to the script
        path = name
    text = None
    if "$" not in path:
        text = launch.context.text_of(path)
    if text is None:
        return path, None
    try:
        documents = read_documents(text, path)
    except UsageError:
        return path, None
    if len(documents) == 1 and documents[0].mapping():
        return path, documents[0]
    return path, None


def configured(launch: JudgedLaunch) -> JudgedLaunch:
    """The launch with the options of its configuration; what is typed takes precedence.

    If the file cannot be read, neither ranks nor addresses are known.
    """
    if launch.launcher != "accelerate":
        return launch
    path, document = configuration_of(launch)
    if not path:
        return launch
    options = ["--main_process_ip=$unknown"]
    if document is not None:
        options = list(options_of(document))
        machine = document.get(MACHINE)
        if launch.part and machine is not None:  # srun starts it on all machines with this file
            options.append(f"--{MACHINE}={machine}")
    return replace(launch, options=tuple(options) + launch.options)
