"""Column statistics of a data file: smallest and largest value and number of nulls, by which other engines skip files.

The table says how much of it is kept (``metadata.stats-mode`` and its relatives), with Paimon's own defaults. A bound
that is not certain is left out: a missing bound costs a reader one file, a wrong one costs rows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from pypaimon.manifest.schema.simple_stats import SimpleStats
from pypaimon.table.row.generic_row import GenericRow

from penstock.errors import TableRefused

DEFAULT_MODE = "truncate(16)"
_TRUNCATE = re.compile(r"truncate\((\d+)\)")
_CODE_POINT_MAX = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


@dataclass(frozen=True, slots=True)
class Mode:
    """What is kept of one column. `length` bounds texts and bytes; None keeps them whole."""

    counts: bool = True
    bounds: bool = True
    length: int | None = 16

    @staticmethod
    def parse(text: str) -> Mode:
        """Raises: `TableRefused`."""
        word = text.strip().lower()
        cut = _TRUNCATE.fullmatch(word)
        if cut is not None and int(cut[1]) > 0:
            return Mode(length=int(cut[1]))
        known = {"none": Mode(False, False, None), "counts": Mode(True, False, None), "full": Mode(length=None)}
        if word not in known:
            raise TableRefused(
                f"a table with metadata.stats-mode = {text}",
                cause="Paimon knows none, counts, full and truncate(n)",
                next_step="change the option",
            )
        return known[word]


def modes_of(options: Mapping[str, str], columns: Sequence[str], level: int = 0) -> dict[str, Mode]:
    """The mode of each column, for files of one level.

    Raises: `TableRefused` for a mode that Paimon does not know.

    >>> {name: mode.length for name, mode in modes_of({"fields.b.stats-mode": "full"}, ["a", "b"]).items()}
    {'a': 16, 'b': None}
    """
    by_level = dict(part.split(":", 1) for part in options.get("metadata.stats-mode.per.level", "").split(",") if part)
    general = Mode.parse(by_level.get(str(level), options.get("metadata.stats-mode", DEFAULT_MODE)))
    first = int(options.get("metadata.stats-keep-first-n-columns", -1))
    modes = {}
    for place, name in enumerate(columns):
        own = options.get(f"fields.{name}.stats-mode")
        beyond = first >= 0 and place >= first
        modes[name] = Mode.parse(own) if own is not None else Mode.parse("none") if beyond else general
    return modes


@dataclass(slots=True)
class FileStats:
    """Statistics of one file, gathered while its rows are written."""

    fields: Sequence[Any]
    modes: Mapping[str, Mode]
    dense: bool = True
    _columns: dict[str, _Column] = field(default_factory=dict)

    @staticmethod
    def of(table: Any, options: Mapping[str, str], level: int = 0) -> FileStats:
        fields = table.table_schema.fields
        dense = options.get("metadata.stats-dense-store", "true").lower() != "false"
        return FileStats(fields, modes_of(options, [field.name for field in fields], level), dense)

    @staticmethod
    def of_keys(table: Any) -> FileStats:
        """Of the key columns without those of the partition, which are kept whole."""
        fields = table.trimmed_primary_keys_fields
        return FileStats(fields, {field.name: Mode(length=None) for field in fields}, dense=False)

    def add(self, rows: pa.Table) -> None:
        """Takes rows of the file; each column is looked at by its name in the table."""
        for name, mode in self.modes.items():
            if mode.counts:
                self._columns.setdefault(name, _Column(mode)).add(rows.column(name))

    def result(self) -> tuple[SimpleStats, list[str] | None]:
        """The statistics, and the columns that they are of; None means all."""
        kept = [field for field in self.fields if field.name in self._columns or not self.dense]
        bounds = [self._columns[field.name].bounds() if field.name in self._columns else (None, None) for field in kept]
        nulls = [self._columns[field.name].nulls if field.name in self._columns else None for field in kept]
        stats = SimpleStats(
            GenericRow([low for low, _ in bounds], kept), GenericRow([high for _, high in bounds], kept), nulls
        )
        if not kept:
            return SimpleStats.empty_stats(), []
        return stats, None if len(kept) == len(self.fields) else [field.name for field in kept]


class _Column:
    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._certain = mode.bounds
        self._lows: list[pa.Scalar] = []
        self._highs: list[pa.Scalar] = []
        self.nulls = 0

    def add(self, values: pa.ChunkedArray) -> None:
        self.nulls += values.null_count
        if not self._certain or values.null_count == len(values):
            return
        if not _has_order(values.type) or holds_nan(values):
            self._certain = False
            return
        both = pc.min_max(values)
        self._lows.append(both["min"])
        self._highs.append(both["max"])

    def bounds(self) -> tuple[Any, Any]:
        """Both, or neither."""
        if not self._certain or not self._lows:
            return None, None
        try:
            low = pc.min(pa.array(self._lows)).as_py()
            high = pc.max(pa.array(self._highs)).as_py()
        except (OverflowError, ValueError, UnicodeDecodeError):  # a date or text that Python cannot hold
            return None, None
        low, high = _both_zeros(low, high)
        low, high = _shortened(low, self._mode.length), _raised(high, self._mode.length)
        return (None, None) if low is None or high is None else (low, high)


def holds_nan(values: pa.ChunkedArray) -> bool:
    """Engines put NaN above all other numbers; minimum and maximum of Arrow leave it out."""
    return pat.is_floating(values.type) and bool(pc.any(pc.is_nan(values)).as_py())


def nan_columns(rows: pa.Table) -> list[str]:
    """Columns of which Parquet's own statistics would say too little."""
    return [name for name in rows.column_names if holds_nan(rows.column(name))]


