"""A plugin of pytest: ``-p tests.sim.mutant_plugin --mutant NAME`` runs tests with a fault in our own code."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mutant", help="the name of a mutant to apply")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Once everything is imported, so that a function is replaced wherever it is used."""
    from tests.sim.mutants import named

    applied = named(session.config.getoption("--mutant")).applied()
    applied.__enter__()
    session.config.add_cleanup(lambda: applied.__exit__(None, None, None))
