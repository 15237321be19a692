"""What notices a mutant: a seed of the simulator, or a test of the part that has the fault."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, Phase, settings

from penstock.testing.simulate import simulate
from tests.sim.mutant import Calls, Mutant

ROOT = Path(__file__).resolve().parents[2]
TEST_S_MAX = 30
"""For one test: a fault that makes it hang is noticed."""


@dataclass(frozen=True)
class Caught:
    """What noticed a mutant: a seed, or the id of a test; None when nothing did."""

    by: str | None
    message: str


def by_seeds(mutant: Mutant, seeds: Iterable[int]) -> Caught:
    """A seed counts only if the fault was called in it, and if it passes without the mutant."""
    called = 0
    for seed in seeds:
        with mutant.applied() as calls:
            failure = simulate(seed).failure
        called += calls.count
        if calls.misfit is not None:
            return _misfit(calls)
        if failure is not None and calls.count and simulate(seed).failure is None:
            return Caught(str(seed), failure.message.partition("\n")[0])
    return _survived(called)


def by_tests(mutant: Mutant, first: str | None = None) -> Caught:
    """Runs the mutant's tests until one fails in which the fault was called, `first` before the others. Whether that
    one passes without the mutant is for the caller to find out, in another process."""
    watching = _Watching(mutant, first)
    code, said = _run(watching, mutant.tests)
    if watching.calls.misfit is not None:
        return _misfit(watching.calls)
    if watching.noticed is not None:
        return watching.noticed
    if code not in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}:
        return Caught(None, f"NOT RUN: {said[-300:]}")
    return _survived(watching.calls.count)


def failing(tests: Sequence[str]) -> list[str]:
    """Which of these tests fail without any mutant."""
    watching = _Watching()
    code, said = _run(watching, tests)
    assert code in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}, said[-3000:]
    return watching.failed


def _survived(called: int) -> Caught:
    return Caught(None, f"SURVIVED, though it was called {called} times" if called else "NEVER CALLED")


def _misfit(calls: Calls) -> Caught:
    return Caught(None, f"MISFIT, it no longer fits what it replaces: {calls.misfit}")


def _run(watching: _Watching, arguments: Sequence[str]) -> tuple[int, str]:
    """Runs tests in this process, which is good for nothing else afterwards; pytest's exit code, and what it said."""
    settings.register_profile(
        "mutants",
        derandomize=True,  # a hunt can be repeated
        database=None,  # what a fault fails on is no example to keep
        phases=(Phase.explicit, Phase.generate),  # nor one to make smaller
        deadline=None,
        suppress_health_check=tuple(HealthCheck),
    )
    settings.load_profile("mutants")
    os.chdir(ROOT)
    said = StringIO()
    imported = ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]
    options = ["-q", "--no-header", "-p", "no:cacheprovider", f"--timeout={TEST_S_MAX}", *imported]
    with TemporaryDirectory() as place, redirect_stdout(said), redirect_stderr(said):
        code = pytest.main([*options, f"--basetemp={place}/tests", *arguments], plugins=[watching])
    return code, said.getvalue()


@dataclass(eq=False)
class _Watching:
    """A plugin of pytest: applies a mutant once everything is imported, and stops when a test notices it."""

    mutant: Mutant | None = None
    first: str | None = None
    calls: Calls = field(default_factory=Calls)
    failed: list[str] = field(default_factory=list)
    noticed: Caught | None = None
    _session: pytest.Session | None = None
    _called_before: int = 0

    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        self._session = session
        items.sort(key=lambda item: item.nodeid != self.first)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        if self.mutant is None:
            return (yield)
        with self.mutant.applied() as self.calls:
            return (yield)

    def pytest_runtest_logstart(self) -> None:
        self._called_before = self.calls.count

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)
            if self.calls.count > self._called_before and self._session is not None:
                self.noticed = Caught(report.nodeid, _first_line(report))
                self._session.shouldstop = "noticed"


def _first_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return (report.longreprtext if crash is None else str(crash.message)).strip().partition("\n")[0]
