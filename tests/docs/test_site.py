"""The site: pages lead to each other, read the same as Markdown and as HTML, and build without a warning."""

from __future__ import annotations

import itertools
import re
from pathlib import Path, PurePosixPath
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml

from scripts.site_pages import PLACES, links_of, place_of, with_site_links
from tests.support.pages import DOCS, PAGES, ROOT, headings_of, name_of, prose_of, text_of

by_page = pytest.mark.parametrize("page", PAGES, ids=name_of)


def github_anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def site_anchor(heading: str) -> str:
    """As Python-Markdown makes it."""
    plain = re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower()
    return re.sub(r"[-\s]+", "-", plain)


@by_page
def test_links_lead_to_a_page_and_a_heading(page: Path) -> None:
    lost = []
    for link in links_of(text_of(page)):
        target = page if not link.path else (page.parent / link.path).resolve()
        anchors = {github_anchor(heading) for heading in headings_of(target)} if target.suffix == ".md" else set()
        if not target.exists() or (link.anchor and link.anchor not in anchors):
            lost.append(f"{link.path}#{link.anchor}")
    assert lost == []


@by_page
def test_headings_have_the_same_anchor_on_the_site_and_are_told_apart(page: Path) -> None:
    headings = headings_of(page)
    assert [heading for heading in headings if github_anchor(heading) != site_anchor(heading)] == []
    assert len({github_anchor(heading) for heading in headings}) == len(headings)


@by_page
def test_a_list_or_table_begins_after_an_empty_line(page: Path) -> None:
    """Python-Markdown takes it for a part of the paragraph otherwise."""
    lines = prose_of(page).splitlines()
    begins = re.compile(r"^(?:[-*] |\d+\. |\|)")
    inside = re.compile(r"^(?:[-*] |\d+\. |\|| |#|$)")
    glued = [
        f"{number}: {line}"
        for number, (before, line) in enumerate(itertools.pairwise(lines), start=2)
        if begins.match(line) and not inside.match(before)
    ]
    assert glued == []


@by_page
def test_a_page_names_who_acts_and_says_promises_in_words(page: Path) -> None:
    """No riddles ("whoever"), and no ids of requirements, which readers do not have."""
    riddles = re.findall(r"\b(?:nobody|whoever|whomever|somebody|anybody)\b", prose_of(page), re.IGNORECASE)
    ids = re.findall(r"\b[A-F]\d{1,2}\b", prose_of(page))
    assert (riddles, ids) == ([], [])


PICTURES = sorted((DOCS / "img").glob("*.svg"))


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_a_picture_says_what_it_shows_has_dark_colours_and_is_shown(picture: Path) -> None:
    svg = ET.fromstring(text_of(picture))
    kinds = {element.tag.rpartition("}")[2]: element for element in svg.iter()}
    assert kinds["title"].text
    assert kinds["desc"].text
    assert "prefers-color-scheme: dark" in (kinds["style"].text or "")
    shows = re.compile(rf"!\[[^\]]{{20,}}\]\([^)]*{picture.name}\)")
    shown = [page for page in PAGES if page != ROOT / "README.md" and shows.search(text_of(page))]
    assert len(shown) == 1


def test_colours_of_a_picture_are_all_defined_for_light_and_dark_pages() -> None:
    for picture in PICTURES:
        used = set(re.findall(r'class="([a-z ]+)"', text_of(picture)))
        light, dark = text_of(picture).split("@media")
        coloured = {name for names in used for name in names.split()} - {"b", "m", "e"}
        for colours in (light, dark.split("</style>")[0]):
            assert {name for name in coloured if f".{name} " not in colours} == set(), picture.name


def pages_in(nav: Any) -> list[str]:
    match nav:
        case str():
            return [nav]
        case dict():
            return [page for part in nav.values() for page in pages_in(part)]
        case _:
            return [page for part in nav for page in pages_in(part)]


def test_the_contents_of_the_site_name_every_page_once() -> None:
    named = pages_in(yaml.safe_load(text_of(ROOT / "mkdocs.yml"))["nav"])
    written = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")]
    assert sorted(named) == sorted([*written, *PLACES.values()])


def test_a_link_between_the_root_and_the_docs_is_turned_for_the_site() -> None:
    source = PurePosixPath("docs/guides/test.md")
    text = "see [how](../../FORMAT.md#seal), [here](#a), [there](state.md)\n```\n[x](../../FORMAT.md)\n```\n"
    assert with_site_links(text, source) == text.replace("../../FORMAT.md#", "../internals/format.md#")
    assert with_site_links("[g](docs/guides/test.md)", PurePosixPath("FORMAT.md")) == "[g](../guides/test.md)"
    assert place_of(PurePosixPath("src/penstock/errors.py")) is None


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    build = pytest.importorskip("mkdocs.commands.build")
    from mkdocs.config import load_config

    build.build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path / "site"), strict=True))
    html = (tmp_path / "site" / "guides" / "windows.html").read_text(encoding="utf-8")
    assert '<div class="codehilite">' in html
    assert "https://" not in re.sub(r'<a [^>]*href="https://[^>]*>', "", html), "a page asks for files of other sites"
