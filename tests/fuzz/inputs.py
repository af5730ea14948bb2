"""Strategies: text that nearly is what it should be, and words that shells trip over."""

from __future__ import annotations

from hypothesis import strategies as st

TOKENS = (
    *("", "0", "-1", "9" * 400, "9" * 5000, "1e309", "-1e-308", "NaN", "Infinity", "²", "٣"),
    *("[", "]", "{", "}", "[" * 2000, "{" * 500, '"', "'", "\\", "`", "$(true)", "${", "$$", "%s"),
    *("\0", "\ufeff", "\r", "\n", "\r\n", "\t", "\u2028", "\x85", "\x1b[2J", "\ud7ff"),
    *(":", ": ", "- ", "#", " #", "&a", "*a", "!!python/object", "<<", "|", ">", "---", "...", "?"),
    *("0x", "0o17", "1_000", "yes", "no", "on", "null", "~", "true", ".5", "1:30", "2001-01-01"),
    *(",", "-", "/", "0-", "0-99999999", "0-3:1/0", "max", "max max", "slots=", "=", "://", "@"),
)

texts = st.one_of(st.sampled_from(TOKENS), st.text(max_size=20))

_edits = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 30), texts), min_size=1, max_size=6
)  # where (share of the text), how much is taken out, what is put in


def _edited(text: str, edits: list[tuple[float, int, str]]) -> str:
    for share, out, put in edits:
        at = int(share * len(text))
        text = text[:at] + put + text[at + out :]
    return text


def near(*sound: str) -> st.SearchStrategy[str]:
    """One of these texts with some places changed; or any text at all."""
    changed = st.builds(_edited, st.sampled_from(sound), _edits)
    return st.one_of(changed, changed, changed, st.lists(texts, max_size=12).map("".join))
