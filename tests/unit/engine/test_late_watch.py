"""Late rows are loud: a warning above a share, once a minute, and a figure in the line of the epoch."""

from __future__ import annotations

import msgspec
import pytest

from penstock.engine.latewatch import LateWatch
from penstock.observe.events import EpochPublished
from penstock.observe.progress import format_epoch
from tests.support.engine_jobs import FakeClock
from tests.unit.observe.test_events import PUBLISHED

WORDS = "late rows among"


def epoch(*, rows_processed: int = 0, counters: dict[str, int] | None = None) -> EpochPublished:
    return msgspec.structs.replace(PUBLISHED, rows_processed=rows_processed, counters=counters or {})


@pytest.fixture
def watch(clock: FakeClock) -> LateWatch:
    return LateWatch("totals", clock, 0)


def test_few_late_rows_are_only_counted(watch: LateWatch, caplog: pytest.LogCaptureFixture) -> None:
    watch.observe(epoch(rows_processed=1000, counters={"windows.late": 9}))
    assert caplog.text == ""


def test_one_in_a_hundred_is_a_warning_that_says_what_to_do(watch: LateWatch, caplog: pytest.LogCaptureFixture) -> None:
    watch.observe(epoch(rows_processed=1000, counters={"windows.late": 6, "join.late": 4}))
    assert "totals: 10 late rows among 1000 processed" in caplog.text
    assert "watermark_by" in caplog.text


def test_within_a_minute_it_is_said_once(watch: LateWatch, clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    for late in (100, 200, 300):
        watch.observe(epoch(rows_processed=100, counters={"windows.late": late}))
        clock.now += 10.0
    assert caplog.text.count(WORDS) == 1
    clock.now += 60.0
    watch.observe(epoch(rows_processed=100, counters={"windows.late": 400}))
    assert "300 late rows among 300 processed" in caplog.text


def test_late_rows_of_earlier_runs_are_not_told_again(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    LateWatch("totals", clock, 500).observe(epoch(rows_processed=100, counters={"windows.late": 500}))
    assert caplog.text == ""


def test_the_line_of_an_epoch_has_them() -> None:
    assert "late 1,234" in format_epoch(epoch(counters={"windows.late": 1234}))
    assert "late" not in format_epoch(epoch())
