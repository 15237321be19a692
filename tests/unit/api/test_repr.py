"""What a terminal shows of streams, outputs and queries."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock as pen
from penstock.errors import PenstockError
from penstock.testing import stream_of
from penstock.testing.inline import InlineCluster, InlineRun
from tests.support.engine_jobs import FakeClock, batches_of, keyed_slow

COLUMNS = "user int64, ts timestamp[us, tz=UTC]; event time ts"


@pytest.fixture
def orders() -> pen.Stream:
    return stream_of(pa.schema([("user", pa.int64()), ("ts", pa.timestamp("us", "UTC"))]), "orders", event_time="ts")


def test_a_stream_of_a_source_shows_its_name_columns_and_event_time(orders: pen.Stream) -> None:
    assert repr(orders) == f"<Stream of source 'orders': {COLUMNS}>"


def test_a_stream_behind_an_operator_shows_the_operator(orders: pen.Stream) -> None:
    large = orders.filter(pc.field("user") > 1, name="large")
    assert repr(large) == f"<Stream of operator 'large': {COLUMNS}>"


def test_a_side_output_shows_its_operator(orders: pen.Stream) -> None:
    counts = orders.key_by("user").window(pen.tumbling_window("1 min")).aggregate(n=pen.count(), name="counts")
    assert repr(counts.side("late")) == f"<Stream of side output 'late' of operator 'counts': {COLUMNS}>"


def test_a_keyed_stream_shows_its_keys(orders: pen.Stream) -> None:
    assert repr(orders.key_by("user", "ts")) == f"<KeyedStream by user, ts of source 'orders': {COLUMNS}>"


def test_a_broadcast_stream_says_so(orders: pen.Stream) -> None:
    assert repr(orders.broadcast()) == f"<BroadcastStream of source 'orders': {COLUMNS}>"


@pytest.mark.parametrize(
    ("window", "text"),
    [
        (pen.tumbling_window("1 min"), "tumbling windows of 60 s"),
        (pen.sliding_window("1 min", every="100 ms"), "sliding windows of 60 s every 0.1 s"),
        (pen.session_window("5 min"), "session windows of gap 300 s"),
    ],
)
def test_a_windowed_stream_shows_its_windows(orders: pen.Stream, window: object, text: str) -> None:
    windowed = orders.key_by("user").window(window)  # type: ignore[arg-type]
    assert repr(windowed) == f"<WindowedStream by user in {text} over ts of source 'orders': {COLUMNS}>"


def test_a_stream_of_many_columns_is_cut() -> None:
    wide = stream_of(pa.schema([(f"column_{n}", pa.int64()) for n in range(500)]))
    assert len(repr(wide)) < 400
    assert repr(wide).endswith("… (500 columns)>")


@pytest.mark.parametrize(("name", "shown"), [(None, "Output"), ("table", "Output 'table'")])
def test_an_output_shows_its_name_stream_and_sink(orders: pen.Stream, name: str | None, shown: str) -> None:
    output = orders.write(pen.Discard(), name=name)
    assert repr(output) == f"<{shown} of source 'orders' into {pen.Discard().description}>"


def test_a_query_shows_whether_it_runs_its_folder_and_how_far_it_is(table: str, tmp_path: Path) -> None:
    clock, may_go_on = FakeClock(), threading.Event()

    def wait(cluster: InlineCluster) -> None:
        cluster.before_job = lambda _: may_go_on.wait(30)

    run = InlineRun(batches_of(10, 1), clock, prepare=wait)
    query = run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path, name="totals")
    folder = tmp_path.as_uri()
    assert repr(query) == f"<Query 'totals', active, checkpoints in {folder}, generation 1, last checkpoint 1>"
    may_go_on.set()
    query.await_termination(30)
    last = query.checkpoints()[-1]
    assert last > 1
    assert repr(query) == f"<Query 'totals', ended, checkpoints in {folder}, generation 1, last checkpoint {last}>"


def test_a_query_that_failed_shows_the_code_of_its_error(tmp_path: Path) -> None:
    failing = stream_of(batches_of(1, 1)[0]["source"].schema).filter(lambda batch: 1 / 0, name="failing")
    query = InlineRun(batches_of(10, 1), FakeClock()).start(failing.write(pen.Discard()), checkpoint=tmp_path)
    with pytest.raises(PenstockError):
        query.await_termination(30)
    assert ", ended with PEN-030, " in repr(query)
