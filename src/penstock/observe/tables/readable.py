"""State as people read it: results instead of sums and counts, one row per session and per place of a list, moments
instead of microseconds. What cannot be decoded without the user's code stays as it is stored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.errors import CorruptFile
from penstock.observe.tables.shapes import StoredTable
from penstock.observe.tables.types import parse_type
from penstock.operators.aggregate.accumulators import MeanValue
from penstock.operators.aggregate.collecting import ApproximateDistinct
from penstock.operators.aggregate.spread import Spread
from penstock.operators.window.windows import RegularWindow

MOMENT = pa.timestamp("us", "UTC")
_RSD = re.compile(r"rsd=(0\.\d{1,17})")
_SPREADS = {"variance": (True, False), "var_pop": (False, False), "stddev": (True, True), "stddev_pop": (False, True)}
_SUFFIXES = {
    "mean": ("sum", "count"),
    "count_distinct": ("values",),
    "approx_count_distinct": ("hashes",),
    **dict.fromkeys(_SPREADS, ("count", "mean", "squares")),
}
"""State columns of the aggregates that can be read without the user's code; others are named after their output."""
_RSD_MIN = 1e-6
_LENGTHS = re.compile(r"(?P<name>tumbling|sliding)_window/(\d{1,18})/(\d{1,18})/(-?\d{1,18})(?:/.*)?", re.DOTALL)
_EXPIRES = "__expires"


class Column(NamedTuple):
    """A column on its way; `ours`: its name is not the user's, and may have to give way."""

    name: str
    values: pa.Array
    ours: bool = False


class Rows(NamedTuple):
    """Columns of equal length; `parents` has the stored row of each, None where they are the same."""

    columns: list[Column]
    parents: pa.Array | None = None


def readable(table: StoredTable, stored: Sequence[pa.Array], now: int) -> Rows:
    """Stored columns, keys first, as people read them. `now` is the processing time of the checkpoint.

    Raises: `CorruptFile` for values that no operator has written.
    """
    names = [field.name for field in (*table.schema.keys, *table.schema.values)]
    columns = [Column(name, values) for name, values in zip(names, stored, strict=True)]
    count = len(table.schema.keys)
    try:
        return _decoded(table, columns[:count], columns[count:], now)
    except (pa.ArrowException, IndexError, OverflowError) as error:
        raise CorruptFile(
            f"state {table.operator} {table.part!r} holds what its operator does not write: {error}",
            cause="the folder was forged, or written by another version of Penstock",
            next_step="read it as it is stored, with raw=True",
        ) from error


def _decoded(  # noqa: PLR0911 - one for each kind of table
    table: StoredTable, keys: list[Column], values: list[Column], now: int
) -> Rows:
    family, part = table.family, table.part
    match family, part:
        case "join", "left" | "right":
            return Rows(_join_side(keys, values))
        case "join", _:
            moments = [Column("deadline", _moments(keys[0].values)), Column("event_time", _moments(keys[2].values))]
            return Rows([*keys[3:], *moments])
        case "deduplicate", _:
            return Rows([*keys, Column("until", _until(values[0].values, table.shape.kind))])
        case "process" | "connect", "timers":
            return Rows(_timers(keys, values))
        case "process" | "connect", "event_timers" | "processing_timers":
            return Rows([*keys[2:], Column("timer", keys[1].values), Column("due", _moments(keys[0].values))])
        case "process" | "connect" | "batch_process", "":
            return _living(keys, values, now)
        case "tumbling_window" | "sliding_window", "":
            bounds = _bounds(table, keys[-1].values)
            return _unpacked(table, [*keys[:-1], *bounds], values, None)
        case "session_window", "":
            return _sessions(table, keys, values)
        case "session_window", "timers":
            return Rows([*keys[:-1], Column("due", _moments(values[0].values))])
        case _, "":
            return _unpacked(table, keys, values, None)
    return Rows([*keys, *values])


# -- moments and bounds ------------------------------------------------------------------------------------------------


def _moments(micros: pa.Array) -> pa.Array:
    return micros.cast(pa.int64()).view(MOMENT)


def _bounds(table: StoredTable, panes: pa.Array) -> list[Column]:
    """A tumbling window is one pane; a sliding one has several, and a row of state is of one of them."""
    match = _LENGTHS.fullmatch(table.shape.kind)
    if match is None:
        return [Column("__pane", panes)]
    size, every, offset = (int(number) for number in match.group(2, 3, 4))
    if not 0 < every <= size:
        return [Column("__pane", panes)]
    window = RegularWindow(size, every, offset)
    kind = _output_type(table, "window_start", MOMENT)
    begin = window.pane_start(panes.cast(pa.int64()).to_numpy(zero_copy_only=False))
    end = begin + window.pane
    what = "window" if match["name"] == "tumbling" else "pane"
    return [Column(f"{what}_{at}", pa.array(times).view(kind)) for at, times in (("start", begin), ("end", end))]


def _output_type(table: StoredTable, name: str, default: pa.DataType) -> pa.DataType:
    text = dict(table.shape.output).get(name)
    kind = default if text is None else parse_type(text)
    return kind if pt.is_timestamp(kind) and kind.unit == "us" else default


def _until(values: pa.Array, kind: str) -> pa.Array:
    """Without `within` a key is remembered for good."""
    if kind != "deduplicate/within":
        return pa.nulls(len(values), MOMENT)
    return _moments(values)


# -- what operators keep -----------------------------------------------------------------------------------------------


def _join_side(keys: list[Column], values: list[Column]) -> list[Column]:
    """The row as it came; its key is in it."""
    *_, time, _ = keys
    _, matched, *row = values
    moment = Column("_event_time", _moments(time.values), ours=True)
    return [*row, moment, Column("_matched", matched.values, ours=True)]


