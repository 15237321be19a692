"""The folders that are damaged: a checkpoint with rows in flight and state, and a table with a checkpoint beside it."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

import penstock as pen
from penstock.engine.attempts import AttemptFiles
from penstock.engine.checkpoints import Checkpoints
from penstock.engine.savepoint import take_savepoint
from penstock.engine.sourcelog import rewind_source
from penstock.inflight.reader import PrefetchingReader
from penstock.inflight.segment import edge_schema
from penstock.observe.events import decode_events
from penstock.observe.journal import read_journal
from penstock.protocol.codec import encode_manifest
from penstock.protocol.garbage import garbage
from penstock.protocol.ids import CheckpointId, Generation
from penstock.protocol.keygroups import KeyGroupRange
from penstock.protocol.layout import Announcement, AttemptId, manifest_path
from penstock.protocol.manifest import EdgeState, Manifest, PendingCommit, PipelineShape, SinkState, SourcePosition
from penstock.protocol.reads import ReadSpan
from penstock.records import StateSchema
from penstock.sinks.paimon.sink import Paimon
from penstock.state.keyed import KeyedState
from penstock.store import open_store
from penstock.store.base import Store
from penstock.store.paths import check_path
from penstock.testing.inline import InlineRun, stream_of
from penstock.testing.tables import Memory, Snapshot, memory_table
from tests.support import tables
from tests.support.engine_jobs import FakeClock, run_until

TABLE = "fuzz"
ROWS, BATCHES = 120, 2
SCHEMA = pa.schema(
    [
        ("user", pa.int64()),
        ("number", pa.int64()),
        ("word", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("x", pa.float64()), ("name", pa.large_string())])),
    ]
)
STATE = StateSchema(
    pa.schema([("user", pa.int64())]),
    pa.schema([("seen", pa.int64()), ("words", pa.list_(pa.string()))]),
)
OPTIONS = {"epoch": "25 ms", "parallelism": 2, "max_parallelism": 16, "segment_bytes": 1 << 14, "retain": 3}


def rows_of(batch: int) -> pa.Table:
    numbers = range(batch * ROWS, (batch + 1) * ROWS)
    return pa.table(
        {
            "user": [n % 7 for n in numbers],
            "number": list(numbers),
            "word": [None if n % 9 == 0 else f"word {n}" for n in numbers],
            "tags": [[f"t{k}" for k in range(n % 4)] for n in numbers],
            "place": [{"x": n / 2, "name": f"place {n}"} for n in numbers],
        },
        schema=SCHEMA,
    )


def pipeline(clock: FakeClock, cost_s: float) -> pen.Output:
    class Slow(pen.KeyedProcess):
        output = SCHEMA
        seen = pen.value_state(pa.int64())
        words = pen.list_state(pa.string())

        def process(self, key, rows, state, out):
            clock.now += len(rows) * cost_s
            state.seen = (state.seen or 0) + len(rows)
            state.words.append(f"{key}")
            out.emit_many(rows)

    return stream_of(SCHEMA).key_by("user").process(Slow, name="slow").write(Memory(TABLE))


@dataclass(slots=True)
class CheckpointTemplate:
    """A query that was stopped: its folder, a savepoint of it, and what its table held then."""

    folder: Path
    accepted: list[int] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)
    expected: list[object] = field(default_factory=list)
    content: list[object] = field(default_factory=list)

    @classmethod
    def made(cls, place: Path) -> CheckpointTemplate:
        clock = FakeClock()
        run = InlineRun([{"source": rows_of(n)} for n in range(BATCHES)], clock)
        folder = place / "ckpt"
        run_until(run, pipeline(clock, 0.001), lambda e: e.checkpoint == 4, checkpoint=folder, **OPTIONS)
        _with_source(folder)
        store = open_store(str(folder))
        store.append(Announcement(TABLE, AttemptId(9, 1, 0, "7")).path, b"bucket-0/a.parquet\n")
        newest = Checkpoints(store).newest()
        assert newest is not None
        assert newest.rows_in_flight
        assert newest.state
        take_savepoint(newest, store, open_store(str(place / "savepoint")), "")
        template = cls(folder, list(run.accepted), list(memory_table(TABLE).snapshots))
        shutil.copytree(folder, place / "once")
        template.read(place / "once")
        shutil.rmtree(place / "once")
        template.expected = template.content
        assert len(template.expected) > newest.rows_in_flight
        return template

    def restart(self, checkpoint: Path, **options: object) -> bool:
        """Runs the query; whether it ended. Raises: the error that ends it."""
        memory_table(TABLE).snapshots[:] = self.snapshots
        clock = FakeClock()
        run = InlineRun([{"source": rows_of(n)} for n in range(BATCHES)], clock, accepted=list(self.accepted))
        query = run.start(pipeline(clock, 0.0001), checkpoint=checkpoint, **{**OPTIONS, **options})
        return query.await_termination(20)

    def read(self, place: Path) -> str:
        """Reads all that the newest checkpoint holds, and sweeps; `content` is what was found."""
        store = open_store(str(place))
        checkpoints = Checkpoints(store)
        checkpoints.owners()
        decode_events(read_journal(store))
        self.content = self.expected
        manifest = checkpoints.newest()
        if manifest is None:
            return "nothing"
        checkpoints.verify_files(manifest)
        content: list[object] = []
        everything = KeyGroupRange(0, manifest.max_parallelism)
        for name, edge in manifest.edges.items():
            spans = reads_of(edge, everything)
            schema = edge_schema(SCHEMA) if name in manifest.shape.edges else None
            with PrefetchingReader(store, spans, manifest.max_parallelism, 0, schema) as reader:
                while (rows := reader.peek()) is not None:
                    content += used(rows).column(1).to_pylist()
                    reader.advance(rows.num_rows)
        for files in manifest.state.values():
            with closing(KeyedState.open(store, files, everything, STATE, manifest.max_parallelism)) as state:
                content += [row for batch in state.scan() for row in used(batch).column(1).to_pylist()]
        sweep(store, manifest)
        self.content = content
        return "read"

    @staticmethod
    def numbers() -> list[int]:
        """What is in the table now."""
        return sorted(memory_table(TABLE).rows()["number"].to_pylist())


def used(rows: pa.RecordBatch) -> pa.RecordBatch:
    """A copy of all values, so that every offset is followed; an offset that leads elsewhere ends the process."""
    return rows.take(pa.array(range(rows.num_rows - 1, -1, -1)))


def reads_of(edge: EdgeState, everything: KeyGroupRange) -> list[ReadSpan]:
    """As a single subtask would get them."""
    return [
        ReadSpan(segment.path, segment.checksum, part.lo, part.hi, span.cursor)
        for segment in sorted(edge.segments, key=lambda segment: segment.age)
        for span in segment.spans
        for part in span.ranges
        if everything.intersect(part)
    ]


def sweep(store: Store, manifest: Manifest) -> None:
    """What the collector and the coordinator of commits remove."""
    files = [entry.path for folder in ("segments", "state") for entry in store.list(folder)]
    generation, published = Generation(manifest.generation + 1), CheckpointId(manifest.checkpoint)
    store.delete(garbage(files, manifest.files(), generation=generation, published=published))
    store.delete(entry.path for entry in store.leftovers(0))
    attempts = AttemptFiles(store, TABLE, generation=generation, taken_over=published, owners={})
    attempts.sweep(lambda names: [check_path(name) for name in names])
    rewind_source(store, manifest.source.batch_id)


def _with_source(folder: Path) -> None:
    """What Structured Streaming keeps, as far as Penstock reads or copies it."""
    for name, text in {
        "offsets/0": 'v1\n{"batchWatermarkMs":0}\n{"a":1}',
        "commits/0": 'v1\n{"nextBatchWatermarkMs":0}',
        "metadata": '{"id":"5f0c6f1e-0000-4000-8000-000000000000"}',
    }.items():
        path = folder / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@dataclass(slots=True)
class TableTemplate:
    """A Paimon table with a history, and the checkpoint folder of the query that writes it, with a commit pending."""

    folder: Path

    @classmethod
    def made(cls, place: Path) -> TableTemplate:
        lake = place / "lake"
        sink = Paimon(str(lake), "db.words", options={"manifest.merge-min-count": "100"})
        sink.check(tables.SCHEMA)
        committer = sink.open_committer("penstock-fuzz-words")
        for checkpoint in range(1, 7):
            tables.commit(committer, checkpoint, tables.epoch(sink, checkpoint))
        lost = sorted((lake / "db.db/words").rglob("*.parquet"))[:1]
        pending = PendingCommit(checkpoint=7, committables=tuple(tables.epoch(sink, 7)))
        state = SinkState(committed=6, snapshot=6, pending=(pending,))
        manifest = Manifest(
            format=1,
            library="0",
            identity="fuzz",
            checkpoint=7,
            parent=6,
            generation=1,
            created_at="",
            max_parallelism=16,
            parallelism={},
            shape=PipelineShape(sources={}, operators={}, edges={}, sinks=("words",)),
            source=SourcePosition(),
            edges={},
            state={},
            sinks={"words": state},
        )
        store = open_store(str(place / "ckpt"))
        store.create(manifest_path(7), encode_manifest(manifest))
        names = "".join(f"{path.relative_to(lake / 'db.db/words')}\n" for path in lost)
        path = Announcement("words", AttemptId(9, 1, 0, "7")).path
        store.append(path, names.encode())
        return cls(place)


def copy(template: Path, target: Path) -> None:
    """Links, since mutations make new files; what the code under test appends to is copied."""
    for folder, folders, names in os.walk(template):
        here = target / os.path.relpath(folder, template)
        here.mkdir()
        del folders
        for name in names:
            made = shutil.copyfile if name.endswith((".jsonl", ".txt", "LATEST", "EARLIEST")) else os.link
            made(f"{folder}/{name}", f"{here}/{name}")
