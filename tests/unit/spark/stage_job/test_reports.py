"""How the reports of a planned job are fetched, without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

from penstock.spark.quirks.streamrdd import FETCHED_MAX
from penstock.spark.stage_job.reports import PlannedReports


class Frame:
    """A DataFrame of reports in a session with some settings."""

    def __init__(self, session: object, settings: dict[str, str], properties: dict[str, str | None]) -> None:
        row = mock.Mock()
        row.getBinary.side_effect = lambda column: bytearray(b"fetched") if column == 0 else None
        self._jdf = mock.Mock()
        self._jdf.queryExecution().logical().rdd().collect.return_value = [row, row]
        self.collect = lambda: [(bytearray(b"collected"),)]
        self.sparkSession: Any = SimpleNamespace(
            _jsparkSession=SimpleNamespace(id=session, equals=lambda other: other.id is session),
            conf=SimpleNamespace(getAll=settings),
            sparkContext=SimpleNamespace(setLocalProperty=properties.__setitem__),
        )


def fetch(reports: PlannedReports, frame: Any, subtasks: int = 2) -> list[bytes]:
    return reports.collect(frame, subtasks)


def test_few_reports_are_fetched_and_many_collected() -> None:
    frame = Frame(object(), {}, {})
    assert fetch(PlannedReports(), frame, FETCHED_MAX) == [b"fetched", b"fetched"]
    assert fetch(PlannedReports(), frame, FETCHED_MAX + 1) == [b"collected"]


def test_tasks_get_the_settings_of_spark_once_per_session() -> None:
    reports, sent, session = PlannedReports(), dict[str, str | None](), object()
    fetch(reports, Frame(session, {"spark.sql.x": "1", "hive.y": "2"}, sent))
    assert sent == {"spark.sql.x": "1"}
    sent.clear()
    fetch(reports, Frame(session, {"spark.sql.x": "1"}, sent))
    assert not sent, "the session is the same"


def test_settings_that_the_next_session_does_not_have_are_taken_back() -> None:
    reports, sent = PlannedReports(), dict[str, str | None]()
    fetch(reports, Frame(object(), {"spark.sql.x": "1", "spark.sql.y": "2"}, sent))
    fetch(reports, Frame(object(), {"spark.sql.y": "3"}, sent))
    assert sent == {"spark.sql.x": None, "spark.sql.y": "3"}
