"""Records of any size pass through segments, a restart at another parallelism and a tiny prefetch budget (B5)."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pyarrow as pa

import penstock as pen
from penstock.observe.events import EpochPublished
from penstock.testing.inline import InlineRun, stream_of
from penstock.testing.tables import Memory, memory_table
from tests.support.engine_jobs import FakeClock, run_until

SCHEMA = pa.schema([("user", pa.int64()), ("number", pa.int64()), ("pad", pa.binary())])
DIGESTS = pa.schema([("number", pa.int64()), ("digest", pa.string())])
MIB = 1 << 20


def records(sizes: list[int]) -> pa.Table:
    chance = random.Random(5)
    pads = [chance.randbytes(size) for size in sizes]
    return pa.table([[n % 2 for n in range(len(sizes))], list(range(len(sizes))), pads], schema=SCHEMA)


def digest(pad: bytes) -> str:
    return hashlib.blake2b(pad).hexdigest()


def output(clock: FakeClock, table: str) -> pen.Output:
    class Digest(pen.KeyedProcess):
        output = DIGESTS

        def process(self, key, rows, state, out):
            for row in rows:
                clock.now += 1.0
                out.emit(number=row["number"], digest=digest(row["pad"]))

    return stream_of(SCHEMA).key_by("user").process(Digest, name="digest").write(Memory(table))


def any_epoch(event: EpochPublished) -> bool:
    return event.kind != "takeover"


def test_a_record_of_64_mib_passes_with_a_prefetch_budget_of_8_mib(
    tmp_path: Path, clock: FakeClock, table: str
) -> None:
    """B5: also records of many times a read buffer, and a segment size far below theirs; restored 3→2→5 on the way."""
    large = [64 * MIB, 9 * MIB, 100, 8 * 64 * 1024, 3 * MIB, 17 * MIB, 0, 2 * MIB, 10, 9 * MIB]
    table_of_records = records([*[20] * 60, *large])
    run = InlineRun([{"source": table_of_records}], clock)
    options = {"checkpoint": tmp_path, "epoch": "1 s", "prefetch_bytes": 8 * MIB, "segment_bytes": MIB}
    for parallelism in (3, 2):
        query = run_until(run, output(clock, table), any_epoch, parallelism=parallelism, **options)
        assert query.manifest().rows_in_flight > 0, "something must be in flight for this to show anything"
    run.start(output(clock, table), parallelism=5, **options).await_termination(60)
    rows = memory_table(table).rows().sort_by("number").to_pylist()
    assert [row["number"] for row in rows] == list(range(70))
    assert [row["digest"] for row in rows] == [digest(pad.as_py()) for pad in table_of_records["pad"]]
