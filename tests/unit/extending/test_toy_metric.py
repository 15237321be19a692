"""A metric of one's own, made of events: it touches no file that was there."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from penstock.observe.events import EpochPublished, Event
from penstock.testing.inline import InlineRun, stream_of
from penstock.testing.tables import Memory
from tests.support.engine_jobs import SCHEMA, FakeClock, batches_of


@dataclass
class RowsPerEpoch:
    """How many rows each epoch took from the source."""

    taken: list[int] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        if isinstance(event, EpochPublished) and event.kind != "takeover":
            self.taken.append(event.rows_in)


def test_it_sees_every_epoch_of_the_query(tmp_path: Path) -> None:
    metric = RowsPerEpoch()
    output = stream_of(SCHEMA).write(Memory("metric"))
    query = InlineRun(batches_of(3, 50), FakeClock()).start(output, checkpoint=tmp_path, on_event=metric)
    query.await_termination(60)
    assert sum(metric.taken) == 150
