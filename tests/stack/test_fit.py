"""Whether versions fit each other: each rule where it breaks, and where it does not."""

from packaging.version import Version
from rows import every_row

from cputune.stack import Versions
from cputune.stack.fit import misfits


def versions(**texts):
    return Versions(**{name: Version(text) for name, text in texts.items()})


@every_row(
    ("stack", "said"),
    [
        ({"torch": "2.13.0", "ipex": "2.8.0"}, "built for torch 2.8, not 2.13.0"),
        ({"torch": "1.12.1", "oneccl": "1.12.0"}, "built for torch 1.12.0, not 1.12.1"),
        ({"torch": "2.8.0", "oneccl": "2.9.0"}, "built for torch 2.9.*, not 2.8.0"),
        ({"torch": "2.5.1", "transformers": "5.23.0"}, "needs torch >=2.6, found 2.5.1"),
        ({"torch": "1.13.1", "accelerate": "1.3.0"}, "needs torch >=2.0.0, found 1.13.1"),
        ({"accelerate": "0.20.0", "transformers": "4.51.3"}, "needs accelerate >=0.26.0"),
        ({"transformers": "5.22.2", "accelerate": "1.2.1"}, "argument 'keep_torch_compile'"),
        ({"transformers": "4.52.4", "accelerate": "1.2.1"}, "argument 'keep_torch_compile'"),
        ({"transformers": "4.35.2", "accelerate": "1.15.0"}, "argument 'dispatch_batches'"),
        ({"torch": "2.13.0", "torchvision": "0.15.2"}, "was built for torch 2.0.1, not 2.13.0"),
        ({"torch": "2.13.0", "torchaudio": "2.10.0"}, "was built for torch 2.10.0, not 2.13.0"),
        ({"transformers": "5.23.0", "tokenizers": "0.22.2"}, "needs tokenizers <0.24.0,>=0.23.1"),
        ({"transformers": "4.57.6", "huggingface_hub": "1.0.0"}, "needs huggingface_hub <1.0"),
        ({"trl": "0.12.2", "transformers": "4.57.6"}, "trl 0.12.2 needs transformers <4.47.0"),
        ({"peft": "0.21.2", "accelerate": "0.20.3"}, "peft 0.21.2 needs accelerate >=0.21.0"),
        ({"datasets": "2.0.0", "huggingface_hub": "2.4.0"}, "needs huggingface_hub <1.0.0"),
        ({"deepspeed": "0.19.8", "torch": "1.13.1"}, "deepspeed 0.19.8 needs torch >=2.0.0"),
        ({"python": "3.10", "torch": "2.15.0"}, "no wheel for Python 3.10"),
        ({"python": "3.10", "trl": "1.16.0"}, "needs python >=3.11"),
        ({"torch": "2.2.2", "numpy": "2.0.0"}, "needs numpy <2, found 2.0.0"),
        ({"transformers": "4.42.0", "numpy": "2.0.0"}, "needs numpy <2.0,>=1.17"),
        ({"transformers": "4.56.2", "accelerate": "1.10.0"}, "NameError: name 'ParallelismConfig'"),
        ({"transformers": "5.23.1", "accelerate": "1.2.1"}, "argument 'keep_torch_compile'"),
        ({"transformers": "4.39.3", "accelerate": "1.0.0"}, "argument 'dispatch_batches'"),
        ({"python": "3.14", "torch": "2.8.0"}, "no wheel for Python 3.14"),
        ({"python": "3.10.4", "transformers": "5.23.0"}, "needs python >=3.11.0"),
    ],
)
def test_a_broken_rule_is_said_with_both_versions(stack, said):
    (sentence,) = misfits(versions(**stack))
    assert said in sentence


@every_row(
    "stack",
    [
        {"torch": "2.8.0+cpu", "ipex": "2.8.0+cpu", "oneccl": "2.8.0+cpu"},
        {"torch": "1.12.1", "oneccl": "1.12.100"},
        {"torch": "1.13.1", "oneccl": "1.13.0"},
        {"torch": "2.9.1", "oneccl": "2.9.0"},  # newer than the tables: the minor decides
        {"torch": "2.3.1", "numpy": "2.4.0"},
        {"transformers": "4.56.2", "accelerate": "1.10.1"},
        {"transformers": "5.23.0", "accelerate": "1.3.0"},
        {"transformers": "4.36.2", "accelerate": "0.34.2"},
        {"transformers": "4.40.0", "accelerate": "1.7.0"},
        {"transformers": "4.51.3", "accelerate": "1.2.1"},
        {"transformers": "4.31.0", "accelerate": "1.15.0"},
        {"torch": "2.13.0", "torchvision": "0.28.0", "torchaudio": "2.11.0"},
        {"transformers": "6.0", "tokenizers": "0.30.0", "huggingface_hub": "4.0"},  # not known yet
        {"transformers": "4.56.2"},
        {"accelerate": "1.10.0"},
        {"torch": "99.0", "transformers": "99.0", "accelerate": "99.0", "python": "3.11"},
    ],
)
def test_what_fits_breaks_no_rule(stack):
    assert misfits(versions(**stack)) == ()
