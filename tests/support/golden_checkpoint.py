"""Writes the golden checkpoint in tests/unit/golden: ``python -m tests.support.golden_checkpoint``.

Run it only when the format changes on purpose, raise the version then, and say so in bold in the changelog: bytes that
were written once must stay readable. Everything comes from a fixed seed, so the rows can be told without the files.
"""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.hashing import hash_columns
from penstock.inflight.segment import HASH_COLUMN, SegmentFiles, SegmentOrigin, edge_schema
from penstock.protocol.advance import advance_state
from penstock.protocol.codec import encode_manifest
from penstock.protocol.keygroups import KeyGroupRange, groups_of, range_of
from penstock.protocol.layout import AttemptId, DataFile, manifest_path
from penstock.protocol.manifest import (
    Committable,
    EdgeShape,
    EdgeState,
    Manifest,
    OperatorShape,
    PendingCommit,
    PipelineShape,
    Segment,
    SinkState,
    SourcePosition,
    Span,
    StateFile,
)
from penstock.protocol.report import StateReport
from penstock.records import StateSchema
from penstock.state.keyed import KeyedState
from penstock.store.local import LocalStore

GOLDEN = Path(__file__).parent / "golden"
CHECKPOINT, GENERATION = 5, 2
MAX_PARALLELISM = 12  # no power of two: the rules that differ there must be written down, too
EDGE, OPERATOR, SINK = "clicks-to-totals", "totals", "table"
PAYLOAD = b"\x00\xffcommit"

CLICKS = pa.schema([("user", pa.int64()), ("word", pa.string())])
STATE = StateSchema(pa.schema([("user", pa.int64())]), pa.schema([("n", pa.int64()), ("total", pa.float64())]))
COLUMNS = (("user", "int64"), ("word", "string"))
STATE_COLUMNS = (("user", "int64"), ("n", "int64"), ("total", "double"))

CURSORS = {0: 25, 1: 25, 2: 25, 3: 25, 4: 0, 5: 0, 9: 0, 10: 0, 11: 0}
"""Key group to cursor; groups 6 to 8 were read to the end. Groups 4, 5 and 9 to 11 share a span."""


def clicks() -> list[tuple[int | None, str | None]]:
    """The rows of the segment, in order."""
    choose = random.Random(7)
    users = [choose.choice([None, *range(-20, 40)]) for _ in range(60)]
    return [(user, None if number % 9 == 0 else f"word {number}") for number, user in enumerate(users)]


def totals() -> dict[int, tuple[int, float | None]]:
    """The state: what three epochs of updates and deletions leave."""
    state: dict[int, tuple[int, float | None]] = {}
    for updates, deleted in epochs_of_state():
        state.update(updates)
        for user in deleted:
            del state[user]
    return state


def epochs_of_state() -> list[tuple[dict[int, tuple[int, float | None]], list[int]]]:
    """Updates and deletions of each epoch; those of the last one are of the key groups 0 to 5 only."""
    users = range(40)
    low = [user for user in users if _group(user) < 6]
    return [
        ({user: (1, user / 2) for user in users}, []),
        (dict.fromkeys((3, 8, 9), (2, None)), [6, 7]),
        ({user: (3, -user / 4) for user in low}, []),
    ]


def _group(user: int) -> int:
    return int(groups_of(hash_columns([pa.array([user], pa.int64())]), MAX_PARALLELISM)[0])


def write() -> None:
    store = LocalStore(GOLDEN)
    store.delete(entry.path for entry in store.list(""))
    manifest = _manifest(_segment(store), _state_files(store))
    store.create(manifest_path(CHECKPOINT), encode_manifest(manifest))


def _segment(store: LocalStore) -> Segment:
    users, words = zip(*clicks(), strict=True)
    columns = [pa.array(users, pa.int64()), pa.array(words, pa.string())]
    hashes = hash_columns(columns[:1])
    batch = pa.record_batch([*columns, pa.array(hashes)], [*CLICKS.names, HASH_COLUMN])
    groups = groups_of(hashes, MAX_PARALLELISM)
    files = SegmentFiles(
        store,
        lambda sequence: _path("segments", EDGE, CHECKPOINT, sequence),
        edge_schema(CLICKS),
        origin=SegmentOrigin(CHECKPOINT, 0, None, MAX_PARALLELISM),
        groups=KeyGroupRange(0, MAX_PARALLELISM),
        target_bytes=1 << 20,
    )
    for begin in (0, 40):
        files.write(batch.slice(begin, 40), groups[begin : begin + 40])
    (segment,) = files.close()
    return msgspec.structs.replace(segment, spans=_spans(groups))


