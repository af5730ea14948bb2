"""The options of a launcher: how they are spelled, how many words follow, what they mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cputune.launch.located_words import plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option of a launcher.

    Attributes:
        names: every spelling. In long options of argparse dashes and underscores are the same.
        takes: how many words follow it.
        means: what it decides, in a word that launchers share: ``ranks`` (of all machines),
            ``ranks per node``, ``nodes``, ``node rank``, ``address``, ``port``, ``hosts``,
            ``host file``, ``threads``, ``cpus``, ``module``, ``program``, ``variable``,
            ``precision``, ``use cpu``, ``map``, ``bind``; or another name.
        variable: the environment variable of a rank that replaces it.
        needless: why a launch on CPUs loses nothing without it; "" if it may.
    """

    names: tuple[str, ...]
    takes: int = 1
    means: str = ""
    variable: str = ""
    needless: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """An option as written: its words, and the option of the launcher if that is known."""

    words: tuple[str, ...]
    option: Option | None = None

    @property
    def name(self) -> str:
        """The option without its value."""
        return self.words[0].partition("=")[0]

    @property
    def value(self) -> str:
        """Its value, of several words the first; "" if it has none."""
        _, equals, value = self.words[0].partition("=")
        if equals:
            return value
        if len(self.words) > 1:
            return self.words[1]
        return ""

    @property
    def text(self) -> str:
        return " ".join(self.words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """A program that starts ranks; ``programs`` are names on PATH, ``modules`` what ``python
    -m`` starts.
    """

    name: str
    programs: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()
    _named: Mapping[str, Option] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        named = {}
        for option in self.options:
            for name in option.names:
                named[plain(name)] = option
        object.__setattr__(self, "_named", named)

    def option(self, name: str) -> Option | None:
        """The option of this spelling; of argparse also an unambiguous prefix."""
        spelling = plain(name.partition("=")[0])
        exact_match = self._named.get(spelling)
        if exact_match is not None or not spelling.startswith("--"):
            return exact_match
        near = {}
        for text, one in self._named.items():
            if text.startswith(spelling):
                near[id(one)] = one
        if len(near) == 1 and len(spelling) > 4:
            return next(iter(near.values()))
        return None

    def given(self, words: Sequence[str]) -> Iterator[Given]:
        """The options among these words of a launcher, each with the words that follow it.

        The word behind an unknown option is its value unless that is an option.
        """
        at = 0
        while at < len(words):
            word = words[at]
            if not word.startswith("-") or word in ("-", "--"):
                at += 1
                continue
            option = self.option(word)
            takes = _takes(option, words[at : at + 2])
            yield Given(words=tuple(words[at : at + 1 + takes]), option=option)
            at += 1 + takes

    def leading(self, words: Sequence[str]) -> list[str]:
        """The words up to the first that is neither an option nor its value; a variable may be
        either.
        """
        at = 0
        while at < len(words) and words[at][:1] in ("-", "$"):
            takes = 0
            if words[at].startswith("-"):
                takes = _takes(self.option(words[at]), words[at : at + 2])
            at += 1 + takes
        return list(words[:at])

    def spelled(self, means: str) -> str | None:
        """The first spelling of the option that decides this, or None."""
        return next((one.names[0] for one in self.options if one.means == means), None)


def _takes(option: Option | None, words: Sequence[str]) -> int:
    """How many words belong to an option behind its name."""
    if option is None:
        following = "-"
        if len(words) > 1:
            following = words[1]
        return int("=" not in words[0] and not following.startswith("-"))
    if words[0].startswith("--") and "=" in words[0]:
        return max(0, option.takes - 1)
    if option.takes == 2 and len(words) > 1 and "=" in words[1]:  # -genv NAME=VALUE
        return 1
    return option.takes
