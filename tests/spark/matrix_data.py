"""Input of the rescale matrix, and the oracle: what must be in the tables, computed from the input alone."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.support.spark_streams import write_files

RECORD = "source string, number bigint, key bigint, ts timestamp, pad binary"
RECORD_ARROW = pa.schema(
    [
        ("source", pa.string()),
        ("number", pa.int64()),
        ("key", pa.int64()),
        ("ts", pa.timestamp("us", "UTC")),
        ("pad", pa.binary()),
    ]
)
START_US = 1_700_000_000_000_000
SECOND_US = 1_000_000
WINDOW_US = 10 * SECOND_US
DISORDER_US = 5 * SECOND_US
KEYS = 23
FLUSH_NUMBER = -1
"""A last record per source, far in the future: it closes every window before it."""


@dataclass(frozen=True, slots=True)
class Input:
    """What each source delivers, file by file."""

    files: dict[str, list[pa.Table]]

    def write(self, folder: Path) -> None:
        for source, tables in self.files.items():
            write_files(folder / source, tables)

    def batches(self, checkpoint: Path) -> dict[tuple[str, int], int]:
        """The micro-batch in which each record came: by source and number.

        One file each, as asked for; but a query that fails between two steps of Spark's file source finds two files in
        its next micro-batch, and in what order Spark reads these is Spark's affair.
        """
        file_batches = batches_of_files(checkpoint / "source")
        return {
            (source, number): file_batches[source, index]
            for source, tables in self.files.items()
            for index, table in enumerate(tables)
            for number in table["number"].to_pylist()
        }

    def file_of(self) -> dict[tuple[str, int], int]:
        return {
            (source, number): index
            for source, tables in self.files.items()
            for index, table in enumerate(tables)
            for number in table["number"].to_pylist()
        }

    def rows(self) -> list[dict[str, Any]]:
        tables = [table.drop_columns(["pad"]) for tables in self.files.values() for table in tables]
        return pa.concat_tables(tables).to_pylist()


def batches_of_files(source: Path) -> dict[tuple[str, int], int]:
    """From Spark's logs: the micro-batch of each file, by the name of its folder and its number."""
    batches: dict[tuple[str, int], int] = {}
    offsets = {int(path.name): _offsets_by_source(path) for path in (source / "offsets").glob("[0-9]*")}
    for log in (source / "sources").iterdir():
        ends = sorted((_log_offset(of_source.get(log.name, "-")), batch) for batch, of_source in offsets.items())
        for entry in log.glob("[0-9]*"):
            for line in entry.read_text().splitlines()[1:]:
                logged = json.loads(line)
                path = Path(logged["path"])
                batch = next(batch for end, batch in ends if end >= logged["batchId"])
                batches[path.parent.name, int(path.stem)] = batch
    return batches


def _offsets_by_source(entry: Path) -> dict[str, str]:
    """Version 2 of Spark's log has names of sources, version 1 their places."""
    version, _, *lines = entry.read_text().splitlines()
    if version == "v1":
        return {str(place): line for place, line in enumerate(lines)}
    named = (line.partition(":") for line in lines)
    return {name: offset for name, _, offset in named}


def _log_offset(line: str) -> int:
    return -1 if line == "-" else int(json.loads(line)["logOffset"])


