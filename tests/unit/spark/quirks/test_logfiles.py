"""Whose choice of how Spark writes its logs counts, and when."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

from penstock.spark.quirks.logfiles import QUICK, SETTING, QuickLogFiles


def session(**settings: str) -> Any:
    conf = Mock(get=settings.get, set=settings.__setitem__, unset=settings.pop)
    return Mock(conf=conf, settings=settings)


def test_the_quick_way_is_chosen_for_the_start_and_the_session_is_left_as_it_was() -> None:
    spark = session()
    log_files = QuickLogFiles(spark)
    log_files.choose()
    assert spark.settings == {SETTING: QUICK}
    log_files.restore()
    log_files.restore()
    assert spark.settings == {}


def test_what_a_user_chose_before_stays() -> None:
    spark = session(**{SETTING: "mine"})
    log_files = QuickLogFiles(spark)
    log_files.choose()
    log_files.restore()
    assert spark.settings == {SETTING: "mine"}


def test_what_a_user_chose_meanwhile_stays() -> None:
    spark = session()
    log_files = QuickLogFiles(spark)
    log_files.choose()
    spark.settings[SETTING] = "mine"
    log_files.restore()
    assert spark.settings == {SETTING: "mine"}
