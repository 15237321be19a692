"""A hook of mkdocs: pages of the repository's root become pages of the site, and links between both hold there.

In the repository a link leads from file to file, so that the pages can be read where they are. On the site
``FORMAT.md`` and its like have other places; links to and from them are turned round.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

PLACES = {
    "ARCHITECTURE.md": "internals/architecture.md",
    "FORMAT.md": "internals/format.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages of the root, and where the site has them."""

_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?P<text>!?\[[^\]]+\])\((?!https?:)(?P<path>[^)#\s]*)(?:#(?P<anchor>[^)\s]+))?\)")


@dataclass(frozen=True)
class Link:
    """A link of a page to a file of the repository, or to a heading of the page itself (`path` is then empty)."""

    path: str
    anchor: str | None


def links_of(markdown: str) -> Iterator[Link]:
    """Links to other places than the web; code is no prose."""
    for found in _LINK.finditer(_FENCED.sub("", markdown)):
        yield Link(found["path"], found["anchor"])


def place_of(path: PurePosixPath) -> str | None:
    """Where the site has a file of the repository; None if it has no place there."""
    if path.parts[0] == "docs":
        return str(path.relative_to("docs"))
    return PLACES.get(str(path))


def with_site_links(markdown: str, source: PurePosixPath) -> str:
    """The page `source` of the repository with links as they hold on the site."""
    here = place_of(source)
    assert here is not None, f"{source} is no page of the site"

    def turned(found: re.Match[str]) -> str:
        target = PurePosixPath(normpath(source.parent / found["path"])) if found["path"] else source
        place = place_of(target)
        if not found["path"] or place is None:
            return found[0]
        anchor = f"#{found['anchor']}" if found["anchor"] else ""
        return f"{found['text']}({relpath(place, str(PurePosixPath(here).parent))}{anchor})"

    pieces = _FENCED.split(markdown)
    codes = [*_FENCED.findall(markdown), ""]
    return "".join(_LINK.sub(turned, piece) + code for piece, code in zip(pieces, codes, strict=True))


# -- what mkdocs calls ----------------------------------------------------------------------------------------------


def on_files(files: Any, *, config: Any) -> Any:
    """Adds the pages of the root."""
    from mkdocs.structure.files import File

    for name, place in PLACES.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:  # noqa: ARG001
    return with_site_links(markdown, PurePosixPath(Path(page.file.abs_src_path).relative_to(ROOT).as_posix()))
