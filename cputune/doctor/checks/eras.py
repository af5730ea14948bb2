"""Packages that fit and are yet not used, used unasked, or asked in words that mean nothing.

The IPEX era ended piece by piece: transformers 4.57 dropped ``use_ipex``, accelerate 1.13
IPEX and oneCCL, transformers 5.1 the ccl backend. What is left over says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from cputune.doctor.finding import Check, Finding, Severity, check
from cputune.doctor.variables import is_true, value
from cputune.facts import HostFacts
from cputune.stack import load, versions_of
from cputune.stack.uses import ccl_refusals, ccl_use, ipex_use
from cputune.stack.ways import way_out


@check(
    "ipex-ignored",
    Severity.WARNING,
    title="IPEX is installed, and nothing calls it",
    remedy="Take the accelerate of the IPEX era, or remove IPEX.",
    source="huggingface/transformers#40784, huggingface/accelerate#3883",
)
def ipex_ignored(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: IPEX is installed and fits, and training is as fast as without it.

    Cause: Trainer called ``ipex.optimize`` itself in transformers 4.20 to 4.52; after
    that only accelerate could, and 1.8 to 1.12 do it with torch below 2.7 only, 1.13
    and later never.
    """
    versions = versions_of(facts)
    trainer, own = ipex_use(versions), ipex_use(versions, framework="accelerate")
    if own.state != "ignored" or trainer.possible:
        return
    said = trainer.reason if trainer.state == "ignored" else own.reason
    way = way_out("ipex", versions)
    yield ipex_ignored.finding(said, command=way.command() if way else None)


@check(
    "ipex-unasked",
    Severity.ADVICE,
    title="accelerate uses IPEX whether it is asked to or not",
    remedy="Switch it off where a run without IPEX is wanted, in the environment or the YAML.",
    source="huggingface/transformers#24871",
)
def ipex_unasked(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: the run uses IPEX although ``use_ipex=False``.

    Cause: accelerate 0.20 to 1.7 (1.8 to 1.12 with torch below 2.7) takes
    ``ACCELERATE_USE_IPEX`` for true where it is not set, and calls ``ipex.optimize``
    wherever IPEX can be imported. In a YAML: ``ipex_config: {ipex: false}``. Trainer stands
    on accelerate from transformers 4.30 on; in 4.32 to 4.57 TrainingArguments sets the
    variable to false, so that only scripts with an Accelerator of their own are left.
    """
    versions = versions_of(facts)
    if ipex_use(versions, framework="accelerate").state != "used unasked":
        return
    if value(facts, "ACCELERATE_USE_IPEX"):
        return
    every = ipex_use(versions).state in ("used unasked", "unknown")
    whose = "in every script" if every else "in scripts with an Accelerator, not in Trainer's"
    yield ipex_unasked.finding(
        f"accelerate {versions.accelerate}, intel_extension_for_pytorch {versions.ipex}, "
        f"ACCELERATE_USE_IPEX is not set: {whose}",
        command="export ACCELERATE_USE_IPEX=false",
    )


@check(
    "oneccl-unused",
    Severity.WARNING,
    title="The oneCCL bindings are installed, and Trainer cannot use them",
    remedy="Use gloo, or take the versions that know ccl: transformers 4.22 to 5.0, "
    "accelerate up to 1.12.",
    source="huggingface/accelerate#3883",
)
def oneccl_unused(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: ``--ddp_backend ccl`` is refused, or the ranks speak gloo.

    Cause: accelerate 1.13 dropped the ccl backend, transformers 5.1 the word. The
    bindings were deprecated in November 2025; their last release is 2.8.0.
    """
    versions = versions_of(facts)
    said = ccl_refusals(versions)
    if versions.oneccl is None or not said:
        return
    evidence = "; ".join(said)
    if ccl_use(versions, framework="accelerate") is None:
        evidence += "; scripts with an Accelerator of their own can"
    way = way_out("ipex", versions)
    yield oneccl_unused.finding(evidence, command=way.command() if way else None)


@check(
    "stack-variable-ignored",
    Severity.WARNING,
    title="A variable is set that the installed versions do not read",
    remedy="Unset it: it has no effect.",
    source="huggingface/accelerate#3883",
)
def stack_variable_ignored(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: ``ACCELERATE_USE_IPEX=true`` or ``CCL_WORKER_COUNT=1`` changes nothing.

    Cause: accelerate 1.13 and later know neither; the same is said where the package
    that a variable speaks to is not installed.
    """
    stack, versions = load(), versions_of(facts)
    if versions.accelerate is None:
        return
    gone = stack.accelerate.does("no-ipex", versions.accelerate)
    if is_true(facts, "ACCELERATE_USE_IPEX") and (gone or versions.ipex is None):
        why = (
            f"accelerate {versions.accelerate} knows no IPEX"
            if gone
            else "intel_extension_for_pytorch is not installed"
        )
        yield stack_variable_ignored.finding(
            f"ACCELERATE_USE_IPEX={value(facts, 'ACCELERATE_USE_IPEX')}; {why}",
            command="unset ACCELERATE_USE_IPEX",
        )
    workers = value(facts, "CCL_WORKER_COUNT")
    if workers and workers != "0" and stack.accelerate.does("no-ccl", versions.accelerate):
        yield stack_variable_ignored.finding(
            f"CCL_WORKER_COUNT={workers}; accelerate {versions.accelerate} knows no ccl",
            command="unset CCL_WORKER_COUNT",
        )


CHECKS: tuple[Check, ...] = (
    ipex_ignored,
    oneccl_unused,
    stack_variable_ignored,
    ipex_unasked,
)
