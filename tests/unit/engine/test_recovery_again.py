"""The whole engine without Spark: crash while recovering, at another parallelism, elsewhere, again and again (B7)."""

from __future__ import annotations

import random
import shutil
import threading
from pathlib import Path

import pyarrow as pa
import pytest

import penstock as pen
from penstock.engine.cluster import JobFailed
from penstock.engine.query import Query
from penstock.errors import StageFailed
from penstock.observe.events import EpochPublished, Event, QueryStarted
from penstock.testing.inline import InlineCluster, InlineRun, stream_of
from penstock.testing.tables import Memory
from tests.support.engine_jobs import SCHEMA, FakeClock, assert_exact, batches_of
from tests.support.seeds import FRESH, drawn

FIXED_SEEDS = (1, 2)
ROWS, BATCHES = 120, 3


def two_stages(clock: FakeClock, table: str) -> pen.Output:
    """Two keyed stages, both slow, both with state; the second is fed through segments in every epoch."""

    def stage(cost_s: float) -> type[pen.KeyedProcess]:
        class Slow(pen.KeyedProcess):
            output = SCHEMA
            seen = pen.value_state(pa.int64())

            def process(self, key, rows, state, out):
                clock.now += len(rows) * cost_s
                assert state.seen is None or state.seen < rows[0]["number"], "order of a key, in its state"
                state.seen = rows[-1]["number"]
                out.emit_many(rows)

        return Slow

    first = stream_of(SCHEMA).key_by("user").process(stage(0.001), name="first")
    return first.key_by("user").process(stage(0.002), name="second").write(Memory(table))


class Job:
    """One job that lives many lives, each in a folder of its own or in the last one's."""

    def __init__(self, tmp_path: Path, clock: FakeClock, table: str, seed: int) -> None:
        self.choose = random.Random(seed)
        self.tmp_path, self.clock, self.table = tmp_path, clock, table
        self.place = tmp_path / "0"
        self.restore: Path | None = None
        self.run = InlineRun(batches_of(ROWS, BATCHES), clock)
        self.recovered_while_in_flight = 0

    def live(self, number: int, *, last: bool) -> None:
        """One life: ends in the middle of an epoch, by `stop`, or when all is done."""
        events: list[Event] = []
        fatal_job = 10**9 if last else self.choose.randrange(6)
        jobs = [0]

        def prepare(cluster: InlineCluster) -> None:
            def rewrite(reports):
                jobs[0] += 1
                if jobs[0] > fatal_job:
                    raise JobFailed("executor lost")
                return reports

            cluster.rewrite = rewrite

        self.run.prepare = prepare
        options = {} if self.restore is None else {"restore": self.restore}
        box: list[Query] = []
        ready = threading.Event()

        def listen(event: Event) -> None:
            events.append(event)
            if isinstance(event, EpochPublished) and event.kind != "takeover" and self.choose.random() < 0.3:
                ready.wait()
                box[0].rescale({"first": self.choose.randint(1, 7), "second": self.choose.randint(1, 7)})

        query = self.run.start(
            two_stages(self.clock, self.table),
            checkpoint=self.place,
            epoch=f"{self.choose.choice([20, 40, 80])} ms",
            epoch_retries=0,
            retain=self.choose.randint(1, 3),
            parallelism={"first": self.choose.randint(1, 7), "second": self.choose.randint(1, 7)},
            on_event=listen,
            **options,
        )
        box.append(query)
        ready.set()
        try:
            assert query.await_termination(60), "it hangs"
        except StageFailed:
            assert not last
        self.assert_published_at_once(events)
        self.restore = None
        if not last and self.choose.random() < 0.4:
            self.move(query, number)

    def assert_published_at_once(self, events: list[Event]) -> None:
        """B6: the takeover holds everything in flight, and the very first epoch after it publishes."""
        published = [event for event in events if isinstance(event, EpochPublished)]
        (started,) = [event for event in events if isinstance(event, QueryStarted)]
        assert published[0].kind == "takeover"
        if started.restored is not None and published[0].rows_in_flight:
            self.recovered_while_in_flight += 1
        ids = [event.checkpoint for event in published]
        assert ids == list(range(ids[0], ids[0] + len(ids)))

    def move(self, query: Query, number: int) -> None:
        """Goes on in another folder: from a savepoint, or from a copy; the original is gone."""
        saved = self.tmp_path / f"saved-{number}"
        if self.choose.random() < 0.5:
            query.savepoint(saved)
        else:
            shutil.copytree(self.place, saved)
        shutil.rmtree(self.place)
        self.place, self.restore = self.tmp_path / str(number), saved


@pytest.mark.parametrize("seed", [*FIXED_SEEDS, FRESH])
def test_a_checkpoint_taken_while_recovering_is_restored_again_and_again(
    tmp_path: Path, clock: FakeClock, table: str, seed: int | None
) -> None:
    """B1, B2, B3, B6, B7, A8: every record once and in order, whatever the lives before looked like."""
    job = Job(tmp_path, clock, table, drawn(seed))
    for number in range(1, 7):
        job.live(number, last=False)
    job.live(7, last=True)
    assert_exact(table, ROWS * BATCHES)
    assert job.recovered_while_in_flight >= 2