def _timers(keys: list[Column], values: list[Column]) -> list[Column]:
    time, event = values
    clock = pc.if_else(event.values, pa.scalar("event"), pa.scalar("processing"))
    *own, name = keys
    return [*own, Column("timer", name.values), Column("due", _moments(time.values)), Column("clock", clock)]


def _living(keys: list[Column], values: list[Column], now: int) -> Rows:
    """Values that have expired are not there, nor are keys of which all have."""
    hidden = {column.name: column.values for column in values if column.name.startswith(_EXPIRES)}
    if _EXPIRES not in hidden:
        return Rows([*keys, *values])
    names = [column.name for column in values if f"{_EXPIRES}_{column.name}" in hidden]
    shown = [column for column in values if column.name not in {_EXPIRES, *(f"{_EXPIRES}_{name}" for name in names)}]
    alive = [Column(column.name, _unless_over(column, hidden, now)) for column in shown]
    if not alive:
        return Rows(keys)
    empty = np.logical_and.reduce([column.values.is_null().to_numpy(zero_copy_only=False) for column in alive])
    expires = Column("_expires", _moments(hidden[_EXPIRES]), ours=True)
    columns = [*keys, *alive, expires]
    if not empty.any():
        return Rows(columns)
    kept = pa.array(np.flatnonzero(~empty))
    return Rows([_take(column, kept) for column in columns], kept)


def _unless_over(column: Column, hidden: dict[str, pa.Array], now: int) -> pa.Array:
    expires = hidden.get(f"{_EXPIRES}_{column.name}")
    if expires is None:
        return column.values
    over = pc.less_equal(expires, pa.scalar(now, pa.int64())).fill_null(False).to_numpy(zero_copy_only=False)
    if not over.any():
        return column.values
    return column.values.take(pa.array(np.arange(len(over)), mask=over))


def _sessions(table: StoredTable, keys: list[Column], values: list[Column]) -> Rows:
    """One row per session; `values` are the pane of the timer, then lists."""
    _, *lists = values
    parents, flat = _exploded([column.values for column in lists])
    owners = [_take(column, parents) for column in keys]
    kind = _output_type(table, "window_start", MOMENT)
    starts, ends, *states = flat
    bounds = [Column("window_start", starts.view(kind)), Column("window_end", ends.view(kind))]
    inside = [Column(column.name, part) for column, part in zip(lists[2:], states, strict=True)]
    return _unpacked(table, [*owners, *bounds], inside, parents)


def _unpacked(table: StoredTable, keys: list[Column], values: list[Column], parents: pa.Array | None) -> Rows:
    """The best rows of a key one below the other; aggregates as results."""
    if "top_n/" in table.shape.kind and len(values) == 1 and pt.is_list(values[0].values.type):
        return _places(keys, values[0].values, parents)
    return Rows([*keys, *_results(table, values)], parents)


def _places(keys: list[Column], lists: pa.Array, parents: pa.Array | None) -> Rows:
    rows, (flat,) = _exploded([lists])
    lengths = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    starts = np.cumsum(lengths) - lengths
    ranks = np.arange(len(flat)) - np.repeat(starts, lengths) + 1
    fields = [Column(flat.type.field(place).name, values) for place, values in enumerate(flat.flatten())]
    own = [_take(column, rows) for column in keys]
    above = rows if parents is None else parents.take(rows)
    return Rows([*own, Column("rank", pa.array(ranks, pa.int32())), *fields], above)


def _exploded(lists: Sequence[pa.Array]) -> tuple[pa.Array, list[pa.Array]]:
    """The row of each item, and the items. Lists of one row must be equally long."""
    lengths = lists[0].value_lengths().fill_null(0)
    for other in lists[1:]:
        if not other.value_lengths().fill_null(0).equals(lengths):
            raise pa.ArrowInvalid("lists of one row are not equally long")
    counts = lengths.to_numpy(zero_copy_only=False)
    return pa.array(np.repeat(np.arange(len(counts)), counts)), [part.flatten() for part in lists]


# -- aggregates --------------------------------------------------------------------------------------------------------


def _results(table: StoredTable, values: list[Column]) -> Iterator[Column]:
    """Results in the order of the output, then what only the user's code understands, under the names of its state."""
    computed = table.shape.computed
    meanings = computed if isinstance(computed, dict) else {}
    states = {column.name: column for column in values}
    for name, kind in table.shape.output:
        if name in states:
            yield states.pop(name)
            continue
        meaning = meanings.get(name, "")
        own = [f"{name}__{suffix}" for suffix in _SUFFIXES.get(meaning.partition("(")[0], ())]
        if own and all(state in states for state in own):
            result = _result(meaning, kind, [states[state].values for state in own])
            if result is not None:
                states = {state: column for state, column in states.items() if state not in own}
                yield Column(name, result)
    yield from states.values()


def _result(meaning: str, kind: str, parts: list[pa.Array]) -> pa.Array | None:
    match function := meaning.partition("(")[0]:
        case "mean":
            return MeanValue("", parts[0].type, parse_type(kind)).result(parts)
        case "count_distinct":
            return parts[0].value_lengths().cast(pa.int64())
        case "approx_count_distinct":
            rsd = _RSD.search(meaning)
            size = 0 if rsd is None or float(rsd[1]) < _RSD_MIN else ApproximateDistinct.size_for(float(rsd[1]))
            return None if size == 0 else ApproximateDistinct("", size).result(parts)
        case _:
            return Spread("", *_SPREADS[function]).result([part.fill_null(0) for part in parts])


def _take(column: Column, rows: pa.Array) -> Column:
    return Column(column.name, column.values.take(rows), column.ours)
