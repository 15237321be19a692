"""A wall clock that is wrong, for a moment or for long, neither stops processing time nor lets it jump."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.processingtime import (
    CONFIRMED_S,
    DOWNTIME_US_MAX,
    FASTER,
    PACE_US,
    SLOWER,
    ProcessingTime,
    advanced,
    begun,
)

SECOND, HOUR, DAY = 1_000_000, 3_600_000_000, 86_400_000_000
YEAR = 365 * DAY
START = 50 * YEAR


def readings(wall_ahead: list[int], first: ProcessingTime | None = None, every_s: float = 1.0) -> list[ProcessingTime]:
    """One reading after another of a wall clock that is ahead of the truth by so much each time."""
    made = [first or begun(0, START, 0.0)]
    for ahead in wall_ahead:
        clock_s = made[-1].read_s + every_s
        made.append(advanced(made[-1], START + round(clock_s * SECOND) + ahead, clock_s))
    return made


def lead(reading: ProcessingTime) -> int:
    """How far processing time is ahead of the truth."""
    return reading.now - START - round(reading.read_s * SECOND)


def test_a_clock_that_is_right_is_followed_exactly() -> None:
    assert [lead(reading) for reading in readings([0] * 5)] == [0] * 6


def test_a_year_for_one_reading_costs_one_more_second() -> None:
    after = readings([0, YEAR, *[0] * 20])
    assert lead(after[2]) == SECOND
    assert [lead(reading) for reading in after[3:5]] == [900_000, 800_000]
    assert lead(after[-1]) == 0


def test_a_clock_that_goes_back_slows_time_down_by_a_tenth_and_never_stops_it() -> None:
    after = readings([0, *[-YEAR] * 10])
    steps = {later.now - earlier.now for earlier, later in itertools.pairwise(after[1:])}
    assert steps == {900_000}


def test_a_clock_that_keeps_to_it_for_a_minute_is_believed() -> None:
    after = readings([HOUR] * 62)
    assert lead(after[60]) <= 60 * SECOND
    assert lead(after[62]) == HOUR


def test_a_clock_that_was_believed_and_is_wrong_never_makes_time_stand_still() -> None:
    after = readings([YEAR] * 100 + [0] * 100)
    assert lead(after[100]) == YEAR
    assert all(later.now - earlier.now == 900_000 for earlier, later in itertools.pairwise(after[100:]))


def test_a_clock_that_jumps_about_leads_by_no_more_than_the_time_for_which_it_was_wrong() -> None:
    jumping = [number % 2 * YEAR for number in range(200)]
    assert max(lead(reading) for reading in readings(jumping)) <= 100 * SECOND


def test_a_new_query_begins_with_the_wall_clock() -> None:
    assert begun(0, START, 7.0).now == START


def test_a_restart_goes_on_with_the_wall_clock_after_a_downtime_of_up_to_a_day() -> None:
    assert begun(START, START + DAY, 0.0).now == START + DAY
    assert begun(START, START + DAY + 1, 0.0).now == START


def test_a_downtime_of_weeks_is_believed_after_a_minute() -> None:
    after = readings([0] * 61, begun(START - 30 * DAY, START, 0.0))
    assert lead(after[59]) < -29 * DAY
    assert lead(after[60]) == 0


def test_a_clock_that_is_wrong_at_the_restart_and_then_right_does_little_harm() -> None:
    after = readings([YEAR, YEAR, 0, 0, 0], begun(START - HOUR, START + YEAR, 0.0))
    assert lead(after[2]) <= 0
    assert lead(after[-1]) <= 0


def test_a_restart_never_goes_back() -> None:
    assert begun(START + YEAR, START, 0.0).now == START + YEAR


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(-YEAR, YEAR)), max_size=50))
def test_one_reading_never_does_more_than_time_allows(steps: list[tuple[float, int]]) -> None:
    last, clock_s = begun(0, START, 0.0), 0.0
    for passed_s, ahead in steps:
        clock_s += passed_s
        reading = advanced(last, START + round(clock_s * SECOND) + ahead, clock_s)
        passed = reading.now - last.now
        assert passed >= (1 - SLOWER) * passed_s * SECOND - 2
        if clock_s - reading.kept_s < CONFIRMED_S:
            assert passed <= (1 + FASTER) * passed_s * SECOND + PACE_US
        last = reading


def test_the_limits_are_what_the_documents_say() -> None:
    assert (CONFIRMED_S, DOWNTIME_US_MAX, FASTER, SLOWER) == (60, DAY, 1.0, 0.1)
