"""A program that waits for its query in a terminal; test_ctrl_c presses keys and sends signals."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

import polars as pl  # comes with pypaimon, and has a signal handler that lets waits go on after Ctrl-C
import pyarrow as pa

from penstock.engine.background import wait_for
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


def tell_when_main_waits() -> None:
    """Prints once the main thread is inside `await_termination`: a key that is pressed earlier meets other code."""
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    while wait_for.__code__ not in _codes(sys._current_frames()[main_thread]):
        time.sleep(0.01)
    print("waits", flush=True)


def _codes(frame: FrameType | None) -> Iterator[CodeType]:
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back


def main(checkpoint: Path, kind: str) -> None:
    assert pl.__version__
    function = hang if kind == "hang" else work
    job = stream_of(SCHEMA).map_batches(function, SCHEMA, name="work").write(Memory("table"))
    if kind == "own answer":
        signal.signal(signal.SIGTERM, lambda *_: print("own answer", flush=True))
    query = InlineRun(batches_of(10, 2000), time.monotonic).start(job, checkpoint=checkpoint, on_event=listen)
    if kind == "elsewhere":
        print("elsewhere", flush=True)
        threading.Event().wait()
    try:
        threading.Thread(target=tell_when_main_waits, daemon=True).start()
        query.await_termination()
    except (KeyboardInterrupt, SystemExit):
        error = query.exception()
        print(f"interrupted, active={query.is_active}, error={error}", flush=True)
        raise


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
