"""Who uses IPEX and oneCCL, at every release where that changes.

What is expected was read in the wheels of transformers and the tags of accelerate.
"""

from dataclasses import replace

from rows import every_row

from cputune.stack import Versions, ccl_use, ipex_off, ipex_use
from cputune.stack.uses import why_too_few_ccl_workers

PAIR = {"torch": "2.6.0", "intel_extension_for_pytorch": "2.6.0"}


def stack(pair=PAIR, **others):
    return Versions.from_names({**pair, **others})


@every_row(
    ("transformers", "accelerate", "state", "caller"),
    [
        # Trainer alone, when --use_ipex asks it: 4.20 to 4.52.
        ("4.19.4", "1.7.0", "ignored", None),
        ("4.20.0", "1.7.0", "used when asked", "Trainer"),
        ("4.29.2", "1.7.0", "used when asked", "Trainer"),
        # From 4.30 on accelerate prepares the model, and uses IPEX unless it is told not to.
        ("4.30.2", "1.7.0", "used unasked", "accelerate"),
        ("4.31.0", "1.7.0", "used unasked", "accelerate"),
        # 4.32 to 4.57 tell it not to.
        ("4.32.0", "1.7.0", "used when asked", "Trainer"),
        ("4.52.4", "1.7.0", "used when asked", "Trainer"),
        ("4.53.0", "1.7.0", "used when asked", "accelerate"),
        ("4.57.6", "1.7.0", "used when asked", "accelerate"),
        ("5.0.0", "1.7.0", "used unasked", "accelerate"),
        # The release of accelerate decides where Trainer does not.
        ("4.30.2", "0.19.0", "used when asked", "Trainer"),
        ("4.30.2", "0.20.0", "used unasked", "accelerate"),
        ("4.57.1", "1.12.0", "used when asked", "accelerate"),
        ("4.57.1", "1.13.0", "ignored", None),
        ("4.52.4", "1.13.0", "used when asked", "Trainer"),
        ("5.0.0", "1.12.0", "used unasked", "accelerate"),
        ("5.0.0", "1.13.0", "ignored", None),
    ],
)
def test_ipex_under_trainer(transformers, accelerate, state, caller):
    use = ipex_use(stack(transformers=transformers, accelerate=accelerate))
    assert (use.state, use.caller) == (state, caller)
    assert use.possible is state.startswith("used")


@every_row(
    ("changes", "state", "said"),
    [
        ({"intel_extension_for_pytorch": None}, "absent", "the last, 2.8.0, is for torch 2.8"),
        ({"intel_extension_for_pytorch": "?"}, "unknown", "extension_for_pytorch is not known"),
        ({"torch": None}, "unknown", "the version of torch is not known"),
        ({"torch": "2.7.1"}, "unfit", "was built for torch 2.6, not 2.7.1"),
        ({"transformers": None}, "unknown", "the version of transformers is not known"),
        ({"accelerate": None}, "unknown", "the version of accelerate is not known"),
        ({"accelerate": "1.13.0"}, "ignored", "accelerate 1.13.0 with torch 2.6.0 ignores IPEX"),
    ],
)
def test_why_ipex_cannot_be_used(changes, state, said):
    named = {**PAIR, "transformers": "4.55.4", "accelerate": "1.7.0", **changes}
    use = ipex_use(Versions.from_names({k: v for k, v in named.items() if v is not None}))
    assert (use.state, use.caller, use.possible) == (state, None, False)
    assert said in use.reason


@every_row(
    ("others", "off"),
    [
        ({"transformers": "4.31.0", "accelerate": "0.21.0"}, True),
        ({"transformers": "4.57.1", "accelerate": "1.7.0"}, True),  # for an Accelerator's sake
        ({"transformers": "4.57.1", "accelerate": "1.13.0"}, False),
        ({"transformers": "4.40.2"}, False),
    ],
)
def test_a_run_without_ipex_switches_it_off_if_somebody_uses_it_unasked(others, off):
    assert ipex_off(stack(**others)) == ({"ACCELERATE_USE_IPEX": "false"} if off else {})
    assert ipex_off(replace(stack(**others), ipex=None)) == {}


BINDINGS = {"torch": "2.0.1", "oneccl_bind_pt": "2.0.100"}


@every_row(
    ("transformers", "accelerate", "refused"),
    [
        ("4.10.3", "0.10.0", "transformers 4.10.3 does not take"),
        ("4.21.3", "0.13.0", "transformers 4.21.3 does not import"),
        ("4.22.2", "0.13.0", None),
        ("4.28.1", None, None),  # TrainingArguments starts the process group itself
        ("4.28.1", "1.13.0", None),
        ("4.29.0", None, "the version of accelerate is not known"),
        ("4.29.0", "1.12.0", None),
        ("4.29.0", "1.13.0", "accelerate 1.13.0 has no ccl"),
        ("5.0.0", "1.12.0", None),
        ("5.1.0", "1.12.0", "transformers 5.1.0 does not take"),
        (None, "1.12.0", "the version of transformers is not known"),
    ],
)
def test_oneccl_under_trainer(transformers, accelerate, refused):
    named = {**BINDINGS, "transformers": transformers, "accelerate": accelerate}
    why = ccl_use(Versions.from_names({k: v for k, v in named.items() if v is not None}))
    assert why is None if refused is None else why.startswith(refused)


def test_accelerate_takes_gloo_if_there_is_no_worker():
    assert [why_too_few_ccl_workers(workers) for workers in (" 1 ", 4)] == [None, None]
    for workers in (None, "0", "many", "²"):
        assert "accelerate uses gloo: ccl needs 1 or more" in why_too_few_ccl_workers(workers)
