"""What the tables must hold in the end, worked out from the records alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from penstock.testing.simulate.arrivals import DISORDER_S, arrivals
from penstock.testing.simulate.branches.order import in_order
from penstock.testing.simulate.jobs import FILTERED, GAP_S, JOIN_S, SOURCE_IDS, WINDOW_S

if TYPE_CHECKING:
    from penstock.testing.simulate.world import World

ADDED = {"n1", "n2", "rules"}
"""Columns that operators fill in."""

Row = dict[str, Any]
Fail = Callable[[str, str], NoReturn]


def check_results(world: World) -> None:
    """Compares all tables of a world in which everything was read; raises `CheckFailed`."""

    def fail(checker: str, message: str) -> NoReturn:
        world.scheduler.fail(f"{checker}: {message}")

    for branch in world.shape.branches:
        branch.check(world, partial(_fail_of, fail, branch.kind))
    if world.shape.trunk:
        _check_trunk(world, fail)


def _fail_of(fail: Fail, kind: str, checker: str, message: str) -> NoReturn:
    fail(checker, f"{kind}: {message}")


def _check_trunk(world: World, fail: Fail) -> None:
    shape, rows = world.shape, world.tables["records"].rows()
    wanted = [row for row in world.records.rows() if not shape.filter or row["id"] % FILTERED]
    _records(wanted, rows, fail)
    _numbered(world, rows, "key", "n1", fail)
    if shape.two_keyed:
        _numbered(world, rows, "coarse", "n2", fail)
        if not shape.probe:  # it acts on time, so what it hands on is new
            _batch_by_batch(world, rows, "coarse", "n2", fail)
    if shape.rules:
        _rules_grow(rows, fail)
    if shape.totals:
        _totals(wanted, world.tables["totals"].rows(), fail)
    if shape.windows is not None:
        closed = _closed(world, _sessions(wanted) if shape.windows == "session" else _tumbling(wanted))
        _windows(closed, world.tables["windows"].rows(), fail)
    if shape.join is not None:
        _pairs(Counter(_joined(world)), world.tables["pairs"].rows(), fail)


def _records(wanted: list[Row], rows: list[Row], fail: Fail) -> None:
    found = Counter(row["id"] for row in rows)
    twice = sorted(number for number, times in found.items() if times > 1)
    if twice:
        fail("exactly once", f"ids twice: {twice[:10]}")
    sources = {row["id"]: row for row in wanted}
    if found.keys() != sources.keys():
        missing, extra = sorted(sources.keys() - found.keys())[:10], sorted(found.keys() - sources.keys())[:10]
        fail("exactly once", f"{len(found)} of {len(wanted)} rows; missing {missing}, too many {extra}")
    for row in rows:
        source = sources[row["id"]]
        if any(row[column] != source[column] for column in source.keys() - ADDED):
            fail("exactly once", f"id {row['id']} was changed")


def _numbered(world: World, rows: list[Row], key: str, number: str, fail: Fail) -> None:
    """Each key's numbers are 1 to n, and ascend with the order in which its source delivered the records."""
    by_key: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        by_key[row[key]].append(row)
    for value, mine in by_key.items():
        if sorted(row[number] for row in mine) != list(range(1, len(mine) + 1)):
            fail("state", f"{key} {value}: numbers {sorted(row[number] for row in mine)}")
    numbers = {row["id"]: row[number] for row in rows}
    for source in range(world.shape.sources):
        in_order([arrival for arrival in arrivals(world, source) if arrival.id in numbers], numbers, fail)


def _batch_by_batch(world: World, rows: list[Row], key: str, number: str, fail: Fail) -> None:
    """No row was overtaken by one of its key from a later micro-batch of its source."""
    newest: dict[tuple[int, int], int] = {}
    for row in sorted(rows, key=lambda row: (row[key], row[number])):
        source, place = divmod(row["id"] - 1, SOURCE_IDS)
        batch = next(
            batch for batch, ends in world.source.offsets.items() if ends[source][0] <= place < ends[source][1]
        )
        if batch < newest.get((source, row[key]), -1):
            fail("order", f"{key} {row[key]}: id {row['id']} of micro-batch {batch} came after a later one's")
        newest[source, row[key]] = batch


