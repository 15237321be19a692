"""Windows against a dictionary: out of order, late, interrupted, rescaled (D2, A10)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as pen
from penstock.operators.base import OperatorContext
from penstock.operators.window import closing
from penstock.operators.window.window_aggregate import WindowAggregate
from penstock.operators.window.windows import RegularWindow, SessionWindow, Window
from penstock.protocol.keygroups import KeyGroupRange
from penstock.records import NO_WATERMARK, Records, Time
from penstock.state.keyed import KeyedState
from tests.support.operator_harness import Rows
from tests.support.window_harness import Epoch, Windows

SCHEMA = pa.schema([("user", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("amount", pa.int64())])
AGGREGATES = {
    "n": pen.count(), "total": pen.sum("amount"), "earliest": pen.first("amount"), "latest": pen.last("amount"),
    "high": pen.max("amount"),
}  # fmt: skip

TIMES = st.integers(-50, 150)
ROW = st.tuples(st.integers(0, 5), st.none() | TIMES, st.integers(-9, 9))
SLICE = st.tuples(st.integers(0, 25), st.lists(ROW, max_size=8))
EPOCH = st.tuples(st.integers(1, 3), st.lists(SLICE, max_size=3), st.sampled_from([1, 2, 1_000_000]), st.booleans())
EPOCHS = st.lists(EPOCH, min_size=1, max_size=5)
REGULAR = st.sampled_from([
    RegularWindow(10, 10), RegularWindow(10, 10, 3), RegularWindow(30, 10), RegularWindow(25, 10, 7),
    RegularWindow(12, 9), RegularWindow(40, 5), RegularWindow(60, 2), RegularWindow(23, 7, 5),
])  # fmt: skip


def at(micros: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=micros)


def batch_of(rows: Iterable[tuple[int, int | None, int]]) -> pa.RecordBatch:
    named = [{"user": user, "ts": None if ts is None else at(ts), "amount": amount} for user, ts, amount in rows]
    return pa.RecordBatch.from_pylist(named, schema=SCHEMA)


def windows_of(window: RegularWindow, ts: int) -> list[tuple[int, int]]:
    """By trying all of them."""
    starts = range((ts - window.size) // window.every - 1, ts // window.every + 2)
    bounds = [(k * window.every + window.offset, k * window.every + window.offset + window.size) for k in starts]
    return [(start, end) for start, end in bounds if start <= ts < end]


def result(user: int, bounds: tuple[int, int], amounts: list[int]) -> dict[str, Any]:
    return {
        "user": user, "window_start": at(bounds[0]), "window_end": at(bounds[1]),
        "n": len(amounts), "total": sum(amounts), "earliest": amounts[0], "latest": amounts[-1],
        "high": max(amounts),
    }  # fmt: skip


def in_order(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: tuple(map(str, row.values())))


class RegularOracle:
    """Windows as a dictionary."""

    def __init__(self, window: RegularWindow, lateness: int, *, updates: bool) -> None:
        self.window, self.lateness, self.updates = window, lateness, updates
        self.windows: dict[tuple[int, tuple[int, int]], list[tuple[int, int]]] = {}
        self.closed: set[tuple[int, tuple[int, int]]] = set()
        self.late = 0
        self.watermark = NO_WATERMARK

    def advance(self, watermark: int) -> Rows:
        self.watermark = max(self.watermark, watermark)
        rows = []
        for key in self.windows:
            if key[1][1] <= self.watermark and key not in self.closed:
                self.closed.add(key)
                rows.append(self.result(key))
        return [] if self.updates else rows

    def result(self, key: tuple[int, tuple[int, int]]) -> dict[str, Any]:
        """Panes in the order of time, rows of a pane in the order of arrival."""
        return result(*key, [amount for _, amount in sorted(self.windows[key], key=lambda item: item[0])])

    def add(self, rows: Iterable[tuple[int, int | None, int]]) -> set[tuple[int, tuple[int, int]]]:
        touched = set()
        for user, ts, amount in rows:
            windows = [] if ts is None else windows_of(self.window, ts)
            if not any(end + self.lateness > self.watermark for _, end in windows):
                self.late += 1
                continue
            for bounds in windows:
                if bounds[1] + self.lateness > self.watermark:
                    pane = (ts - self.window.offset) // self.window.pane
                    self.windows.setdefault((user, bounds), []).append((pane, amount))
                    touched.add((user, bounds))
                    if bounds[1] <= self.watermark:
                        self.closed.add((user, bounds))
        return touched


def spec_of(window: Window, lateness: int = 0, emit: Any = "on_close") -> WindowAggregate:
    return WindowAggregate("w", SCHEMA, ("user",), "ts", window, AGGREGATES, lateness, emit)


@settings(deadline=None, max_examples=30)
@given(window=REGULAR, epochs=EPOCHS, step_rows=st.sampled_from([3, 1 << 14]))
def test_each_window_closes_once_with_all_its_rows(window: RegularWindow, epochs: Any, step_rows: int) -> None:
    """D2, A10: whatever is interrupted, repeated and rescaled in between."""
    oracle = RegularOracle(window, 0, updates=False)
    expected: Rows = []
    watermark = 0
    with mock.patch.object(closing, "STEP_ROWS", step_rows), Windows(spec_of(window), ["user"]) as run:
        for parallelism, slices, yields, crash in epochs:
            made = []
            for step, rows in slices:
                watermark += step
                expected += oracle.advance(watermark)
                oracle.add(rows)
                made.append((watermark, batch_of(rows)))
            run.run(Epoch(parallelism, made, yields, crash))
        run.run(Epoch(2, [(250, batch_of([]))]))
        expected += oracle.advance(250)
        run.run(Epoch(1, []))
    assert in_order(run.rows()) == in_order(expected)
    assert len(run.late) == oracle.late
    assert all(due.event_time is None for due in run.due), "nothing is left"


@settings(deadline=None, max_examples=30)
@given(
    window=REGULAR, epochs=EPOCHS, lateness=st.integers(0, 40), emit=st.sampled_from(["on_close", "on_update"]),
    step_rows=st.sampled_from([3, 1 << 14]),
)  # fmt: skip
def test_rows_within_the_allowed_lateness_and_updates_make_new_rows(
    window: RegularWindow, epochs: Any, lateness: int, emit: str, step_rows: int
) -> None:
    """D2: the last row of each window has everything, each row but the first tells something new."""
    oracle = RegularOracle(window, lateness, updates=emit == "on_update")
    watermark = 0
    with mock.patch.object(closing, "STEP_ROWS", step_rows), Windows(spec_of(window, lateness, emit), ["user"]) as run:
        for parallelism, slices, yields, crash in epochs:
            made, touched = [], set()
            for step, rows in slices:
                watermark += step
                oracle.advance(watermark)
                touched |= oracle.add(rows)
                made.append((watermark, batch_of(rows)))
            run.run(Epoch(parallelism, made, yields, crash))
            if emit == "on_update" and len(slices) == 1 and all(epoch[2] > 2 for epoch in epochs):
                expected = [oracle.result(key) for key in touched]
                assert in_order(run.outputs[-1]) == in_order(expected)
        run.run(Epoch(2, [(250, batch_of([]))]))
        oracle.advance(250)
    newest = {(row["user"], row["window_start"]): row for row in run.rows()}
    assert in_order(list(newest.values())) == in_order([oracle.result(key) for key in oracle.windows])
    counts: dict[Any, list[int]] = {}
    for row in run.rows():
        counts.setdefault((row["user"], row["window_start"]), []).append(row["n"])
    assert all(ns == sorted(set(ns)) for ns in counts.values()), "no row twice"
    assert len(run.late) == oracle.late
    assert all(due.event_time is None for due in run.due)


def sessions(rows: Iterable[tuple[int, int, int]], gap: int) -> Rows:
    """Of rows in the order of arrival."""
    found: list[tuple[int, int, int, list[tuple[int, int]]]] = []
    for number, (user, ts, amount) in sorted(enumerate(rows), key=lambda item: (item[1][0], item[1][1])):
        if found and found[-1][0] == user and ts <= found[-1][2]:
            _, start, end, mine = found.pop()
            found.append((user, start, max(end, ts + gap), [*mine, (number, amount)]))
        else:
            found.append((user, ts, ts + gap, [(number, amount)]))
    return [result(user, (start, end), [amount for _, amount in sorted(mine)]) for user, start, end, mine in found]


class SessionOracle:
    """Sessions by sorting everything anew."""

    def __init__(self, gap: int) -> None:
        self.gap = gap
        self.open: list[tuple[int, int, int]] = []
        self.late = 0
        self.watermark = NO_WATERMARK

    def advance(self, watermark: int) -> Rows:
        self.watermark = max(self.watermark, watermark)
        over = [row for row in sessions(self.open, self.gap) if row["window_end"] <= at(self.watermark)]
        bounds = [(row["user"], row["window_start"], row["window_end"]) for row in over]
        self.open = [
            (user, ts, amount)
            for user, ts, amount in self.open
            if not any(user == other and start <= at(ts) < end for other, start, end in bounds)
        ]
        return over

    def add(self, rows: Iterable[tuple[int, int | None, int]]) -> None:
        for user, ts, amount in rows:
            if ts is None or ts + self.gap <= self.watermark:
                self.late += 1
            else:
                self.open.append((user, ts, amount))


@settings(deadline=None, max_examples=30)
@given(gap=st.sampled_from([1, 7, 40]), epochs=EPOCHS, step_rows=st.sampled_from([3, 1 << 14]))
def test_each_session_closes_once_with_all_its_rows(gap: int, epochs: Any, step_rows: int) -> None:
    """D2, A10: whatever is interrupted, repeated and rescaled in between."""
    oracle = SessionOracle(gap)
    expected: Rows = []
    watermark = 0
    with mock.patch.object(closing, "STEP_ROWS", step_rows), Windows(spec_of(SessionWindow(gap)), ["user"]) as run:
        for parallelism, slices, yields, crash in epochs:
            made = []
            for step, rows in slices:
                watermark += step
                expected += oracle.advance(watermark)
                oracle.add(rows)
                made.append((watermark, batch_of(rows)))
            run.run(Epoch(parallelism, made, yields, crash))
        run.run(Epoch(2, [(250, batch_of([]))]))
        expected += oracle.advance(250)
    assert in_order(run.rows()) == in_order(expected)
    assert len(run.late) == oracle.late
    assert all(due.event_time is None for due in run.due)


@pytest.mark.parametrize("slices", [[3], [1, 1, 1], [2, 1], [1, 2]])
@pytest.mark.parametrize("epochs", [False, True])
def test_sessions_that_grow_together_go_by_arrival_however_rows_are_cut(slices: list[int], epochs: bool) -> None:
    """D2: the first row to come is not the earliest one."""
    rows = [(1, 100, 1), (1, 0, 2), (1, 50, 3)]
    cut = [[rows.pop(0) for _ in range(count)] for count in slices]
    aggregates = {"first": pen.first("amount"), "last": pen.last("amount"), "all": pen.collect_list("amount", 5)}
    spec = WindowAggregate("w", SCHEMA, ("user",), "ts", SessionWindow(60), aggregates)
    with Windows(spec, ["user"]) as run:
        given = [(NO_WATERMARK, batch_of(part)) for part in cut]
        for part in [[part] for part in given] if epochs else [given]:
            run.run(Epoch(1, part))
        run.run(Epoch(1, [(1_000, batch_of([]))]))
    [row] = run.rows()
    assert (row["window_start"], row["window_end"]) == (at(0), at(160))
    assert (row["first"], row["last"], row["all"]) == (1, 3, [1, 2, 3])


@pytest.mark.parametrize("window", [RegularWindow(10, 10), RegularWindow(30, 10), SessionWindow(7)])
def test_many_windows_that_close_at_once_leave_in_bounded_steps(window: Window) -> None:
    """A2: the barrier may end the epoch after each step, and the next one goes on there."""
    users = 1_000
    rows = [(user, ts, 1) for user in range(users) for ts in (0, 5)]
    with mock.patch.object(closing, "STEP_ROWS", 256), Windows(spec_of(window), ["user"]) as run:
        run.run(Epoch(1, [(NO_WATERMARK, batch_of(rows))]))
        assert run.rows() == []
        run.run(Epoch(1, [(100, batch_of([]))], yields=1))
        for _ in range(200):
            if run.due[0].event_time is None:
                break
            assert run.due[0].event_time <= 100, "asks for an epoch at once"
            run.run(Epoch(1, [], yields=1))
        expected = users * (window.size // window.every if isinstance(window, RegularWindow) else 1)
        assert len(run.rows()) == expected
        assert all(row["n"] == 2 for row in run.rows())
        assert max(map(len, run.outputs)) <= 600
        assert len(run.outputs) > 4


def test_a_window_of_many_panes_closes_in_steps_of_full_size() -> None:
    """A2: a step costs by the entries it reads, and the window that closes is one of the many they are in."""
    panes, users = 300, 20
    rows = [(user, ts, 1) for ts in range(panes) for user in range(users)]
    with mock.patch.object(closing, "STEP_ROWS", 1_000), Windows(spec_of(RegularWindow(panes, 1)), ["user"]) as run:
        run.run(Epoch(1, [(panes - 1, batch_of(rows))]))
        run.run(Epoch(1, [(panes, batch_of([]))], yields=1))
        for _ in range(4 * panes * users // 1_000):
            run.run(Epoch(1, [], yields=1))
        assert len(run.rows()) == users
        assert {row["n"] for row in run.rows()} == {panes}


def test_a_change_of_windows_of_many_panes_looks_up_each_pane_once() -> None:
    """D2, A2: an hour every second, and 3,600 windows with 3,600 panes each change with every row."""
    window, seconds = RegularWindow(3_600, 1), (0, 1, 100, 3_000, 3_000, 7_000)
    looked_up = []
    lookup = KeyedState.lookup

    def counted(state: KeyedState, hashes: Any, keys: pa.RecordBatch) -> Any:
        looked_up.append(len(hashes))
        return lookup(state, hashes, keys)

    with (
        mock.patch.object(KeyedState, "lookup", counted),
        Windows(spec_of(window, emit="on_update"), ["user"]) as run,
    ):
        for amount, second in enumerate(seconds):
            run.run(Epoch(1, [(NO_WATERMARK, batch_of([(1, second, amount)]))]))
            assert len(run.outputs[-1]) == 3_600
        looked_up.clear()
        run.run(Epoch(1, [(NO_WATERMARK, batch_of([(1, second, 1) for second in seconds]))]))
    assert sum(looked_up) <= 3 * (7_000 + 2 * 3_600)
    assert max(looked_up) <= closing.STEP_ROWS + 2 * 3_600
    assert len(run.outputs[-1]) == 10_200
    counts = {row["window_start"]: row["n"] for row in run.outputs[-1]}
    assert (counts[at(0)], counts[at(-700)], counts[at(3_401)], counts[at(7_000)]) == (10, 6, 2, 2)


def test_a_window_of_too_many_panes_is_refused() -> None:
    """E5: lengths that have hardly a common divisor."""
    with pytest.raises(pen.PenstockError, match=r"PEN-002.*86,400,000,000 panes of 1 us"):
        pen.sliding_window("1 d", every="7.000001 s")
    assert pen.sliding_window("1 d", every="1 s").panes_per_window == 86_400


@pytest.mark.parametrize("window", [RegularWindow(100, 100), RegularWindow(100, 10), SessionWindow(100)])
def test_an_epoch_in_which_nothing_closes_does_not_look_at_the_state(window: Window) -> None:
    """D6: time passes for free."""
    spec = spec_of(window)
    states = {name: mock.Mock(scan=lambda: iter(())) for name in spec.state_tables}
    states[""].lookup.return_value = mock.Mock(found=np.zeros(1, bool))
    groups = KeyGroupRange(0, 1)
    operator: Any = spec.build(OperatorContext(states, 0, groups, 1))
    for watermark in (0, 5, 9):
        time = Time(groups, np.array([watermark]), 0, 1)
        assert list(operator.advance(time)) == []
        assert list(operator.process(Records(batch_of([(1, 10 + watermark, 1)]), np.zeros(1, np.int64), 0, time))) == []
    assert not any(state.method_calls for state in states.values())


def test_a_time_column_in_other_units_is_taken_as_it_is_meant() -> None:
    schema = SCHEMA.set(1, pa.field("ts", pa.timestamp("ms")))
    rows = [{"user": 1, "ts": dt.datetime(1970, 1, 1, 0, 0, 1), "amount": 1}]  # noqa: DTZ001
    spec = WindowAggregate("w", schema, ("user",), "ts", pen.tumbling_window("1 s"), {"n": pen.count()})
    with Windows(spec, ["user"]) as run:
        run.run(Epoch(1, [(0, pa.RecordBatch.from_pylist(rows, schema=schema))]))
        run.run(Epoch(1, [(3_000_000, pa.RecordBatch.from_pylist([], schema=schema))]))
    (row,) = run.rows()
    assert (row["window_start"], row["n"]) == (dt.datetime(1970, 1, 1, 0, 0, 1), 1)  # noqa: DTZ001
