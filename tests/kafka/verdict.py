"""What the tables of a job have to hold, from the log of its topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import PenstockError
from penstock.sinks.paimon.read import newest_snapshot, read_table
from tests.kafka.job import WINDOW_MS
from tests.kafka.topic import CLOSER, Logged


@dataclass(frozen=True, slots=True)
class Verdict:
    """Records of the log, and how the tables differ from it."""

    records: int
    missing: int
    doubled: int
    foreign: int
    misnumbered: int
    windows_wrong: int
    late: int

    @property
    def exact(self) -> bool:
        return not (self.missing or self.doubled or self.foreign or self.misnumbered or self.windows_wrong)

    def __str__(self) -> str:
        return (
            f"{self.records:,} records, {self.missing} missing, {self.doubled} doubled, {self.foreign} foreign,"
            f" {self.misnumbered} users out of order, {self.windows_wrong} windows wrong, {self.late} late"
        )


def judged(folder: Path, log: Iterable[Logged]) -> Verdict:
    """Windows are compared where no row was late."""
    records = [record for record in log if record.user < CLOSER]
    rows = [row for row in _rows(folder, "shop.rows") if row["user"] < CLOSER]
    found = Counter((row["partition"], row["offset"], row["user"], row["number"]) for row in rows)
    expected = Counter((record.partition, record.offset, record.user, record.number) for record in records)
    late = len(_rows(folder, "shop.late"))
    return Verdict(
        records=len(records),
        missing=len(set(expected) - set(found)),
        doubled=sum(found.values()) - len(found),
        foreign=len(set(found) - set(expected)),
        misnumbered=_misnumbered(rows),
        windows_wrong=0 if late else _windows_wrong(folder, records),
        late=late,
    )


def _misnumbered(rows: list[dict]) -> int:
    """Users whose rows are not numbered 1, 2, 3 …, or not in the order of their partition."""
    by_user: dict[int, list[dict]] = {}
    for row in rows:
        by_user.setdefault(row["user"], []).append(row)
    return sum(not _in_order(mine) for mine in by_user.values())


def _in_order(rows: list[dict]) -> bool:
    rows = sorted(rows, key=lambda row: row["nth"])
    if [row["nth"] for row in rows] != list(range(1, len(rows) + 1)):
        return False
    last: dict[int, int] = {}
    for row in rows:
        if row["offset"] <= last.get(row["partition"], -1):
            return False
        last[row["partition"]] = row["offset"]
    return True


def _windows_wrong(folder: Path, records: list[Logged]) -> int:
    counts: Counter[tuple[int, int]] = Counter()
    totals: Counter[tuple[int, int]] = Counter()
    for record in records:
        window = (record.user, record.at_ms // WINDOW_MS * WINDOW_MS)
        counts[window] += 1
        totals[window] += record.number
    expected = Counter((window, counts[window], totals[window]) for window in counts)
    rows = [row for row in _rows(folder, "shop.windows") if row["user"] < CLOSER]
    found = Counter(
        ((row["user"], int(row["window_start"].timestamp() * 1000)), row["n"], row["total"]) for row in rows
    )
    return sum(((expected - found) + (found - expected)).values())


def _rows(folder: Path, table: str) -> list[dict]:
    lake = str(folder / "lake")
    try:
        return read_table(lake, table, newest_snapshot(lake, table)).to_pylist()
    except PenstockError:  # no row was ever late
        return []
