"""Input of the rescale matrix, and the oracle: what must be in the tables, computed from the input alone."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.spark.streams import write_files

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

    def rows(self) -> list[dict[str, Any]]:
        tables = [table.drop_columns(["pad"]) for tables in self.files.values() for table in tables]
        return pa.concat_tables(tables).to_pylist()


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

    def any(self) -> bool:
        return any(getattr(self, field.name) for field in fields(self))

    def __str__(self) -> str:
        return ", ".join(f"{field.name} {getattr(self, field.name)}" for field in fields(self))


def check_records(
    faults: Faults, found: Iterable[dict[str, Any]], expected: Iterable[dict[str, Any]], copies: int = 1
) -> None:
    """Each record `copies` times; per key the state counted without a gap; per key and source numbers ascend."""
    rows = list(found)
    have = Counter((row["source"], row["number"]) for row in rows)
    want = Counter({(row["source"], row["number"]): copies for row in expected})
    faults.lost += sum((want - have).values())
    faults.duplicated += sum((have - want).values())
    by_key: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_key[(row["key"], row.get("port", 0))].append(row)
    for mine in by_key.values():
        mine.sort(key=lambda row: row["seq"])
        if any(row["seq"] for row in mine):
            faults.misplaced += sum(row["seq"] != place for place, row in enumerate(mine, 1))
        last: dict[Any, int] = {}
        for row in mine if mine[0]["seq"] else ():
            number = row["number"] if row["number"] != FLUSH_NUMBER else 1 << 60
            faults.disordered += number < last.get(row["source"], -1)
            last[row["source"]] = number


def check_windows(faults: Faults, found: Iterable[dict[str, Any]], expected: Iterable[dict[str, Any]]) -> None:
    """Each closed window once, with the right count; the flush records' own window stays open."""
    want: Counter[tuple[int, int]] = Counter()
    for row in expected:
        if row["number"] != FLUSH_NUMBER:
            micros = int(row["ts"].timestamp() * 1e6 + 0.5)
            want[(row["key"], micros // WINDOW_US * WINDOW_US)] += 1
    have = [(row["key"], int(row["window_start"].timestamp() * 1e6 + 0.5), row["n"]) for row in found]
    faults.duplicated += len(have) - len({(key, start) for key, start, _ in have})
    faults.lost += sum((want - Counter({(key, start): n for key, start, n in have})).values())
    faults.wrong += sum(want.get((key, start)) != n for key, start, n in have)
