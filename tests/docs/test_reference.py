"""The pages of reference are what the code says: errors, options, commands."""

from __future__ import annotations

import ast
import re
from dataclasses import fields

import click
import pytest

from penstock.cli import main
from penstock.engine.options import Config
from penstock.errors import catalogue
from scripts.api_page import api_page
from scripts.errors_page import errors_page
from tests.sim.mutants import MUTANTS
from tests.sim.mutants_of_parts import MUTANTS_OF_PARTS
from tests.support.pages import DOCS, PAGES, text_of

REFERENCE = DOCS / "reference"


def test_the_page_of_errors_is_what_the_catalogue_says() -> None:
    """Renew it with ``python scripts/errors_page.py > docs/reference/errors.md``."""
    assert text_of(REFERENCE / "errors.md") == errors_page()


def test_the_page_of_errors_names_every_code() -> None:
    assert set(catalogue()) - set(re.findall(r"PEN-\d{3}", errors_page())) == set()


def test_codes_in_the_pages_exist() -> None:
    named = {code for page in PAGES for code in re.findall(r"PEN-\d{3}", text_of(page))}
    assert named - set(catalogue()) == set()


def test_the_page_of_the_api_is_what_the_docstrings_say() -> None:
    """Renew it with ``python scripts/api_page.py > docs/reference/api.md``."""
    assert text_of(REFERENCE / "api.md") == api_page()


def test_the_table_of_options_has_every_option_with_its_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (?:`([^`]+)`)? ?\|", text_of(REFERENCE / "options.md"), re.MULTILINE)
    defaults = {name: ast.literal_eval(text) for name, text in rows if text}
    assert [name for name, _ in rows] == [option.name for option in fields(Config)]
    assert set(defaults) == {option.name for option in fields(Config)} - {"checkpoint"}
    assert Config.of("folder", **defaults) == Config(checkpoint="folder")


@pytest.mark.parametrize("command", sorted(main.commands))
def test_the_page_of_commands_has_every_command_with_every_option(command: str) -> None:
    section = text_of(REFERENCE / "cli.md").split(f"\n## {command}\n")[1].split("\n## ")[0]
    options = [option for option in main.commands[command].params if isinstance(option, click.Option)]
    written = {flag for option in options for flag in (*option.opts, *option.secondary_opts)}
    assert set(re.findall(r"`(--?[\w-]+)`", section)) == written


def test_the_glossary_has_each_word_once() -> None:
    words = [
        word
        for row in re.findall(r"^\| (\*[^|]+) \|", text_of(REFERENCE / "glossary.md"), re.MULTILINE)
        for word in re.findall(r"\*([^*]+)\*", row)
    ]
    assert len(words) > 80
    assert sorted(words) == sorted(set(words))


def test_mutants_that_the_guarantees_name_exist() -> None:
    promises = text_of(DOCS / "guarantees.md").split("\n## Promises\n")[1].split("\n## ")[0]
    named = set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", promises))
    assert named - {mutant.name for mutant in (*MUTANTS, *MUTANTS_OF_PARTS)} == set()
    assert len(named) > 30
