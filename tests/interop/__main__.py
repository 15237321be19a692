"""``make interop``: tables that Penstock wrote, read and compacted by Java Paimon.

Rows, types, statistics, time travel, after kills and upkeep; then Java compacts, expires, tags and rolls back, and
Penstock goes on.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from penstock.sinks.paimon.read import listed_files, read_table
from penstock.sinks.paimon.sink import Paimon
from penstock.sinks.paimon.upkeep.keeper import PaimonKeeper
from penstock.sinks.upkeep import Upkeep
from tests.interop.java import JavaPaimon
from tests.support.tables import commit, context

USER = "penstock-interop"
KEEP = Upkeep(manifests=5, small_files=2, expire=False)
KEYED = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("word", pa.string()), ("op", pa.string())])
_NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
ENGINES: dict[str, dict[str, Any]] = {
    "deduplicate": {"row_kind": "op"},
    "partial": {"merge_engine": "partial-update"},
    "aggregation": {"merge_engine": "aggregation", "options": {"fields.n.aggregate-function": "sum"}},
    "first": {"merge_engine": "first-row"},
}


class Story:
    """One table and its epochs."""

    def __init__(self, warehouse: str, name: str, schema: pa.Schema, **arguments: Any) -> None:
        self.name, self.schema = f"db.{name}", schema
        self.sink = Paimon(warehouse, self.name, **arguments)
        self.sink.check(schema)
        self.open()

    def open(self) -> None:
        """As a query that starts again."""
        self.committer = self.sink.open_committer(USER)
        found = self.committer.commits(None, 1).commits
        self.checkpoint = int(found[-1].checkpoint) if found else 0

    def commit(self, batch: pa.RecordBatch) -> None:
        self.checkpoint += 1
        writer = self.sink.open_writer(context(self.checkpoint), self.schema)
        writer.write(batch)
        commit(self.committer, self.checkpoint, writer.prepare())

    def upkeep(self, policy: Upkeep = KEEP) -> None:
        # Two hours later: until an hour has passed since Java compacted the table, that is left to Java.
        keeper = PaimonKeeper(self.sink.warehouse, self.name, policy, own_user=USER, clock=lambda: time.time() + 7200)
        while (report := keeper.step()).more:
            pass
        assert not report.failures, report.failures

    def texts(self, snapshot: int | None = None) -> list[tuple[str | None, ...]]:
        rows = read_table(self.sink.warehouse, self.name, snapshot).to_pylist()
        return sorted((tuple(None if v is None else str(v) for v in row.values()) for row in rows), key=str)


def keyed_batch(dice: random.Random, deletes: bool) -> pa.RecordBatch:
    ids = [dice.randrange(300) for _ in range(200)]
    numbers = [dice.choice([None, dice.randrange(100)]) for _ in ids]
    words = [dice.choice([None, f"wörd {dice.randrange(50)}"]) for _ in ids]
    kinds = [dice.choice(["+I", "+U", "-D"]) if deletes else "+I" for _ in ids]
    return pa.record_batch([ids, numbers, words, kinds], schema=KEYED)


def every_merge_engine_is_merged_by_both_in_turn(java: JavaPaimon, warehouse: str) -> str:
    """Penstock merges runs, Java reads; Java compacts what we merged, Penstock reads and merges again."""
    dice = random.Random(1)
    rows = 0
    for name, arguments in ENGINES.items():
        story = Story(warehouse, name, KEYED, primary_key=["id"], buckets=2, **arguments)
        for turn in range(3):
            for _ in range(7):
                story.commit(keyed_batch(dice, name == "deduplicate"))
            story.upkeep()
            assert java.rows(story.name) == story.texts(), (name, turn, "merged by Penstock")
            story.commit(keyed_batch(dice, name == "deduplicate"))
            if name != "first":
                assert java.rows(story.name) == story.texts(), (name, turn, "not merged")
            java.ask(f"compact {story.name}")
            assert java.rows(story.name) == story.texts(), (name, turn, "merged by Java")
            rows = max(rows, len(story.texts()))
    return f"{len(ENGINES)} merge engines, 3 turns each, up to {rows} rows"


def rows_of_older_snapshots_stay(java: JavaPaimon, warehouse: str) -> str:
    dice = random.Random(2)
    story = Story(warehouse, "travel", KEYED, primary_key=["id"], buckets=1, row_kind="op")
    for _ in range(8):
        story.commit(keyed_batch(dice, deletes=True))
    before = {number: story.texts(number) for number in range(1, 9)}
    story.upkeep()
    for number, rows in before.items():
        assert java.rows(story.name, **{"scan.snapshot-id": str(number)}) == rows, number
    return f"{len(before)} snapshots"


def java_skips_files_by_statistics(java: JavaPaimon, warehouse: str) -> str:
    """A predicate on a clustered column, in tables with and without a key, before and after compaction."""
    schema = pa.schema([("at", pa.int64()), ("name", pa.string()), ("f", pa.float64())])
    told = []
    plain = Story(warehouse, "clustered", schema, options={"target-file-size": "40 kb"})
    for part in range(60):
        at = list(range(part * 1000, part * 1000 + 1000))
        names = [f"a name with a long common beginning {i:09d}" for i in at]
        plain.commit(pa.record_batch([at, names, [float(i) for i in at]], schema=schema))
    for moment in ("before", "after"):
        for column, low, high in (("at", 20_100, 20_900), ("f", 20_100.0, 20_900.0)):
            read, of = java.files(plain.name, column, low, high)
            assert read <= max(1, of // 10), (moment, column, read, of)
            told.append(f"{column} {moment} upkeep {read} of {of}")
        assert java.number(f"count {plain.name} at = 20500") == 1
        assert java.number(f"count {plain.name} f = 20500.0") == 1
        if moment == "before":
            plain.upkeep(replace(KEEP, small_files=3))
    assert len(java.rows(plain.name)) == 60_000
    keyed = Story(
        warehouse, "keyed_clustered", schema, primary_key=["at"], buckets=1, options={"target-file-size": "20 kb"}
    )
    for part in range(8):
        at = list(range(part, 40_000, 8))
        keyed.commit(pa.record_batch([at, [f"{i}" for i in at], [float(i) for i in at]], schema=schema))
    keyed.upkeep()
    read, of = java.files(keyed.name, "f", 20_100.0, 20_200.0)
    assert read <= max(1, of // 10), (read, of)
    told.append(f"merged runs {read} of {of}")
    return ", ".join(told)


def java_finds_nan(java: JavaPaimon, warehouse: str) -> str:
    """Java takes NaN for the largest number. A file with NaN must not be skipped for a bound that leaves it out."""
    schema = pa.schema([("id", pa.int64()), ("f", pa.float64()), ("g", pa.float32())])
    for name, arguments in {"nan": {}, "nan_keyed": {"primary_key": ["id"], "buckets": 1}}.items():
        story = Story(warehouse, name, schema, **arguments)
        for part in range(6):
            values = [float(part), float("nan") if part % 2 else 0.5]
            story.commit(pa.record_batch([[2 * part, 2 * part + 1], values, values], schema=schema))
        for _ in range(2):
            for column in ("f", "g"):
                assert java.number(f"count {story.name} {column} > Infinity") == 3, column
                assert java.number(f"count {story.name} {column} < 1.0") == 4, column
            story.upkeep()
    return "f > Infinity finds the 3 NaN rows, before and after upkeep"


def types_read_back(java: JavaPaimon, warehouse: str) -> str:
    schema = pa.schema(
        [
            ("id", pa.int64()), ("small", pa.int16()), ("flag", pa.bool_()), ("money", pa.decimal128(12, 2)),
            ("day", pa.date32()), ("at", pa.timestamp("us")), ("zoned", pa.timestamp("us", tz="UTC")),
            ("raw", pa.binary()), ("f", pa.float64()), ("text", pa.string()),
        ]
    )  # fmt: skip
    columns: dict[str, Callable[[int], Any]] = {
        "id": lambda i: i, "small": lambda i: i - 50, "flag": lambda i: i % 2 == 0,
        "money": lambda i: Decimal(i) / 4 + Decimal("0.10"), "day": lambda i: date(1969, 12, 1) + timedelta(days=i),
        "at": lambda i: (_NEW_YEAR + timedelta(seconds=i, microseconds=7)).replace(tzinfo=None),
        "zoned": lambda _: _NEW_YEAR,
        "raw": lambda i: bytes([i, 255 - i]), "f": lambda i: i / 8, "text": lambda i: f"ü{i}" * 9,
    }  # fmt: skip
    made: dict[str, list[Any]] = {
        name: [None if i == 7 else make(i) for i in range(100)] for name, make in columns.items()
    }
    made["id"][7] = 7
    found = {}
    for name, arguments in {"types": {}, "types_keyed": {"primary_key": ["id"], "buckets": 1}}.items():
        story = Story(warehouse, name, schema, **arguments)
        for part in range(4):
            rows = {key: values[part * 25 : part * 25 + 25] for key, values in made.items()}
            story.commit(pa.RecordBatch.from_pydict(rows, schema=schema))
        before = java.rows(story.name)
        story.upkeep()
        assert java.rows(story.name) == before
        found[name] = before
    assert found["types"] == found["types_keyed"]
    for row in found["types"]:
        i = int(str(row[0]))
        if i == 7:
            assert set(row[1:]) == {None}
            continue
        assert row[1:3] == (str(i - 50), "true" if i % 2 == 0 else "false")
        assert Decimal(str(row[3])) == made["money"][i].quantize(Decimal("0.01"))
        assert int(str(row[4])) == (made["day"][i] - date(1970, 1, 1)).days
        assert str(row[5]) == made["at"][i].isoformat()
        assert (row[7], float(str(row[8])), row[9]) == (made["raw"][i].hex(), i / 8, made["text"][i])
    return f"{len(schema)} types, {len(found['types'])} rows"


def rows_survive_kills(java: JavaPaimon, warehouse: str) -> str:
    """A process that commits and keeps the table is killed at any moment, ten times; nothing is lost or doubled."""
    dice = random.Random(3)
    story = Story(warehouse, "killed", KEYED, primary_key=["id"], buckets=2)
    for _ in range(10):
        command = [sys.executable, "-m", "tests.interop", "--commit", warehouse]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(dice.uniform(0.05, 2.0))  # the moment of the kill is what is tried out
            process.send_signal(signal.SIGKILL)
        story.open()
    found = java.rows(story.name)
    assert found == story.texts()
    assert {row[0] for row in found} == {str(i) for i in range(50)}
    assert {row[1] for row in found} == {str(story.checkpoint)}, "each commit replaces all rows"
    java.ask(f"compact {story.name}")
    assert java.rows(story.name) == found
    return f"10 kills, {story.checkpoint} commits, {len(listed_files(warehouse, story.name))} files"


def commit_for_ever(warehouse: str) -> None:
    story = Story(warehouse, "killed", KEYED, primary_key=["id"], buckets=2)
    while True:
        number = story.checkpoint + 1
        story.commit(pa.record_batch([list(range(50)), [number] * 50, ["w"] * 50, ["+I"] * 50], schema=KEYED))
        print(number, flush=True)
        if number % 3 == 0:
            story.upkeep(Upkeep(manifests=5, small_files=2, snapshots=5, snapshots_for=0.0))


def penstock_goes_on_beside_java(java: JavaPaimon, warehouse: str) -> str:
    """Tags, branches, expiry and compaction of Java's do not stop commits; a rollback is refused with a way out."""
    dice = random.Random(4)
    story = Story(warehouse, "beside", KEYED, primary_key=["id"], buckets=2, row_kind="op")
    for _ in range(6):
        story.commit(keyed_batch(dice, deletes=True))
    java.ask(f"tag {story.name} kept 3")
    tagged = story.texts(3)
    java.ask(f"branch {story.name} side")
    java.ask(f"compact {story.name}")
    java.ask(f"expire {story.name} 2")
    for _ in range(6):
        story.commit(keyed_batch(dice, deletes=True))
    story.upkeep(Upkeep(manifests=2, small_files=2, snapshots=1, snapshots_for=0.0))
    assert java.rows(story.name) == story.texts()
    assert java.rows(story.name, **{"scan.tag-name": "kept"}) == tagged
    story.open()
    story.commit(keyed_batch(dice, deletes=True))
    assert java.rows(story.name) == story.texts()
    return "tag, branch, compaction, expiry"


