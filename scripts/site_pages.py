"""A hook of mkdocs: pages that lie outside of docs/, and links that lead out of it.

README, CONTRIBUTING, SECURITY, CHANGELOG and the benchmarks become pages of the site. A link to another file of the
repository keeps its words and loses its address: the site does not carry the sources. A link to a file that does not
exist is left as it is, so that a strict build fails.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
COPIES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks.md",
}
"""File of the repository → page of the site."""
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
_CODE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    from mkdocs.structure.files import File

    for source, page in COPIES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001  mkdocs'
    return relinked(markdown, page.file.src_uri)


def relinked(markdown: str, page: str) -> str:
    """The text of a page of the site with its links as the site needs them."""
    source = next((source for source, copy in COPIES.items() if copy == page), f"docs/{page}")

    def link(found: re.Match[str]) -> str:
        picture, words, target, anchor = found.groups()
        if "://" in target or target.startswith("mailto:"):
            return found[0]
        meant = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        inside = COPIES.get(meant) or (meant.removeprefix("docs/") if meant.startswith("docs/") else None)
        if inside is not None:
            address = posixpath.relpath(inside, posixpath.dirname(page) or ".")
            return f"{picture}[{words}]({address}{anchor or ''})"
        return words if (ROOT / meant).exists() else found[0]

    parts = _CODE.split(markdown)
    return "".join(part if number % 2 else _LINK.sub(link, part) for number, part in enumerate(parts))