def _rules_grow(rows: list[Row], fail: Fail) -> None:
    """Broadcast state and the position in its input move together: a key never sees fewer than before."""
    seen: dict[tuple[int, int], int] = {}
    for row in rows:
        key = (row["id"] // SOURCE_IDS, row["key"])
        if row["rules"] < seen.get(key, 0):
            fail("broadcast", f"key {key} saw {seen[key]} broadcast rows, then {row['rules']}")
        seen[key] = row["rules"]


def _totals(wanted: list[Row], rows: list[Row], fail: Fail) -> None:
    ids: dict[int, list[int]] = defaultdict(list)
    for row in wanted:
        ids[row["coarse"]].append(row["id"])
    newest: dict[int, Row] = {}
    for row in rows:
        before = newest.get(row["coarse"])
        if before is not None and before["n"] >= row["n"]:
            fail("state", f"totals of {row['coarse']} go from {before['n']} to {row['n']}")
        newest[row["coarse"]] = row
    found = {key: (row["n"], row["total"]) for key, row in newest.items()}
    if found != {key: (len(mine), sum(mine)) for key, mine in ids.items()}:
        fail("exactly once", f"totals are {found}")


# -- event time -------------------------------------------------------------------------------------------------------

Window = tuple[int, datetime, datetime]
"""Key, start, end."""
Windows = Iterator[tuple[Window, list[int]]]


def _tumbling(wanted: list[Row]) -> Windows:
    size, epoch = timedelta(seconds=WINDOW_S), datetime(1970, 1, 1)  # noqa: DTZ001 - as the column is
    found: dict[Window, list[int]] = defaultdict(list)
    for row in wanted:
        start = epoch + (row["ts"] - epoch) // size * size
        found[row["key"], start, start + size].append(row["id"])
    yield from found.items()


def _sessions(wanted: list[Row]) -> Windows:
    gap, begun = timedelta(seconds=GAP_S), dict[int, list[Row]]()
    for row in sorted(wanted, key=lambda row: row["ts"]):
        mine = begun.setdefault(row["key"], [])
        if mine and row["ts"] - mine[-1]["ts"] > gap:
            yield _session(mine, gap)
            mine.clear()
        mine.append(row)
    for mine in begun.values():
        yield _session(mine, gap)


def _session(rows: list[Row], gap: timedelta) -> tuple[Window, list[int]]:
    return (rows[0]["key"], rows[0]["ts"], rows[-1]["ts"] + gap), [row["id"] for row in rows]


def _by_source(world: World) -> list[list[Row]]:
    found: dict[int, list[Row]] = defaultdict(list)
    for row in world.records.rows():
        found[row["id"] // SOURCE_IDS].append(row)
    return [found[source] for source in sorted(found)]


def _last_watermark(sources: list[list[Row]]) -> datetime:
    return min(max(row["ts"] for row in rows) for rows in sources) - timedelta(seconds=DISORDER_S)


def _closed(world: World, windows: Windows) -> dict[Window, tuple[int, int]]:
    """Those that the last watermark has reached, with count and sum of ids; records that are filtered out count for
    the watermark, too."""
    watermark = _last_watermark(_by_source(world))
    return {window: (len(ids), sum(ids)) for window, ids in windows if window[2] <= watermark}


def _windows(wanted: dict[Window, tuple[int, int]], rows: list[Row], fail: Fail) -> None:
    found = {(row["key"], row["window_start"], row["window_end"]): (row["n"], row["total"]) for row in rows}
    if len(found) != len(rows):
        fail("exactly once", f"{len(rows)} rows for {len(found)} windows")
    for window in wanted.keys() | found.keys():
        if found.get(window) != wanted.get(window):
            fail("windows", f"{window} is {found.get(window)}, must be {wanted.get(window)}")


Pair = tuple[int | None, int | None]
"""Ids of the left and of the right record."""


def _joined(world: World) -> Iterator[Pair]:
    left, right = sources = _by_source(world)
    last, (lower, upper) = _last_watermark(sources), (timedelta(seconds=bound) for bound in JOIN_S)
    matched = [
        (a["id"], b["id"]) for a in left for b in right if a["key"] == b["key"] and lower <= b["ts"] - a["ts"] <= upper
    ]
    yield from matched
    lefts, rights = {a for a, _ in matched}, {b for _, b in matched}
    how = world.shape.join
    if how in {"left", "full"}:
        yield from ((a["id"], None) for a in left if a["id"] not in lefts and a["ts"] + upper < last)
    if how in {"right", "full"}:
        yield from ((None, b["id"]) for b in right if b["id"] not in rights and b["ts"] - lower < last)


def _pairs(wanted: Counter[Pair], rows: list[Row], fail: Fail) -> None:
    found = Counter((row["id"], row["id_right"]) for row in rows)
    if found != wanted:
        fail("join", f"missing {sorted(wanted - found, key=str)[:5]}, too many {sorted(found - wanted, key=str)[:5]}")
