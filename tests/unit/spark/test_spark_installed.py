"""Which PySpark Penstock takes, and what it says about others."""

from __future__ import annotations

import logging
import subprocess
import sys
from types import ModuleType

import pytest

import penstock as pen
from penstock.errors import SparkSetupError
from penstock.spark import installed
from penstock.spark.installed import require_classic, require_version

WITHOUT = """
import importlib.abc, sys
class Nothing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "pyspark":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Nothing())
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "pyspark" else find_spec(name, *rest)
import penstock as pen
try:
    pen.session
except pen.PenstockError as error:
    print(error)
"""


def test_a_missing_pyspark_is_told_with_the_command_that_installs_it() -> None:
    said = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True).stdout
    assert "PEN-003" in said
    assert "pip install 'pyspark>=4.1,<4.4'" in said


@pytest.mark.parametrize("version", ["3.5.6", "4.0.1"])
def test_an_older_spark_is_refused_with_the_command_that_installs_a_newer_one(version: str) -> None:
    with pytest.raises(SparkSetupError, match=version) as refused:
        require_version(version)
    assert refused.value.next_step.startswith("pip install 'pyspark>=4.1,<4.4'")


@pytest.mark.parametrize("version", ["4.1.4", "4.2.1", "4.3.0", "4.3.1.dev0"])
def test_the_versions_of_the_window_are_taken_in_silence(version: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        require_version(version)
    assert caplog.text == ""


def test_a_newer_spark_gets_one_warning(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "_warned", set())
    require_version("4.9.0")
    require_version("4.9.0")
    assert caplog.text.count("4.9.0 is newer than 4.3") == 1


def test_spark_connect_is_refused_before_anything_is_asked_of_it() -> None:
    module = ModuleType("pyspark.sql.connect.dataframe")
    frame = type("DataFrame", (), {"__module__": module.__name__})()
    for call in (require_classic, lambda given: pen.read(given, name="clicks")):
        with pytest.raises(SparkSetupError, match="Spark Connect") as refused:
            call(frame)
        assert "SPARK_REMOTE" in refused.value.next_step
