"""``make interop-lakes``: tables that Penstock wrote, read by Delta's Java kernel and by Java Iceberg.

Rows, types, partitions, added columns, statistics, time travel, tables with a primary key, after upkeep, and after a
driver was killed twice (``--kills``).
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.protocol.ids import CheckpointId, Generation
from penstock.sinks import CommitPermit, WriterContext
from penstock.sinks.delta.sink import Delta
from penstock.sinks.iceberg.catalog import open_table
from penstock.sinks.iceberg.sink import Iceberg
from penstock.sinks.upkeep import Upkeep
from tests.interop_lakes.java import Answer, JavaLakes
from tests.spark.test_lake_kill import live
from tests.support.lake_job import FILES, ROWS, generate, sink_of

KINDS = ("delta", "iceberg")
MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
EVERY_TYPE = pa.record_batch(
    {
        "id": pa.array([1, 2], pa.int64()),
        "boolean": [True, None],
        "int": pa.array([1, None], pa.int32()),
        "float": pa.array([1.5, None], pa.float32()),
        "double": [float("nan"), -0.5],
        "decimal": pa.array([Decimal("1.25"), Decimal("-3.50")], pa.decimal128(10, 2)),
        "wide": pa.array([Decimal("12345678901234567890.12"), None], pa.decimal128(30, 2)),
        "text": ["", 'ä"\n' * 40],
        "binary": [b"\0\xff", None],
        "date": pa.array([date(2026, 1, 2), date(1960, 1, 1)], pa.date32()),
        "moment": pa.array([MOMENT, MOMENT.replace(year=1960)], pa.timestamp("us", "UTC")),
        "local": pa.array([MOMENT.replace(tzinfo=None), None], pa.timestamp("us")),
        "list": pa.array([[1, 2, None], None], pa.list_(pa.int64())),
        "struct": pa.array([{"a": 1}, None], pa.struct([("a", pa.int64())])),
        "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
    }
)


class Story:
    """One table and its checkpoints."""

    def __init__(self, kind: str, folder: Path, schema: pa.Schema, **options: Any) -> None:
        folder.mkdir(parents=True)
        self.kind, self.folder = kind, folder
        self.sink: Any = Delta(str(folder / "t"), **options)
        if kind == "iceberg":
            catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
            self.sink = Iceberg(catalog, "shop.t", **options)
        self.sink.check(schema)
        self.committer, self.checkpoint = self.sink.open_committer("interop"), 0
        self.versions: list[int] = []

    def write(self, *batches: pa.RecordBatch) -> None:
        self.checkpoint += 1
        context = WriterContext(CheckpointId(self.checkpoint), Generation(1), 0, 1, attempt="0")
        writer = self.sink.open_writer(context, batches[0].schema)
        for batch in batches:
            writer.write(batch)
        permit = CommitPermit(Generation(1), CheckpointId(self.checkpoint))
        self.committer.commit(permit, writer.prepare(), watermark=None, properties={}, still_leader=lambda: True)
        self.versions.append(self.version())

    def version(self) -> int:
        if self.kind == "delta":
            return int(self.committer._table.version())
        return int(open_table(self.sink.catalog, self.sink.table).current_snapshot().snapshot_id)

    def read(self, java: JavaLakes, version: int | None = None, where: tuple[str, int, int] | None = None) -> Answer:
        place = self.sink.uri if self.kind == "delta" else place_of(self.sink)
        return java.read(self.kind, place, version, where)


def place_of(sink: Any) -> str:
    return str(open_table(sink.catalog, sink.table).metadata_location)


def plain(value: Any) -> Any:
    """A value as the Java side prints it."""
    match value:
        case None | bool() | str() | int():
            return value
        case float():
            return {"nan": "NaN"}.get(str(value), str(value))
        case Decimal():
            return format(value, "f")
        case bytes():
            return value.hex()
        case datetime():
            moment = value if value.tzinfo else value.replace(tzinfo=UTC)
            return round((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1_000_000)
        case date():
            return value.isoformat()
        case dict():
            return [plain(one) for one in value.values()]
        case tuple() | list():
            return [plain(one) for one in value]
    raise AssertionError(f"{type(value)} is not compared")


def rows_of(table: pa.Table | pa.RecordBatch) -> Counter[str]:
    return Counter(str([plain(value) for value in row.values()]) for row in table.to_pylist())


def same(found: Answer, wanted: Counter[str]) -> None:
    seen = Counter(str(row) for row in found.rows)
    assert seen == wanted, f"only Java: {list(seen - wanted)[:3]}, only ours: {list(wanted - seen)[:3]}"


NUMBERED = pa.schema([("id", pa.int64()), ("word", pa.string())])


def numbered(ids: Sequence[int]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(ids, pa.int64()), [f"word {number}" for number in ids]], schema=NUMBERED)


def types_come_back(java: JavaLakes, kind: str, folder: Path) -> str:
    story = Story(kind, folder, EVERY_TYPE.schema)
    story.write(EVERY_TYPE)
    same(story.read(java), rows_of(EVERY_TYPE))
    return f"{EVERY_TYPE.num_columns} types"


def partitions_and_added_columns_come_back(java: JavaLakes, kind: str, folder: Path) -> str:
    batch = pa.record_batch({"id": pa.array(range(9), pa.int64()), "day": [f"a/b {n % 3}" for n in range(9)]})
    story = Story(kind, folder, batch.schema, partition_by=["day"] if kind == "delta" else ["day", "bucket(4, id)"])
    story.write(batch)
    wider = batch.append_column("more", pa.array(range(9)))
    story.sink = replace(story.sink, evolve_table=True)
    story.sink.check(wider.schema)
    story.committer = story.sink.open_committer("interop")
    story.write(wider)
    older = batch.append_column("more", pa.nulls(9, pa.int64()))
    same(story.read(java), rows_of(wider) + rows_of(older))
    return f"{len(story.read(java).rows)} rows in partitions, a column added"


def older_versions_come_back(java: JavaLakes, kind: str, folder: Path) -> str:
    story = Story(kind, folder, NUMBERED)
    for number in range(5):
        story.write(numbered([number]))
    for number, version in enumerate(story.versions):
        same(story.read(java, version), rows_of(numbered(range(number + 1))))
    return f"{len(story.versions)} versions"


def files_are_skipped_by_their_statistics(java: JavaLakes, kind: str, folder: Path) -> str:
    story = Story(kind, folder, NUMBERED)
    for number in range(40):
        story.write(numbered(range(number * 100, number * 100 + 100)))
    answer = story.read(java, where=("id", 1510, 1690))
    assert answer.read <= answer.files // 10, f"{answer.read} of {answer.files} files are read"
    assert {1510, 1690} <= {row[0] for row in answer.rows}
    return f"{answer.read} of {answer.files} files are read for a range of ids"


def keyed_tables_come_back_after_merges_and_upkeep(java: JavaLakes, kind: str, folder: Path) -> str:
    schema = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("op", pa.string())])
    keep = Upkeep(small_files=2, snapshots=2, snapshots_for=0.0)
    story = Story(kind, folder, schema, primary_key=["id"], row_kind="op")
    keeper = replace(story.sink, upkeep=keep).open_keeper("interop", tuple)
    choose, wanted = random.Random(1), {}
    for _ in range(30):
        rows = [(choose.randrange(200), choose.randrange(10**6), choose.choice(["+U", "+U", "-D"])) for _ in range(30)]
        story.write(pa.record_batch([pa.array(column) for column in zip(*rows, strict=True)], schema=schema))
        for key, number, op in rows:
            wanted.pop(key, None)
            if op != "-D":
                wanted[key] = number
        if choose.random() < 0.3:
            keeper.step()
        same(story.read(java), Counter(str([key, number]) for key, number in wanted.items()))
    return f"{len(wanted)} keys after 30 merges with upkeep between them"


def compacted_tables_come_back(java: JavaLakes, kind: str, folder: Path) -> str:
    story = Story(kind, folder, NUMBERED)
    for number in range(30):
        story.write(numbered([number]))
    before = story.read(java).files
    policy = Upkeep(small_files=10, snapshots=1, snapshots_for=0.0)
    replace(story.sink, upkeep=policy).open_keeper("interop", tuple).step()
    answer = story.read(java)
    same(answer, rows_of(numbered(range(30))))
    assert answer.files < before // 3
    return f"{before} files became {answer.files}"


def killed_queries_leave_every_row_once(java: JavaLakes, kind: str, folder: Path) -> str:
    generate(folder)
    for _ in range(2):
        live(kind, folder, random.randint(1, 4))
    assert live(kind, folder, None) == 0
    place = str(folder / "table") if kind == "delta" else place_of(sink_of(kind, folder))
    ids = Counter(row[0] for row in java.read(kind, place).rows)
    assert ids == Counter(range(FILES * ROWS))
    return f"{ids.total()} rows after two kills of the driver"


CHECKS: tuple[Callable[[JavaLakes, str, Path], str], ...] = (
    types_come_back,
    partitions_and_added_columns_come_back,
    older_versions_come_back,
    files_are_skipped_by_their_statistics,
    keyed_tables_come_back_after_merges_and_upkeep,
    compacted_tables_come_back,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--kills", action="store_true", help="also kill drivers on Spark, and read what they leave")
    options = parser.parse_args()
    checks = (*CHECKS, killed_queries_leave_every_row_once) if options.kills else CHECKS
    with tempfile.TemporaryDirectory(prefix="penstock-interop-") as root, JavaLakes() as java:
        for kind in options.kinds.split(","):
            for number, check in enumerate(checks):
                told = check(java, kind, Path(root, kind, str(number)))
                print(f"{kind}: {check.__name__.replace('_', ' ')}: {told}", flush=True)


if __name__ == "__main__":
    main()
