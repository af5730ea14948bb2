"""Whether versions fit each other: each rule where it breaks, and where it does not."""

from packaging.version import Version
from rows import every_row

from cputune.stack import Versions
from cputune.stack.fit import misfits


def versions(**texts):
    return Versions(**{name: Version(text) for name, text in texts.items()})


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