def reading_does_not_get_dearer_for_java_with_commits(java: JavaPaimon, warehouse: str) -> str:
    """100,000 keys in 4 buckets. Reads are timed right before upkeep looks, when there is most to merge."""
    dice = random.Random(5)
    schema = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("word", pa.string())])
    story = Story(warehouse, "timed", schema, primary_key=["id"], buckets=4)

    def put(ids: list[int]) -> None:
        story.commit(pa.record_batch([ids, [story.checkpoint] * len(ids), [f"word {i}" for i in ids]], schema=schema))

    put(list(range(100_000)))
    seen = []
    for _ in range(8):
        for _ in range(10):
            put(dice.sample(range(100_000), 2_000))
        seen.append(java.number(f"time {story.name}"))
        story.upkeep()
    java.ask(f"compact {story.name}")
    fresh = java.number(f"time {story.name}")
    ratio = max(seen) / fresh
    told = f"{[round(ms) for ms in seen]} ms of CPU, freshly compacted {fresh:.0f} ms: up to {ratio:.1f} times"
    assert max(seen[4:]) <= 2 * max(seen[:4]), told
    return told


CHECKS = (
    every_merge_engine_is_merged_by_both_in_turn,
    rows_of_older_snapshots_stay,
    java_skips_files_by_statistics,
    java_finds_nan,
    types_read_back,
    rows_survive_kills,
    penstock_goes_on_beside_java,
    reading_does_not_get_dearer_for_java_with_commits,
)


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--commit"]:
        commit_for_ever(arguments[1])
    wanted = [check for check in CHECKS if not arguments or check.__name__ in arguments]
    failed = 0
    with tempfile.TemporaryDirectory(prefix="penstock-interop-") as warehouse, JavaPaimon(warehouse=warehouse) as java:
        for check in wanted:
            title = check.__name__.replace("_", " ")
            try:
                print(f"ok    {title}: {check(java, warehouse)}", flush=True)
            except AssertionError as error:
                failed += 1
                print(f"FAILED {title}: {str(error)[:2000]}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
