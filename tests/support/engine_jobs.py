"""Jobs, clocks and checks shared by the tests of the engine."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

import penstock as pen
from penstock.engine.checkpoints import Checkpoints
from penstock.engine.cluster import JobFailed, StageJob
from penstock.engine.savepoint import Savepoint, take_savepoint
from penstock.observe.events import EpochPublished, Event
from penstock.store import open_store
from penstock.testing.inline import InlineCluster, InlineRun, stream_of
from penstock.testing.tables import Memory, memory_table

SCHEMA = pa.schema([("user", pa.int64()), ("number", pa.int64())])


class FakeClock:
    """Time passes only when an operator says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def batches_of(rows: int, count: int, users: int = 7) -> list[dict[str, pa.Table]]:
    numbers = iter(range(rows * count))
    made = []
    for _ in range(count):
        mine = list(itertools.islice(numbers, rows))
        made.append({"source": pa.table({"user": [n % users for n in mine], "number": mine}, schema=SCHEMA)})
    return made


def slow_map(clock: FakeClock, cost_s: float = 0.001):
    def work(batch: pa.RecordBatch) -> pa.RecordBatch:
        clock.now += batch.num_rows * cost_s
        return batch

    return work


def keyed_slow(clock: FakeClock, table: str, cost_s: float = 0.001) -> pen.Output:
    """A keyed operator that costs time and hands every record on."""

    class Slow(pen.KeyedProcess):
        output = SCHEMA
        seen = pen.value_state(pa.int64())

        def process(self, key, rows, state, out):
            clock.now += len(rows) * cost_s
            state.seen = (state.seen or 0) + len(rows)
            out.emit_many(rows)

    return stream_of(SCHEMA).key_by("user").process(Slow, name="slow").write(Memory(table))


def assert_once(table: str, expected: int) -> None:
    """Each number is there once, in any order: rows without a key have none."""
    assert Counter(memory_table(table).rows()["number"].to_pylist()) == Counter(range(expected))


def assert_exact(table: str, expected: int) -> None:
    """Each number is there once, those of a user in order."""
    assert_once(table, expected)
    rows = memory_table(table).rows()
    for user in range(7):
        mine = [n for u, n in zip(rows["user"].to_pylist(), rows["number"].to_pylist(), strict=True) if u == user]
        assert mine == sorted(mine), f"order of user {user}"


def epochs(events: list[Event]) -> list[EpochPublished]:
    return [event for event in events if isinstance(event, EpochPublished) and event.kind != "takeover"]


def wait_until(condition: Callable[[], bool], query: pen.Query) -> None:
    """Looks again and again until something that another thread does has happened."""
    deadline = time.monotonic() + 60
    while not condition():
        assert query.is_active, query.exception() or "the query ended before"
        assert time.monotonic() < deadline, "it does not happen"


def stop_when(query_box: list, condition, *, drain: bool = False):
    """A listener that asks the query to stop as soon as an epoch fits `condition`."""
    asked = threading.Event()

    def listen(event: Event) -> None:
        if isinstance(event, EpochPublished) and condition(event) and not asked.is_set():
            asked.set()
            query_box[0]._supervisor.loop.request_stop(drain=drain)

    return listen


def run_until(run: InlineRun, output: pen.Output | tuple[pen.Output, ...], condition, **options):
    outputs = output if isinstance(output, tuple) else (output,)
    box: list = []
    started = threading.Event()
    inner = stop_when(box, condition)

    def listen(event: Event) -> None:
        if isinstance(event, EpochPublished) and event.kind != "takeover":
            started.wait()
        inner(event)

    query = run.start(*outputs, on_event=listen, **options)
    box.append(query)
    started.set()
    query._supervisor._stopping = True
    query.await_termination(60)
    return query


def run_with_input_on_offer(run: InlineRun, output: pen.Output | tuple[pen.Output, ...], **options: object) -> None:
    """Runs to the end; before an epoch on in-flight data alone ends, the next micro-batch is on offer. So what keeps
    the loop from taking it is a decision, and not that the feed's thread was late."""
    box: list = []
    started = threading.Event()

    def await_offer(job: StageJob) -> None:
        if not job.plan.live:
            started.wait()
            loop = box[0]._supervisor.loop
            with loop._changed:
                assert loop._changed.wait_for(lambda: loop._offer is not None or loop._source_ended, 30)

    def prepare(cluster: InlineCluster) -> None:
        cluster.before_job = await_offer

    run.prepare = prepare
    outputs = output if isinstance(output, tuple) else (output,)
    box.append(run.start(*outputs, **options))
    started.set()
    box[0].await_termination(60)


def crash_in_job(numbers: set[int]):
    """Lets the jobs with these numbers fail after their subtasks ran: their reports never arrive."""
    counter = itertools.count()

    def prepare(cluster: InlineCluster) -> None:
        def rewrite(reports):
            if next(counter) in numbers:
                raise JobFailed("executor lost")
            return reports

        cluster.rewrite = rewrite

    return prepare


def finished(tmp_path: Path, clock: FakeClock, table: str) -> InlineRun:
    run = InlineRun(batches_of(200, 3), clock)
    run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path).await_termination(30)
    return run


def newest_manifest(tmp_path: Path) -> Path:
    return max((tmp_path / "manifests").glob("*.json"))


def with_rows_in_flight(place: Path, clock: FakeClock, table: str, **options) -> InlineRun:
    """A folder that ends at checkpoint 4 with most of 1,000 rows in flight."""
    run = InlineRun(batches_of(1000, 2), clock)
    run_until(run, keyed_slow(clock, table), lambda e: e.checkpoint == 4, checkpoint=place, epoch="100 ms", **options)
    return run


def tree(place: Path) -> set[str]:
    """The files below a folder."""
    return {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}


def savepoint_of(place: Path, path: Path) -> Savepoint:
    """A savepoint of the newest checkpoint in a folder."""
    checkpoints = Checkpoints(open_store(str(place)))
    manifest = checkpoints.newest()
    assert manifest is not None
    return take_savepoint(manifest, checkpoints.store, open_store(str(path)), str(path))
