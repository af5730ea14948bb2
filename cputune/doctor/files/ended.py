"""What a launch file of an earlier stack uses and this stack does not have: launchers of a
package, sourced files, variables; ``stack.toml`` has the versions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from cputune.doctor.files import fixing
from cputune.doctor.files.context import Context
from cputune.doctor.files.judged_launch import JudgedLaunch
from cputune.doctor.finding import Check, Finding, Severity, checks_of, fault
from cputune.launch.grammar import Tree
from cputune.launch.places import Places
from cputune.launch.translate import Translated
from cputune.launch.write import translated
from cputune.stack.tables import load

# Commands that may put a launcher on PATH.
_BRINGS = re.compile(r"(?m)^\s*(?:module|ml|spack|conda|micromamba|source|\.)\s|\bPATH=")


@fault("file-launcher-missing", Severity.ERROR)
def launcher_missing() -> None:
    """The launcher of this file is not installed

    Symptom: "ipexrun: command not found", "mpirun: command not found", "No module named
    'intel_extension_for_pytorch'".

    Cause: ipexrun and intel_extension_for_pytorch.cpu.launch came with IPEX, last release 2.8.0;
    deepspeed is a separate package.

    Remedy: Start one rank with python, several with torchrun or mpirun; set OMP_NUM_THREADS and the
    CPUs as `cputune emit` does.

    Source: https://github.com/intel/intel-extension-for-pytorch,
    https://docs.pytorch.org/docs/stable/elastic/run.html
    """


@fault("file-variable-unread", Severity.WARNING)
def variable_unread() -> None:
    """A variable that nothing reads here

    Symptom: models are downloaded into another folder, or ccl is not used, although the variable is
    set.

    Cause: transformers reads TRANSFORMERS_CACHE up to 4.57. oneCCL, and accelerate up to 1.12, read
    CCL_ variables.

    Remedy: Change it as the evidence says, or remove it.

    Source: huggingface/transformers:src/transformers/utils/hub.py, huggingface/accelerate#3883
    """


def may_bring_programs(context: Context) -> bool:
    """Whether a command of the file may put a launcher on PATH."""
    return context.places is not None and _BRINGS.search(context.places.code) is not None


def _starts_if_there(launch: JudgedLaunch) -> bool:
    """Whether the launch is in a branch that asks for its program (``command -v mpirun``)."""
    places, program = launch.context.places, launch.program.rpartition("/")[2]
    if places is None or places.yaml or launch.span is None:
        return False
    asked = rf"\b(?:command\s+-[vV]|which|type|hash)\s+(?:-\S+\s+)*[\"']?{re.escape(program)}\b"
    tree = Tree(places.text)
    for node in (*tree.nodes("if_statement"), *tree.nodes("list")):
        span = tree.span(node)
        around = span.start < launch.span.start and launch.span.end <= span.end
        if around and re.search(asked, tree.of(node)):
            return True
    return False


def _variables(launch: JudgedLaunch) -> Iterator[Finding]:
    version = launch.context.versions.transformers
    for row in load().transformers.variables:
        value = launch.environment.get(row.name)
        if value is None or version is None or row.covers(version):
            continue
        instead = row.instead(version) or ""
        text = f"{row.name} is not read by transformers {version}: write {instead}"
        edits = launch.context.edits_by(Places.rename_variable, row.name, instead)
        yield variable_unread.finding(launch.at(text), edits=edits)
    ccl = [name for name in launch.environment if name.startswith("CCL_")]
    accelerate = launch.context.versions.accelerate
    lacks_ccl = accelerate is not None and load().accelerate.does("no-ccl", accelerate)
    if ccl and _is_without_ccl(launch.context) and lacks_ccl and launch.context.here:
        text = f"{', '.join(ccl)}: oneCCL is not installed, and accelerate {accelerate} has no ccl"
        edits = ()
        if launch.by_library:
            for name in ccl:
                edits += launch.edits_by(Places.unset_variable, name)
        yield variable_unread.finding(launch.at(text), edits=edits)


@fault("file-instances", Severity.ERROR)
def instances_alone() -> None:
    """Each of these instances trains the same model alone

    Symptom: no error, and no faster: every instance reports world size 1.

    Cause: torch.backends.xeon.run_cpu starts processes that do not communicate. It is made for
    inference.

    Remedy: Start the ranks with torchrun.

    Source: https://docs.pytorch.org/docs/stable/backends.html, torch/backends/xeon/run_cpu.py
    """


def judge_ended(launch: JudgedLaunch) -> Iterator[Finding]:
    """Launchers that are gone, and variables that nothing reads."""
    yield from _launcher(launch)
    yield from _variables(launch)


# Arguments of a script that uses deepspeed itself, so that no other launcher starts it.
_OF_DEEPSPEED = ("--deepspeed", "--deepspeed_config", "--zero_stage")


def _own_deepspeed(launch: JudgedLaunch) -> str | None:
    """The argument that shows that a script uses deepspeed without Trainer, or None."""
    used = [name for name in _OF_DEEPSPEED if launch.argument(name) is not None]
    if launch.launcher != "deepspeed" or not used:
        return None
    return None if launch.is_trainers(used[0]) else used[0]


def _launcher(launch: JudgedLaunch) -> Iterator[Finding]:
    rows = {row.name: row for row in load().launchers}
    row = rows.get(launch.launcher)
    # What an image has is not known, and a script may have asked for the program itself.
    may_be_missing = launch.container is None and not _starts_if_there(launch)
    if row is not None and launch.facts.package(row.package) is None and may_be_missing:
        text = f"{launch.launcher} comes with {row.package}, which is not installed: {row.why}"
        if row.package == launch.launcher:
            text = f"{row.package} is not installed: {row.why}"
        own = _own_deepspeed(launch)
        if own is None:
            replacement = fixing.plain_launcher(launch)
            yield by_another(launcher_missing, text, replacement, launch)
        else:
            text = f"deepspeed is not installed, and the script uses it itself ({own})"
            evidence = launch.at(text)
            yield launcher_missing.finding(evidence, command="pip install deepspeed")
    context = launch.context
    programs = _of_mpi(launch)
    if (
        programs
        and row is None
        and may_be_missing
        and context.here
        and context.host.live
        and not may_bring_programs(context)
        and not any(map(context.host.which, programs))
    ):
        named = " and ".join(programs)
        verb = "is" if len(programs) == 1 else "are"
        text = f"{named} {verb} not on the PATH of this machine"
        yield launcher_missing.finding(launch.at(text))
    if launch.launcher == "run_cpu" and launch.several:
        text = f"run_cpu --ninstances {launch.total}"
        yield by_another(instances_alone, text, fixing.plain_launcher(launch), launch)


def _of_mpi(launch: JudgedLaunch) -> tuple[str, ...]:
    """The programs of an MPI of which a launch needs one."""
    if launch.launcher == "mpirun":
        return (launch.program,)
    if launch.launcher == "accelerate" and launch.option("--mpirun_hostfile") is not None:
        return ("mpirun", "mpiexec")  # accelerate takes the first of them
    return ()


def by_another(check: Check, text: str, replacement: Translated, launch: JudgedLaunch) -> Finding:
    """The finding for a launcher to replace, with the edits or the reason against them."""
    edits = launch.edits_by(fixing.relaunched, replacement)
    if replacement.refused and launch.context.places is not None and launch.script:
        program = " ".join(replacement.words)
        text += f"; {program} has no option for {', '.join(dict.fromkeys(replacement.refused))}"
    elif not edits and launch.context.places is not None and "$" not in launch.script != "":
        # Its words are in variables, or in another shell: they are not searched for.
        words = translated(launch, replacement).replace("$?", "…")  # what only running shows
        text += f"; write: {words} …"
    dropped = tuple(launch.at(one) for one in replacement.left_out)
    return check.finding(launch.at(text), edits=edits, dropped=dropped)


@fault("file-sourced-missing", Severity.ERROR)
def sourced_missing() -> None:
    """A sourced file does not exist

    Symptom: "setvars.sh: No such file or directory", or "No module named
    'oneccl_bindings_for_pytorch'" before the training starts.

    Cause: env/setvars.sh is in the oneCCL bindings, or below /opt/intel/oneapi. gloo, the backend
    of the current stack, needs neither.

    Remedy: Remove the line, or install what contains the file.

    Source: https://huggingface.co/docs/transformers/v4.43.2/en/perf_train_cpu_many
    """


def judge_sourced(context: Context) -> Iterator[Finding]:
    """Sourced files of oneCCL, oneAPI or an environment that do not exist."""
    if context.places is None:
        return
    for line, path, of_bindings, edits in fixing.sourced(context.places):
        if of_bindings:
            gone = _is_without_ccl(context)
        else:
            gone = _is_gone(path, context)
        if gone and not _is_tested(path, context.places.code):
            problem = ", which does not exist"
            if of_bindings:
                problem = ": the oneCCL bindings are not installed"
            text = f"{context.name}:{line}: sources {path}{problem}"
            # Without another one than setvars.sh another Python would train.
            removes = path.endswith("setvars.sh") and (of_bindings or not _brings_mpi(context))
            yield sourced_missing.finding(text, edits=edits if removes else ())


def _is_tested(path: str, code: str) -> bool:
    """Whether a script asks whether a file exists before it sources it, or goes on without it."""
    name = re.escape(path)
    tested = rf"""-[efrs][ \t]+["']?{name}|\b(?:source|\.)[ \t]+["']?{name}[^\n;]*\|\|"""
    return re.search(tested, code) is not None


def _is_without_ccl(context: Context) -> bool:
    """Whether the bindings of oneCCL are known to be absent."""
    return context.versions.oneccl is None and "oneccl" not in context.versions.unreadable


def _brings_mpi(context: Context) -> bool:
    """Whether the setup of oneAPI may bring the mpirun of this file, which is not on PATH."""
    code = context.places.code if context.places is not None else ""
    named = set(re.findall(r"(?m)^[^\n#]*?\b(mpirun|mpiexec(?:\.hydra)?)\s", code))
    return any(context.host.which(program) is None for program in named)


def _is_gone(path: str, context: Context) -> bool:
    """Whether a file is missing on this machine; False if its path has a variable."""
    if "$" in path or context.target.elsewhere:
        return False
    home = context.host.environment().get("HOME")
    if path.startswith("~/") and home:
        path = home + path[1:]
    if not context.here or not path.startswith("/"):
        return False
    try:
        context.host.read_text(path)
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False
    return False


CHECKS = checks_of(__name__)
