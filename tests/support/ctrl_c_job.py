"""A program that waits for its query in a terminal; test_ctrl_c presses the keys."""

from __future__ import annotations

import fcntl
import sys
import termios
import time
from pathlib import Path

import polars as pl  # comes with pypaimon, and has a signal handler that lets waits go on after Ctrl-C
import pyarrow as pa

from penstock.observe.events import EpochPublished, Event
from penstock.testing.inline import InlineRun, stream_of
from penstock.testing.tables import Memory
from tests.support.engine_jobs import SCHEMA, batches_of


def work(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(0.05)
    return batch


def hang(batch: pa.RecordBatch) -> pa.RecordBatch:
    print("hangs", flush=True)
    time.sleep(3600)
    return batch


def listen(event: Event) -> None:
    if isinstance(event, EpochPublished):
        print(f"checkpoint {event.checkpoint}", flush=True)


def main(checkpoint: Path, kind: str) -> None:
    assert pl.__version__
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # from now on its keys are signals for this program
    function = hang if kind == "hang" else work
    job = stream_of(SCHEMA).map_batches(function, name="work").write(Memory("table"))
    query = InlineRun(batches_of(10, 2000), time.monotonic).start(job, checkpoint=checkpoint, listeners=(listen,))
    try:
        print("waits", flush=True)
        query.await_termination()
    except KeyboardInterrupt:
        error = query.exception()
        print(f"interrupted, active={query.is_active}, error={error}", flush=True)
        raise


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
