"""The parts of the page that are words: verdict, changes, launch, findings, how to do it again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cputune.emitters import emit
from cputune.errors import CputuneError
from cputune.figures import figure
from cputune.portrait import Found
from cputune.report.commands import install_command, launch_commands, tune_command
from cputune.report.diagnosis import source_urls
from cputune.report.page_chart import Chart, drawn
from cputune.report.page_markup import Markup, copied, folded, joined, number, table, tag
from cputune.report.profile import profile_lines
from cputune.report.summary import Summary, worth_words
from cputune.result import Measured, Result, Throughput

MOST_FINDINGS = 100
MOST_LETTERS = 2000
"""Of what a finding says; the result file holds the whole."""


def section(head: str, *inside: str) -> Markup:
    """A part of the page, under its heading."""
    return tag("section", tag("h2", head), *inside)


def verdict_section(said: Summary, result: Result) -> Markup:
    """The outcome in a sentence; today's launch and the best plan beside each other."""
    when = (result.created or "")[:10]
    eyebrow = " · ".join(filter(None, ("cputune report", result.workload.name, when)))
    quiet = not result.disturbed
    before = "Today" if said.today.plan.as_found else "Compared with"
    if said.nothing_to_change:
        head = f"{before}, and the recommendation" if quiet else before
        cards = [_card(head, said.today, quiet=quiet)]
    else:
        cards = [
            _card(before, said.today, quiet=quiet),
            _card("Best" if quiet else "Perhaps faster", said.best, quiet=quiet, chosen=quiet),
        ]
    return tag(
        "header",
        tag("p", eyebrow, class_="eyebrow"),
        tag("h1", said.verdict),
        tag("div", *cards, class_="cards"),
        _notes(said.notes),
    )


def _card(label: str, measured: Measured, *, quiet: bool, chosen: bool = False) -> Markup:
    rate = measured.samples_per_second
    sure = f"95 % interval {interval(rate)}" if quiet else "while others disturbed the machine"
    return tag(
        "div",
        tag("h2", label),
        tag("p", tag("strong", figure(rate.median)), " samples/s", class_="rate"),
        tag("p", sure, class_="dim"),
        tag("p", measured.plan.describe()),
        class_="card chosen" if chosen else "card",
    )


def interval(rate: Throughput) -> str:
    """``31.1 to 31.8``."""
    return f"{figure(rate.low)} to {figure(rate.high)}"


def _notes(notes: Iterable[str]) -> Markup:
    items = [tag("li", note) for note in notes]
    return tag("ul", *items, class_="notes", aria_label="Notes") if items else Markup()


def worth_section(said: Summary, charts: Mapping[str, Chart], *, disturbed: bool) -> Markup:
    """What is to be changed, and what each change brings."""
    if said.nothing_to_change:
        words = "Nothing: keep the launch that you have."
        words = "Nothing is known: tune when the machine is quiet." if disturbed else words
        return section("What to change", tag("p", words))
    rows = [(c.knob, c.today, c.best, number(worth_words(c))) for c in said.changes]
    inside = [
        table(
            "Each change, from what you have to the best plan; a factor is over the line above",
            ("change", "from", "to", "worth"),
            rows,
        )
    ]
    if not any(change.worth for change in said.changes):
        inside.append(
            tag("p", "What each change is worth by itself was not measured.", class_="dim")
        )
    return section("What to change", *inside, drawn("worth", charts))


def launch_section(result: Result, file: str) -> Markup:
    """The commands that train with the best plan, and the script that they would write."""
    nodes = result.best.plan.nodes
    now, files = launch_commands(file, nodes)
    where = "here" if nodes == 1 else f"on {nodes} hosts"
    inside = [
        tag("p", f"Train with it {where} and now:"),
        copied(now, f"the command that trains {where}"),
        tag("p", "Or write it down as files that launch it, with or without cputune:"),
        copied(files, "the command that writes launch files"),
    ]
    try:
        main, *others = emit(result, "torchrun")
    except CputuneError as error:
        reason = f"This plan cannot be written down for torchrun: {error}"
        return section("The launch", *inside, tag("p", reason))
    beside = ", ".join(other.name for other in others)
    needed = tag("p", f"It needs beside it: {beside}.") if beside else Markup()
    script = folded(f"{main.name}, whole", needed, copied(main.text, main.name))
    return section("The launch", *inside, script)


def findings_section(result: Result) -> Markup:
    """What the doctor said of the machine when the study began."""
    head = "What the doctor found"
    found = result.findings
    if found is None:
        asked = "The result does not say: it was made without asking. `cputune doctor` asks now."
        return section(head, tag("p", asked))
    if not found:
        return section(head, tag("p", "Nothing was wrong when the study began."))
    cut = len(found) - MOST_FINDINGS
    more = tag("p", f"And {cut} more, which the result file holds.") if cut > 0 else Markup()
    return section(head, *map(_finding, found[:MOST_FINDINGS]), more)


def _finding(found: Found) -> Markup:
    command = copied(found.command, "the cure of " + found.code) if found.command else Markup()
    sources = joined(*(tag("li", _link(url)) for url in source_urls(found.source) if url))
    head = joined(tag("b", found.severity), " ", found.title, " ", tag("code", found.code))
    return tag(
        "article",
        tag("h3", head),
        tag("p", found.evidence[:MOST_LETTERS], class_="dim"),
        tag("p", found.remedy[:MOST_LETTERS]),
        command,
        tag("ul", sources, class_="sources") if sources else Markup(),
        class_=f"finding {found.severity}",
    )


def _link(url: str) -> Markup:
    """A link where it is an address of the web, text else."""
    if not url.startswith("https://"):
        return joined(url)
    return tag("a", url, href=url, rel="noreferrer")


def study_section(said: Summary, result: Result) -> Markup:
    """How it was measured, with which versions, and the command that does it again."""
    install = install_command(said.versions)
    again = [tag("p", "The same study, where the same is installed:")]
    again += [copied(install, "the versions")] if install else []
    again += [
        copied(tune_command(result), "the command of the study"),
        tag("p", "What --knobs and --fix said is not on record; give them again.", class_="dim"),
    ]
    profile = [tag("p", line[:1].upper() + line[1:]) for line in profile_lines(result)]
    return section(
        "How it was measured, and how to do it again",
        pairs((*said.work, *said.study)),
        tag("h3", "The best plan") if profile else Markup(),
        *profile,
        tag("h3", "Versions"),
        pairs(tuple(sorted(said.versions.items()))),
        *again,
    )


def pairs(rows: tuple[tuple[str, str], ...]) -> Markup:
    """A list of labels and what they stand for."""
    items = [tag("div", tag("dt", label), tag("dd", text)) for label, text in rows]
    return tag("dl", *items) if items else tag("p", "Nothing is on record.", class_="dim")
