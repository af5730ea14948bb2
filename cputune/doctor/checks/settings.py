"""Variables with another effect than intended: mistyped, left over, malformed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache

from cputune.doctor import variables as env
from cputune.doctor.finding import Finding, Severity, check, checks_of
from cputune.host.facts import HostFacts
from cputune.plans.cores import usable_cores


@check("threads-serial", Severity.WARNING)
def threads_serial(facts: HostFacts) -> Iterator[Finding]:
    """OMP_MAX_ACTIVE_LEVELS=0 lets only one thread compute

    Symptom: one core is busy, the others are idle, and torch.get_num_threads() says many.

    Cause: with no active level every parallel region runs in one thread (libgomp, libiomp5).

    Remedy: Unset the variable.

    Source: https://www.openmp.org/spec-html/5.0/openmpse57.html; executed: the other threads did 0
    % of a matmul, 49 % without it
    """
    if env.value(facts, "OMP_MAX_ACTIVE_LEVELS") == "0" and len(usable_cores(facts)) > 1:
        yield env.unset(threads_serial, facts, "OMP_MAX_ACTIVE_LEVELS")


@check("training-changed", Severity.WARNING)
def training_changed(facts: HostFacts) -> Iterator[Finding]:
    """A variable changes what is trained

    Symptom: other losses, another number of steps or a long first step, with the same command.

    Cause: accelerate launch and guides export such variables, and every later run in this shell
    uses them.

    Remedy: Unset the variable, unless this training is meant to use it.

    Source: https://huggingface.co/docs/accelerate/usage_guides/environment_variables,
    https://uxlfoundation.github.io/oneDNN/dev_guide_attributes_fpmath_mode.html
    """
    for row in env.variable_rows("changes"):
        for name in sorted(facts.environment):
            text = env.value(facts, name)
            if text is None or not re.fullmatch(row["name"], name):
                continue
            if re.fullmatch(f"(?i:{row['values']})", text):
                yield env.unset(training_changed, facts, name, f": {row['does']}")


# A value that sets another variable, for ``export $SETTING``.
_HOLDS_ANOTHER = re.compile(r"[A-Z][A-Z0-9_]+=")


@check("variable-mistyped", Severity.WARNING)
def variable_mistyped(facts: HostFacts) -> Iterator[Finding]:
    """A variable's name is almost one that libraries read

    Symptom: the variable changes nothing.

    Cause: no library reads this name. It differs by one letter from a name that is read.

    Remedy: Correct the name.

    Source: https://www.openmp.org/spec-html/5.0/openmpch6.html,
    https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables
    """
    for name, text in sorted(facts.environment.items()):
        meant = _intended_name(name)
        holds_another = _HOLDS_ANOTHER.match(text)  # KMP_SETTING="KMP_AFFINITY=compact"
        if meant is not None and not holds_another:
            yield variable_mistyped.finding(
                f"{name}={text}; libraries read {meant}",
                command=f"export {meant}={shlex.quote(text)}\nunset {name}",
            )


@cache
def _read_names() -> frozenset[str]:
    """Names that libraries read, and names of the other rows."""
    (row,) = env.variable_rows("read")
    names = set(row["names"])
    for table in ("refused", "slow", "caps"):
        names.update(each["name"] for each in env.variable_rows(table))
    return frozenset(names)


@cache
def _intended_name(name: str) -> str | None:
    """The known name one slip away from this one; None for zero or several."""
    if name in _read_names() or len(name) < 7:
        return None
    near = []
    for candidate in _read_names():
        if _one_slip(name, candidate):
            near.append(candidate)
    if len(near) == 1:
        return near[0]
    return None


def _one_slip(typed: str, meant: str) -> bool:
    """Whether one letter was added, left out, changed, or swapped with the next."""
    if abs(len(typed) - len(meant)) > 1:
        return False
    start = 0
    while start < min(len(typed), len(meant)) and typed[start] == meant[start]:
        start += 1
    rest_typed, rest_meant = typed[start:], meant[start:]
    if len(typed) > len(meant):
        return rest_typed[1:] == rest_meant
    if len(typed) < len(meant):
        return rest_typed == rest_meant[1:]
    swapped = rest_typed[1:2] + rest_typed[:1] + rest_typed[2:]
    return rest_typed[1:] == rest_meant[1:] or swapped == rest_meant


@check("file-named-absent", Severity.ERROR)
def file_named_absent(facts: HostFacts) -> Iterator[Finding]:
    """A variable names a file that is not there

    Symptom: "Could not find a suitable TLS CA certificate bundle, invalid path", or a
    FileNotFoundError from httpx or requests, at the first download.

    Cause: the variable was set on another machine, or in an image with other certificates.

    Remedy: Unset the variable, or name a file of this machine.

    Source: https://requests.readthedocs.io/en/latest/user/advanced/#ssl-cert-verification
    """
    for name in facts.files_missing:
        yield env.unset(file_named_absent, facts, name, ": the file does not exist")


# A list of hosts or addresses, a range of Slurm, and all addresses of a machine.
_SEVERAL = re.compile(
    r"^[\w.-]+(?:[,\s]+[\w.-]+)+$|^[\w.-]+\[[\d,-]+\]|^\$\(hostname (?:-I|--all-ip-addresses) *\)$"
)


@check("master-addr-malformed", Severity.ERROR)
def master_addr_malformed(facts: HostFacts) -> Iterator[Finding]:
    """MASTER_ADDR is not an address

    Symptom: "Name or service not known", "getaddrinfo failed", after the ranks have waited.

    Cause: MASTER_ADDR holds only the name or address of rank 0; the port is MASTER_PORT. A list of
    hosts, a range such as node[01-04], and `hostname -I`, which prints all addresses of a machine,
    are no address.

    Remedy: Set both.

    Source: https://pytorch.org/docs/stable/distributed.html#environment-variable-initialization
    """
    text = env.value(facts, "MASTER_ADDR") or ""
    host, _, port = text.removeprefix("tcp://").partition(":")
    if _SEVERAL.search(text):
        first = 'export MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"'
        in_job = "SLURM_JOB_NODELIST" in facts.environment
        yield master_addr_malformed.finding(
            f"MASTER_ADDR={text}: it holds more than one", command=first if in_job else None
        )
    elif "://" in text or (host and port.isdigit() and ":" not in port):
        split = 'export MASTER_PORT="${MASTER_ADDR##*:}" MASTER_ADDR="${MASTER_ADDR%:*}"'
        yield master_addr_malformed.finding(
            f"MASTER_ADDR={text}", command=split if "://" not in text else None
        )


@check("pin-processor-list", Severity.WARNING)
def pin_processor_list(facts: HostFacts) -> Iterator[Finding]:
    """Intel MPI binds each rank to one CPU

    Symptom: all threads of a rank run on one core.

    Cause: I_MPI_PIN_PROCESSOR_LIST gives each rank one CPU, which all its OpenMP threads inherit.
    I_MPI_PIN_DOMAIN gives a rank several.

    Remedy: Unset it, and set I_MPI_PIN_DOMAIN=omp: each rank then gets as many CPUs as threads.

    Source:
    https://www.intel.com/content/www/us/en/docs/mpi-library/developer-reference-linux/2021-14/process-pinning.html
    """
    name, threads = "I_MPI_PIN_PROCESSOR_LIST", env.number(facts, "OMP_NUM_THREADS")
    if env.value(facts, name) and not env.value(facts, "I_MPI_PIN_DOMAIN") and threads != 1:
        evidence = f"{name}={env.value(facts, name)}, OMP_NUM_THREADS={threads or '(unset)'}"
        yield pin_processor_list.finding(
            evidence, command=f"unset {name}\nexport I_MPI_PIN_DOMAIN=omp"
        )


CHECKS = checks_of(__name__)
