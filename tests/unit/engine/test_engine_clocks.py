"""The driver's wall clock jumps: timers and idle sources go on as time passes."""

from __future__ import annotations

import threading
from pathlib import Path

from penstock.observe.events import EpochPublished, Event
from penstock.testing.inline import InlineRun, stream_of
from penstock.testing.tables import Memory, memory_table
from tests.support.engine_jobs import SCHEMA, FakeClock, batches_of

SECOND = 1_000_000
YEAR = 365 * 86_400 * SECOND
START = 50 * YEAR


def test_one_jump_by_a_year_neither_fires_timers_early_nor_stops_them(
    tmp_path: Path, clock: FakeClock, table: str
) -> None:
    driver = FakeClock()
    jumped = threading.Event()
    seen: list[int] = []

    def wall_us() -> int:
        right = START + round(driver.now * SECOND)
        return right + YEAR if seen and len(seen) == 3 else right

    def listen(event: Event) -> None:
        if isinstance(event, EpochPublished):
            driver.now += 1.0
            seen.append(event.checkpoint)
            jumped.set()

    run = InlineRun(batches_of(10, 30), clock, wall_us=wall_us, driver_clock=driver)
    job = stream_of(SCHEMA).filter(lambda batch: [True] * batch.num_rows, name="all").write(Memory(table))
    query = run.start(job, checkpoint=tmp_path, on_event=listen, epoch_timeout=None, commit_timeout=None)
    query.await_termination(60)
    right = START + round(driver.now * SECOND)
    assert len(memory_table(table).rows()) == 300
    assert jumped.is_set()
    assert abs(query.manifest().now - right) <= 3 * SECOND, "as if nothing had happened"
