"""What every test needs: one Python for driver and workers, nothing but the loopback network, an end."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler.loadscope import LoadScopeScheduling

from tests.support.draws import DRAW, is_drawn
from tests.support.leftovers import FAILED, stop_leftovers

ROOT = Path(__file__).resolve().parents[1]
SPARK_TEST_S, SLOW_TEST_S = 600, 3600
"""Limits of tests on Spark and of those that take minutes; pyproject.toml has that of all others."""

# Before any JVM starts: it hands its environment on to the Python workers.
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
# Functions of test modules are pickled by reference; workers must be able to import them.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
)


ON_SPARK = ("tests/spark/", "tests/docs/test_docs.py")
LONG_FIRST = ("spark", "sim", "docs", "sinks", "browser", "fuzz", "generated")
"""Folders whose files take longest begin first, so that at the end no process waits for a long file of another."""


def _place(item: pytest.Item) -> int:
    folder = item.path.relative_to(ROOT / "tests").parts[0]
    return LONG_FIRST.index(folder) if folder in LONG_FIRST else len(LONG_FIRST)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"drawn for this run: PENSTOCK_DRAW={DRAW}")


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The folder decides: tests under spark/ and sinks/ carry the marker of that name, and long ones come first."""
    items.sort(key=_place)
    for item in items:
        if item.get_closest_marker("drawn") is not None and not is_drawn(item.nodeid):
            item.add_marker(pytest.mark.slow)
    for item in items:
        folders = set(item.path.relative_to(ROOT / "tests").parts[:-1])
        for marker in {"spark", "sinks"} & folders:
            item.add_marker(marker)
        if item.get_closest_marker("timeout") is not None:
            continue
        if item.get_closest_marker("slow") is not None:
            item.add_marker(pytest.mark.timeout(SLOW_TEST_S))
        elif {"spark", "docs"} & folders:
            item.add_marker(pytest.mark.timeout(SPARK_TEST_S))


class OneSession(LoadScopeScheduling):
    """For `make test`, which has two processes: all that needs Spark shares the session of one of them, while the other
    has the rest, file by file."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "spark" if file.startswith(ON_SPARK) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return OneSession(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report


@pytest.fixture(autouse=True)
def _stops_what_it_started() -> Iterator[None]:
    """A test that fails stops what it started, so that the next one has the machine, the session and the threads."""
    yield
    stop_leftovers()
