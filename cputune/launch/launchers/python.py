"""``python``: one process."""

from cputune.launch.option import Launcher, Option

PYTHON = Launcher(
    name="python",
    options=(
        Option(names=("-W",)),
        Option(names=("-X",)),
        Option(names=("--check-hash-based-pycs",)),
        Option(names=("-m",), takes=0, means="module"),
        Option(names=("-u", "-O", "-OO", "-B", "-E", "-I", "-s", "-S", "-v", "-q"), takes=0),
    ),
)