def make_input(sources: Sequence[str], rows: int, seed: int, pads: Sequence[int] = (0,), files: int = 3) -> Input:
    """`rows` records per source, event times ascending with disorder below the watermark's delay, some keys hot."""
    chance = random.Random(seed)
    made: dict[str, list[pa.Table]] = {}
    for source in sources:
        numbers = list(range(rows))
        keys = [0 if chance.random() < 0.3 else chance.randrange(KEYS) for _ in numbers]
        times = [START_US + n * SECOND_US // 4 + chance.randrange(DISORDER_US) for n in numbers]
        pad = [chance.randbytes(chance.choice(pads)) for _ in numbers]
        table = _table(source, numbers, keys, times, pad)
        step = -(-rows // files)
        flush = _table(source, [FLUSH_NUMBER], [0], [START_US + 10**12], [b""])
        made[source] = [*(table.slice(start, step) for start in range(0, rows, step)), flush]
    return Input(made)


def _table(source: str, numbers: list[int], keys: list[int], times: list[int], pad: list[bytes]) -> pa.Table:
    columns = [[source] * len(numbers), numbers, keys, pa.array(times).cast(pa.timestamp("us", "UTC")), pad]
    return pa.table(columns, schema=RECORD_ARROW)


def micros_of(time: datetime) -> int:
    return int(time.timestamp() * 1e6 + 0.5)


@dataclass(slots=True)
class Faults:
    """What must all be 0."""

    lost: int = 0
    duplicated: int = 0
    disordered: int = 0
    misplaced: int = 0
    """Records that did not meet their key's state."""
    wrong: int = 0
    """Windows, or facts about broadcast rows, that are not what the input says."""
    seen: list[str] = field(default_factory=list, metadata={"text": True})
    """Some of what was found, for people."""

    def any(self) -> bool:
        return any(getattr(self, name) for name in self._counts())

    def __str__(self) -> str:
        return ", ".join(f"{name} {getattr(self, name)}" for name in self._counts())

    def _counts(self) -> list[str]:
        return [one.name for one in fields(self) if not one.metadata]

    def compare(self, what: str, want: Counter[Any], have: Counter[Any]) -> None:
        """Counts what is lost and what is there too often."""
        lost, extra = want - have, have - want
        self.lost += lost.total()
        self.duplicated += extra.total()
        if lost:
            self.seen.append(f"{what} lost: {sorted(lost, key=str)[:10]}")
        if extra:
            self.seen.append(f"{what} duplicated: {sorted(extra, key=str)[:10]}")


def check_records(
    faults: Faults,
    found: Iterable[dict[str, Any]],
    expected: Iterable[dict[str, Any]],
    data: Input,
    checkpoint: Path,
    copies: int = 1,
) -> None:
    """Each record `copies` times; per key the state counted without a gap; per key and source in order of arrival."""
    rows = list(found)
    have = Counter((row["source"], row["number"]) for row in rows)
    want = Counter({(row["source"], row["number"]): copies for row in expected})
    faults.compare("records", want, have)
    batch_of, file_of = data.batches(checkpoint), data.file_of()
    by_key: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_key[(row["key"], row.get("port", 0))].append(row)
    for mine in by_key.values():
        mine.sort(key=lambda row: row["seq"])
        if not mine[0]["seq"]:
            continue  # a shape without keys counts nothing and has no order
        faults.misplaced += sum(row["seq"] != place for place, row in enumerate(mine, 1))
        newest: dict[str, int] = {}
        last: dict[tuple[str, int], int] = {}
        for row in mine:
            source, number = row["source"], row["number"]
            place = (source, file_of[source, number])
            batch = batch_of[source, number]
            faults.disordered += batch < newest.get(source, -1) or number < last.get(place, -2)
            newest[source], last[place] = max(batch, newest.get(source, -1)), number


def check_windows(faults: Faults, found: Iterable[dict[str, Any]], expected: Iterable[dict[str, Any]]) -> None:
    """Each closed window once, with the right count; the flush records' own window stays open."""
    want: Counter[tuple[int, int]] = Counter()
    for row in expected:
        if row["number"] != FLUSH_NUMBER:
            want[(row["key"], micros_of(row["ts"]) // WINDOW_US * WINDOW_US)] += 1
    have = [(row["key"], micros_of(row["window_start"]), row["n"]) for row in found]
    faults.duplicated += len(have) - len({(key, start) for key, start, _ in have})
    lost = want - Counter({(key, start): n for key, start, n in have})
    wrong = [(key, start, n) for key, start, n in have if want.get((key, start)) != n]
    faults.lost += lost.total()
    faults.wrong += len(wrong)
    if lost or wrong:
        faults.seen.append(f"windows lost: {list(lost.items())[:10]}, wrong: {wrong[:10]}")
