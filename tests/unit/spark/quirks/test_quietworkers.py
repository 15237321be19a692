"""Workers say nothing about connections that Spark has closed, and everything else as before."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from types import ModuleType

import pyspark
import pytest

from pyspark_penstock import keep_quiet


def daemon(path: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("__main__")
    module.__file__, module.traceback = path, traceback  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", module)
    keep_quiet()
    return module


@pytest.mark.parametrize(
    ("error", "words"), [(BrokenPipeError, ""), (ConnectionResetError, ""), (KeyError, "KeyError")]
)
def test_only_closed_connections_are_passed_over(
    error: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = daemon("/usr/lib/pyspark.zip/pyspark/daemon.py", monkeypatch)
    try:
        raise error("gone")
    except error:
        module.traceback.print_exc()
    said = capsys.readouterr().err
    assert words in said
    assert bool(said) == bool(words)


def test_what_else_the_daemon_needs_of_the_module_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert daemon("/usr/lib/pyspark/daemon.py", monkeypatch).traceback.format_exc is traceback.format_exc


def test_other_programs_keep_their_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert daemon("/opt/job.py", monkeypatch).traceback is traceback


def test_the_daemon_still_prints_by_that_name() -> None:
    """Spark's own module: if it changes, the quirk does nothing, and this test tells."""
    source = (Path(pyspark.__file__).parent / "daemon.py").read_text()
    assert "traceback.print_exc()" in source
