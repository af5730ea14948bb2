"""What of the metadata hangs on where the repository lies: its addresses, and README's links.

The address stands in ``CPUTUNE_REPOSITORY`` (https://…) while a release is built. On the package
index a relative link leads nowhere, so README's lead into the repository, at the tag that is built.
Without the variable README stays as it is, and the metadata names no address.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = re.compile(r"(!?)\]\((?!https?://|#|mailto:)([^)\s]+)\)")


class RepositoryHook(MetadataHookInterface):
    """Fills ``readme`` and ``urls``, which pyproject.toml lists as dynamic."""

    def update(self, metadata: dict[str, object]) -> None:
        """Put the text of README, and the addresses, into the metadata of the project."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        repository = os.environ.get("CPUTUNE_REPOSITORY", "").rstrip("/")
        tag = os.environ.get("CPUTUNE_TAG", "main")
        if repository:
            text = absolute(text, repository, tag)
            metadata["urls"] = {
                "Source": repository,
                "Documentation": f"{repository}/blob/{tag}/docs/getting-started.md",
                "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
                "Issues": f"{repository}/issues",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def absolute(text: str, repository: str, tag: str) -> str:
    """The text with its relative links leading into a repository, pictures to their raw files."""

    def address(match: re.Match[str]) -> str:
        target = match[2]
        kind = "raw" if target.endswith((".svg", ".png")) else "blob"
        return f"{match[1]}]({repository}/{kind}/{tag}/{target})"

    return RELATIVE.sub(address, text)