def maybe_nan_columns(columns: pa.Schema, files: Iterable[Any]) -> list[str]:
    """The same before the rows are read: columns without certain bounds in one of the files."""
    floats = [field.name for field in columns if pat.is_floating(field.type)]
    files = list(files) if floats else []
    return [name for name in floats if not all(_bounded(file.value_stats, name) for file in files)]


def _bounded(stats: SimpleStats, name: str) -> bool:
    names = [field.name for field in stats.min_values.fields]
    return name in names and stats.min_values.get_field(names.index(name)) is not None


def footer_options(schema: pa.Schema, left_out: Collection[str]) -> dict[str, Any]:
    """What `pyarrow.parquet` is told about statistics in a file's footer, which other engines also look at.

    Arrow leaves NaN out of them, other engines take NaN for the largest number: such a column gets none.
    """
    if not left_out:
        return {}
    return {"write_statistics": [f.name for f in schema if f.name not in left_out and not pat.is_nested(f.type)]}


def _has_order(kind: pa.DataType) -> bool:
    """Whether Paimon keeps bounds of such a column; nanoseconds are more than a bound can hold."""
    if pat.is_timestamp(kind):
        return bool(kind.unit != "ns")
    tests = (pat.is_boolean, pat.is_integer, pat.is_floating, pat.is_decimal, pat.is_date, pat.is_string, pat.is_binary)
    return any(test(kind) for test in tests)


def _both_zeros(low: Any, high: Any) -> tuple[Any, Any]:
    """Java orders -0.0 before 0.0, Arrow does not: a bound of zero covers both."""
    if isinstance(low, float) and low == 0.0:
        low = -0.0
    if isinstance(high, float) and high == 0.0:
        high = math.copysign(0.0, 1.0)
    return low, high


def _shortened(low: Any, length: int | None) -> Any:
    return low if length is None or not isinstance(low, str | bytes) else low[:length]


def _raised(high: Any, length: int | None) -> Any:
    """A value of at most `length` that is not below `high`; None where there is none.

    >>> _raised("abcdef", 3), _raised("abc", 3), _raised("a\\U0010ffff\\U0010ffffx", 3)
    ('abd', 'abc', 'b')
    """
    if length is None or not isinstance(high, str | bytes) or len(high) <= length:
        return high
    for end in range(length, 0, -1):
        if isinstance(high, bytes):
            if high[end - 1] < 0xFF:
                return high[: end - 1] + bytes([high[end - 1] + 1])
        elif ord(high[end - 1]) < _CODE_POINT_MAX:
            following = ord(high[end - 1]) + 1
            return high[: end - 1] + chr(_SURROGATES.stop if following in _SURROGATES else following)
    return None
