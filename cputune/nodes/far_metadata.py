"""What is installed on another host: the metadata that is judged, in a few answers."""

from __future__ import annotations

from cputune.host.metadata import heads
from cputune.nodes.line import Line


class FarMetadata:
    """Heads and ages of metadata far away, those that are judged fetched at once."""

    def __init__(self, line: Line, paths: tuple[str, ...]) -> None:
        self._line = line
        listings = line.many([{"do": "names", "path": path} for path in paths])
        told = dict(zip(paths, listings, strict=True))
        self._names = {path: n if isinstance(n, list) else [] for path, n in told.items()}
        wanted = [
            f"{path}/{entry}/{file}"
            for path, entries in self._names.items()
            for entry in entries
            for file in heads(entry)
        ]
        told_heads = line.many([{"do": "head", "path": path} for path in wanted]) if wanted else []
        found = zip(wanted, told_heads, strict=True)
        self._heads = {path: lines if isinstance(lines, list) else [] for path, lines in found}

    def names(self, path: str) -> tuple[str, ...]:
        """The names in a directory; none where it cannot be listed."""
        if path not in self._names:
            try:
                self._names[path] = self._line.ask("names", path=path)
            except OSError:
                self._names[path] = []
        return tuple(self._names[path])

    def head(self, path: str) -> list[str]:
        """The lines of a file before its first empty one; none where it cannot be read."""
        if path not in self._heads:
            try:
                self._heads[path] = self._line.ask("head", path=path)
            except OSError:
                self._heads[path] = []
        return self._heads[path]

    def age(self, path: str) -> float:
        """When it was changed last; 0 where that cannot be seen."""
        try:
            return float(self._line.ask("age", path=path))
        except OSError:
            return 0.0
