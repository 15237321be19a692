"""What DuckDB makes of the same rows, and how that differs from what a pipeline gave."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa

from tests.generated.kinds import schema_of, sql_names
from tests.generated.nodes import Node
from tests.generated.program import Program
from tests.generated.sources import Source

Row = dict[str, Any]
SHOWN_MAX = 8


class Oracle:
    """One database for many pipelines."""

    def __init__(self) -> None:
        self._base = duckdb.connect(config={"threads": "1"})
        self._base.execute("SET TimeZone = 'UTC'")

    def differences(self, program: Program, emitted: Mapping[int, pa.Table]) -> dict[int, str]:
        """By the number of the output: what is missing, what is too much, what is out of order."""
        database = self._base.cursor()
        database.execute("SET TimeZone = 'UTC'")
        for node in program.reached():
            if isinstance(node.op, Source):
                rows = [row for batch in program.input.batches for row in batch.get(node.op.index, ())]
                database.register(f"source{node.op.index}", pa.Table.from_pylist(rows, schema=schema_of(node.columns)))
            query = node.op.sql(*(f"t{part.number}" for part in node.inputs))
            database.execute(f"CREATE OR REPLACE TEMP TABLE t{node.number} AS {query}")
        found = {node.number: _difference(database, node, emitted[node.number]) for node in program.outputs}
        database.close()
        return {number: text for number, text in found.items() if text}


def _difference(database: Any, node: Node, emitted: pa.Table) -> str:
    database.register("out", emitted)
    columns = [name for name in node.columns if node.check is None or name not in node.check.ignored]
    wanted = _bag(database.sql(f"SELECT {sql_names(columns)} FROM t{node.number}"), node)
    found = _bag(database.sql(_newest(node, columns)), node)
    wrong = [] if node.check is None else database.sql(node.check.sql).to_arrow_table().to_pylist()
    database.unregister("out")
    lines = [*_lines("missing", wanted - found), *_lines("too much", found - wanted)]
    return "\n".join([*lines, *(f"wrong: {row}" for row in wrong[:SHOWN_MAX])])


def _newest(node: Node, columns: Iterable[str]) -> str:
    names, updated = sql_names(columns), node.facts.updated
    if not updated:
        return f"SELECT {names} FROM out"
    newest = ", ".join(f"{part} DESC" for part in node.facts.newest)
    return f"SELECT DISTINCT ON ({sql_names(updated)}) {names} FROM out ORDER BY {sql_names(updated)}, {newest}"


def _bag(result: Any, node: Node) -> Counter[tuple[Any, ...]]:
    table = result.to_arrow_table()
    bags = {name: node.columns[name].bag for name in table.schema.names}
    return Counter(
        tuple((name, _plain(value, bag=bags[name])) for name, value in row.items()) for row in table.to_pylist()
    )


def _plain(value: Any, *, bag: bool = False) -> Any:
    """Equal for what counts as equal: floats to nine digits, NaN with NaN, moments in UTC."""
    match value:
        case float():
            return _plain_float(value)
        case bool() | int():
            return int(value)
        case datetime():
            return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
        case Decimal():
            return value.normalize()
        case list() | tuple():
            parts = [_plain(part) for part in value]
            return tuple(sorted(parts, key=repr) if bag else parts)
        case dict():
            return tuple((name, _plain(part)) for name, part in value.items())
    return value


def _plain_float(value: float) -> Any:
    return float(f"{value * (1 + 1e-12) + 0.0:.9g}") if math.isfinite(value) else str(value)


def _lines(sign: str, rows: Counter[tuple[Any, ...]]) -> list[str]:
    shown = [
        f"{sign} {count} × " + ", ".join(f"{name}={str(value)[:60]}" for name, value in row)
        for row, count in list(rows.items())[:SHOWN_MAX]
    ]
    return [*shown, *([f"{sign}: {rows.total()} rows in all"] if rows else [])]