def _spans(groups: npt.NDArray[np.int64]) -> tuple[Span, ...]:
    def span(cursor: int, *ranges: tuple[int, int]) -> Span:
        mine = [group for lo, hi in ranges for group in range(lo, hi)]
        left = int(np.isin(groups[cursor:], mine).sum())
        return Span(ranges=tuple(KeyGroupRange(*part) for part in ranges), cursor=cursor, rows_left=left)

    return (span(25, (0, 4)), span(0, (4, 6), (9, 12)))


def _state_files(store: LocalStore) -> tuple[StateFile, ...]:
    files: tuple[StateFile, ...] = ()
    halves = [KeyGroupRange(0, MAX_PARALLELISM), KeyGroupRange(0, MAX_PARALLELISM), range_of(0, 2, MAX_PARALLELISM)]
    for number, ((updates, deleted), groups) in enumerate(zip(epochs_of_state(), halves, strict=True), CHECKPOINT - 2):
        state = KeyedState.open(store, files, groups, STATE, MAX_PARALLELISM)
        users = pa.array([*updates, *deleted], pa.int64())
        counts, sums = zip(*updates.values(), *([(0, 0.0)] * len(deleted)), strict=True)
        state.update(
            hash_columns([users]),
            pa.record_batch([users], schema=STATE.keys),
            pa.record_batch([pa.array(counts, pa.int64()), pa.array(sums, pa.float64())], schema=STATE.values),
            np.arange(len(users)) >= len(updates),
        )
        change = state.flush(_path("state", OPERATOR, number, 0))
        state.close()
        report = StateReport(table=OPERATOR, added=change.added, replaced=change.replaced)
        files = advance_state(files, [report])
    return files


def _path(folder: str, owner: str, checkpoint: int, sequence: int) -> str:
    attempt = str(10 + checkpoint)
    return DataFile(folder, owner, AttemptId(checkpoint, GENERATION, 0, attempt), sequence).path


def _manifest(segment: Segment, state: tuple[StateFile, ...]) -> Manifest:
    results = (("user", "int64"), ("n", "int64"), ("total", "double"))
    pending = PendingCommit(
        checkpoint=CHECKPOINT, committables=(Committable(PAYLOAD, 3, 1234),), watermark=1_700_000_000_000
    )
    return Manifest(
        format=1,
        library="0.1.0",
        identity="0123456789abcdef0123456789abcdef",
        checkpoint=CHECKPOINT,
        parent=CHECKPOINT - 1,
        generation=GENERATION,
        created_at="2026-11-16T09:00:00.000+00:00",
        max_parallelism=MAX_PARALLELISM,
        parallelism={OPERATOR: 2},
        shape=PipelineShape(
            sources={"clicks": COLUMNS},
            operators={
                OPERATOR: OperatorShape(kind="aggregate", stage=OPERATOR, output=results, state={"": STATE_COLUMNS})
            },
            edges={EDGE: EdgeShape(producer="clicks", consumer=OPERATOR, keys=("user",), columns=COLUMNS)},
            sinks=(SINK,),
        ),
        source=SourcePosition(batch_id=3, offsets_digest="0" * 32, query_id="5f0c6f1e-0000-4000-8000-000000000000"),
        edges={
            EDGE: EdgeState(accepted=500 + segment.rows_left, consumed=490, dropped=10, segments=(segment,)),
        },
        state={OPERATOR: state},
        sinks={
            SINK: SinkState(
                committed=4,
                snapshot=2,
                watermark=1_700_000_000_000,
                pending=(pending,),
                listeners={"notify": b"\x00\xfe"},
            )
        },
    )


if __name__ == "__main__":
    write()
