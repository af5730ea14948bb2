"""Pairs that were tried, and no cure that leads beside them."""

import pytest
from packaging.version import Version

from cputune.stack import Versions, load
from cputune.stack.fit import misfits, pairs, tried, was_seen_training
from cputune.stack.ways import ways_out


def versions(transformers, accelerate, torch="2.13.0", **more):
    texts = {"transformers": transformers, "accelerate": accelerate, "torch": torch, **more}
    return Versions(python=Version("3.11"), **{k: Version(v) for k, v in texts.items()})


@pytest.mark.parametrize(
    ("transformers", "accelerate", "error"),
    [
        ("5.23.0", "1.15.0", None),
        ("5.23.0", "1.1.1", "keep_torch_compile"),
        ("5.23.1", "1.1.0", "keep_torch_compile"),  # patches of the minors that were tried
        ("4.36.2", "0.26.1", None),
        ("4.36.2", "1.7.0", "dispatch_batches"),
    ],
)
def test_what_was_tried_says_how_it_ended(transformers, accelerate, error):
    stack = versions(transformers, accelerate)
    said = [line for line in misfits(stack) if "does not train" in line]
    assert was_seen_training(stack) is (error is None)
    assert [error in line for line in said] == ([] if error is None else [True])


def test_what_was_not_tried_neither_fits_nor_fails():
    stack = versions("4.20.1", "0.19.0")
    assert tried(stack) is None
    assert not was_seen_training(stack)
    assert not [line for line in misfits(stack) if "does not train" in line]


def test_an_era_was_seen_training_beside_its_own_torch():
    for era in load().eras:
        assert was_seen_training(Versions(**era.versions))


def test_what_torch_alone_may_be_to_blame_for_is_said_of_that_torch_only():
    for pair in pairs().values():
        stack = versions(str(pair.transformers), str(pair.accelerate), torch="2.6.0")
        if pair.error is not None:
            assert (tried(stack) is None) is not pair.blames_pair


@pytest.mark.parametrize("torch", ["2.13.0", "2.8.0", "2.4.1"])
@pytest.mark.parametrize("ipex", [None, "2.8.0"])
def test_no_cure_leads_to_a_pair_that_was_not_seen_training(torch, ipex):
    failed = [pair for pair in pairs().values() if pair.error]
    asked = [(str(pair.transformers), str(pair.accelerate)) for pair in failed[::5]]
    for pair in [*asked, ("4.36.2", "1.7.0"), ("5.23.0", "1.1.1"), ("4.20.1", "0.19.0")]:
        stack = versions(*pair, torch=torch, **({"ipex": ipex} if ipex else {}))
        for way in ways_out(stack):
            left = (way.result.transformers, way.result.accelerate)
            if left != (stack.transformers, stack.accelerate):
                assert was_seen_training(way.result), way.command()
