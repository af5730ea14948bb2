"""``cputune doctor -- python train.py …``: a launch, judged before it starts.

Its words are judged as those of a launch file. On this machine the script, its configuration and
its imports are checked too: a child of the typed Python really imports them, in this folder and
with the variables of this shell. For a recorded machine nothing of this one is read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cputune.doctor.checkfile import check_file
from cputune.doctor.checks.launch import ranks_alone
from cputune.doctor.deep import how_it_ended, messages_of, run_look
from cputune.doctor.files.context import Context
from cputune.doctor.files.judge import judge_launches
from cputune.doctor.files.judged_launch import JudgedLaunch
from cputune.doctor.finding import Finding, Severity, by_severity, checks_of, fault
from cputune.doctor.rehearsed_launch import launcher_starts, rehearsal_late, rehearsed
from cputune.doctor.script_calls import (
    changes_path,
    import_advice,
    import_fails,
    imported_modules,
    refused_arguments,
)
from cputune.errors import UsageError
from cputune.host import Around, Host, Interpreter, LiveHost, process
from cputune.host.facts import HostFacts
from cputune.host.files import exists, is_folder, real_path
from cputune.host.interpreter import shebang
from cputune.launch.launch import Launch, is_python
from cputune.launch.shell import read_words
from cputune.plans.training_command import require_trainable, script_text
from cputune.text.hidden import without_secrets

NAME = "the launch"
_STACK = ("torch", "transformers", "accelerate")


def read_launch(argv: Sequence[str], python: Interpreter) -> Launch:
    """The launch that these words are; ``train.py`` means ``python train.py``, as for ``tune``.

    ``python`` is the Python that trains.

    Raises UsageError if they start no training.
    """
    if argv and (argv[0].endswith(".py") or argv[0] == "-m"):
        # As for `tune`: that Python, unless it cannot train (cputune by pipx or uvx).
        program = "python"
        if python.has_module("torch"):
            program = python.executable
        argv = (program, *argv)
    launches = read_words(argv)
    if not launches:
        raise UsageError(
            "no training command was found after --",
            hint="cputune doctor -- python train.py --its-arguments, or with its launcher",
        )
    return replace(launches[0], line=0)


def python_of(launch: Launch, host: Host) -> str | None:
    """The Python that runs it: the typed one, else that of its launcher."""
    names = [word for word in launch.words if is_python(word)]
    program = host.which(names[-1] if names else launch.program)
    if program is None or names:
        return program
    return shebang(program)


def facts_of(launch: Launch, facts: HostFacts, host: Host) -> HostFacts:
    """The facts with what this launch adds: the folder searched first, the folder it writes to."""
    model = launch.argument("--model_name_or_path") or launch.argument("--model")
    around = Around(
        folder=_folder(launch),
        port=port_of(launch, facts.environment),
        address=address_of(launch),
        output=launch.argument("--output_dir") or "",
        model=model or "",
    )
    return replace(facts, surroundings=host.surroundings(around))


def port_of(launch: Launch, variables: Mapping[str, str]) -> str:
    """The port on which rank 0 listens; empty if the launcher picks a free one."""
    free = launch.option("--standalone", "--rdzv_endpoint", "--rdzv_backend") is not None
    if launch.launcher == "torchrun":
        if free:
            return ""
        typed = launch.option("--master_port") or variables.get("PET_MASTER_PORT")
        return typed or "29500"  # torchrun's default
    return launch.option("--main_process_port") or launch.environment.get("MASTER_PORT", "")


def address_of(launch: Launch) -> str:
    """The address of rank 0 that an option names; empty if none does, or only running shows it."""
    inside = launch.inside
    endpoint = inside.meant("rendezvous endpoint") or ""
    address = re.sub(r":\d*$", "", endpoint) or inside.meant("address") or ""
    if "$" in address:
        return ""
    return address


def _folder(launch: Launch) -> str:
    """The folder that Python searches first."""
    if launch.module:
        return process.folder()
    return os.path.dirname(real_path(launch.script))


def of_the_launch(
    findings: tuple[Finding, ...], launch: Launch, facts: HostFacts, host: Host
) -> tuple[Finding, ...]:
    """What a machine's findings mean for this launch.

    A script that starts its process group itself does not ask accelerate.
    """
    if not JudgedLaunch.of(launch, Context(name=NAME, facts=facts, host=host)).is_own:
        return findings
    return tuple(one for one in findings if one.code != ranks_alone.code)


def faults_of_words(argv: Sequence[str], facts: HostFacts) -> tuple[Finding, ...]:
    """What makes a typed launch fail or train something else, by its words alone.

    Nothing is started or imported, so this takes no time.
    """
    host = LiveHost()
    launch = read_launch(argv, facts.training_python)
    findings = judge_launches([launch], Context(name=NAME, facts=facts, host=host))
    return tuple(
        one
        for one in by_severity(of_the_launch(tuple(findings), launch, facts, host))
        if one.severity is Severity.ERROR or one.code == ranks_alone.code
    )


def judge_typed(launch: Launch, facts: HostFacts, host: Host) -> tuple[Finding, ...]:
    """Every fault of a typed launch, in addition to those of the machine."""
    findings = list(judge_launches([launch], Context(name=NAME, facts=facts, host=host)))
    if not host.live:
        return by_severity(findings)
    path = None
    if launch.launcher == "accelerate":
        path = launch.option("--config_file")
    if path:
        try:
            findings += check_file(host.read_text(path), path, facts, host)
        except (OSError, ValueError, UsageError) as error:
            findings.append(script_unfit.finding(f"--config_file {path}: {error}"))
    sharded = {one.code for one in findings} & {"argument-sharded"}
    text = ""
    try:
        require_trainable(launch.argv, python=host.interpreter, sharded=bool(sharded))
        text = script_text(launch.argv, host.interpreter)
    except UsageError as error:
        findings.append(script_unfit.finding(str(error), remedy=error.hint or None))
    findings += _absent(launch, facts, host)
    findings += refused_arguments(text, str(launch.script), facts)
    findings += _tried(launch, text, facts, host, findings)
    return by_severity(findings)


def _tried(
    launch: Launch, text: str, facts: HostFacts, host: Host, before: Sequence[Finding]
) -> Sequence[Finding]:
    """What fails when the imports are tried, and, unless there is an error, the whole script."""
    certain = list[Finding]()
    doubtful = list[_Doubtful]()
    for finding in _imports(launch, text, facts, host):
        if isinstance(finding, _Doubtful):
            doubtful.append(finding)
        else:
            certain.append(finding)
    if any(one.severity is Severity.ERROR for one in (*before, *certain)):
        return certain + [one.alone for one in doubtful]
    failures = list(launcher_starts(launch, host))
    if not text or any(one.severity is Severity.ERROR for one in failures):
        return certain + failures + [one.alone for one in doubtful]
    failures += rehearsed(launch, text, facts, host)
    if any(one.code == rehearsal_late.code for one in failures):
        return certain + failures + [one.alone for one in doubtful]
    seen = [one.finding for one in doubtful if one.is_seen_in(failures)]
    return certain + failures + seen


@dataclass(frozen=True, slots=True, kw_only=True)
class _Doubtful:
    """An import that failed by itself, and may work in the script.

    The script may have changed sys.path before it, and a module of its own may read arguments or
    LOCAL_RANK. The rehearsal, which runs the script, decides.
    """

    finding: Finding
    error: str

    @property
    def alone(self) -> Finding:
        """The finding if the script was not rehearsed."""
        evidence = f"{self.finding.evidence}; by itself: the script was not run up to this line"
        return replace(self.finding, evidence=evidence, severity=Severity.WARNING)

    def is_seen_in(self, failures: Sequence[Finding]) -> bool:
        return any(f": {self.error}: " in one.evidence for one in failures)


def _imports(
    launch: Launch, text: str, facts: HostFacts, host: Host
) -> Iterator[Finding | _Doubtful]:
    """Faults of really importing the stack and the script's modules in a child.

    Their messages may quote a token of the launch.
    """
    variables = {**host.environment(), **launch.environment}
    folder = _folder(launch)
    imported = list(imported_modules(text)) + list(_named_in_arguments(launch))
    modules = dict.fromkeys(list(_STACK) + imported)
    done = run_look(host, "imports.py", folder, *modules, **launch.environment)
    messages = messages_of(done)
    needed = {"torch", *imported}
    if "Trainer" in text:
        needed.add("accelerate")
    own = [name for name in imported if _is_beside(folder, name)]
    for message in messages:
        if "error" in message and (
            message["module"] in needed or message["error"] != "ModuleNotFoundError"
        ):
            said = without_secrets(message["said"], variables)
            finding = _failed({**message, "said": said}, folder, facts)
            absent = message["error"] == "ModuleNotFoundError"
            if message["module"] in _STACK:
                yield finding
            elif message["module"] in own or (absent and (own or changes_path(text))):
                yield _Doubtful(finding=finding, error=message["error"])
            else:
                yield finding
    if done.returncode != 0:
        trying = "python"
        if messages and "trying" in messages[-1]:
            trying = f"import {messages[-1]['trying']}"
        ended = without_secrets(how_it_ended(done), variables)
        yield import_fails.finding(f"{trying} {ended}")


def _is_beside(folder: str, name: str) -> bool:
    """Whether a module is a file or a folder next to the script."""
    return exists(f"{folder}/{name}.py") or is_folder(f"{folder}/{name}")


def _failed(failure: Mapping[str, str], folder: str, facts: HostFacts) -> Finding:
    """What was imported, how it failed, and in which file; one of our files by name."""
    evidence = f"import {failure['module']}: {failure['error']}: {failure['said']}"
    where = failure["where"]
    if where and where not in evidence:
        evidence += f" ({where})"
    missing = re.search(r"No module named '([\w.]+)'", failure["said"])
    remedy, command = None, None
    if missing:
        name = missing[1].partition(".")[0]
        remedy, command = import_advice(name, facts) or (
            f"Install {name} into the environment that trains.",
            None,
        )
    elif where.startswith(f"{folder}/"):
        remedy = "The file that fails is next to the script: rename it, or fix it."
    return import_fails.finding(evidence, remedy=remedy, command=command)


_REPORTERS = {"wandb", "mlflow", "comet_ml", "clearml", "swanlab", "neptune", "dvclive"}
# Part of the name of a Trainer optimizer: the module it imports (transformers/trainer.py).
_OPTIMIZERS = {
    "galore": "galore_torch",
    "apollo": "apollo_torch",
    "lomo": "lomo_optim",
    "adalomo": "lomo_optim",
    "schedule": "schedulefree",
    "grokadamw": "grokadamw",
}


def _named_in_arguments(launch: Launch) -> Iterator[str]:
    """Modules that Trainer imports because of these arguments."""
    if (reporter := launch.argument("--report_to")) in _REPORTERS:
        yield reporter
    parts = (launch.argument("--optim") or "").split("_")
    modules = dict[str, None]()
    for word, module in _OPTIMIZERS.items():
        if word in parts:
            modules[module] = None
    yield from modules


_READ = ("--resume_from_checkpoint", "--train_file", "--validation_file", "--test_file")


def _absent(launch: Launch, facts: HostFacts, host: Host) -> Iterator[Finding]:
    """Missing files that the arguments name, and a missing model that may not be downloaded."""
    for name in _READ:
        path = launch.argument(name) or ""
        if "." not in path and "/" not in path:  # "true": the newest checkpoint
            continue
        if not exists(process.in_home(path)):
            yield named_absent.finding(f"{name} {path}: the file does not exist")
    variables = {**host.environment(), **launch.environment}
    model = launch.argument("--model_name_or_path") or ""
    offline = []
    for n in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if variables.get(n) in _ON:
            offline.append(n)
    if model and offline and facts.surroundings.model_bytes is None and not is_folder(model):
        evidence = (
            f"{offline[0]}={variables[offline[0]]}, but the weights of {model} are not on "
            "this machine"
        )
        command = f"unset {' '.join(offline)}"
        yield named_absent.finding(evidence, command=command)


_ON = ("1", "ON", "YES", "TRUE", "true", "yes", "on", "True")


@fault("launch-file-absent", Severity.ERROR)
def named_absent() -> None:
    """A file or model that this launch reads is missing

    Symptom: "FileNotFoundError", "Can't find a valid checkpoint", "LocalEntryNotFoundError", after
    the imports, or in the queue.

    Cause: an argument names a file of another folder or machine; or HF_HUB_OFFLINE forbids a
    download, and the weights are neither in the cache below HF_HOME nor in a folder.

    Remedy: Correct the path, or bring the files to this machine first: `hf download MODEL`.

    Source: https://huggingface.co/docs/transformers/installation#offline-mode
    """


@fault("launch-script", Severity.ERROR)
def script_unfit() -> None:
    """This launch has nothing to run

    Symptom: "can't open file", "No module named", a SyntaxError, "config file not found".

    Cause: the script, the module or the configuration does not exist, cannot be read, or asks for
    what CPUs do not have. Paths are relative to the folder in which the launch is typed.

    Remedy: Correct the command.

    Source: https://docs.python.org/3/using/cmdline.html#interface-options
    """


CHECKS = checks_of(__name__)
