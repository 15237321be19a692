"""Sources: their columns, and the rows that they deliver in each micro-batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any

import pyarrow as pa

import penstock as pen
from tests.generated.exprs import Condition, Expr, draw_condition, draw_expr
from tests.generated.kinds import LINE, SMALL, TEXT, TIME, VALUES, Columns, Kind, sql_name
from tests.generated.nodes import LINEAGE, Facts, Node, Pool
from tests.generated.timed import LAST, START

Row = dict[str, Any]
NAMES = ("k", "v", "word", "a b", "select", "Ünï", "x.y", "_1", "value", "key", "time", "Count", "é'")
DELAY_S = 6


@dataclass(frozen=True, slots=True)
class Source:
    """A source; `delay` is how far behind the newest row its watermark is."""

    index: int
    name: str
    time: str | None
    delay: int
    parts: int
    """Partitions of a micro-batch."""
    late: bool

    def build(self, *inputs: pen.Stream) -> pen.Stream:
        raise NotImplementedError("whoever runs the pipeline has the sources")

    def sql(self, *inputs: str) -> str:
        return f"SELECT * FROM source{self.index}"

    def event_time(self) -> dict[str, Any]:
        return {} if self.time is None else {"event_time": self.time, "watermark": f"{self.delay} s"}


@dataclass(frozen=True, slots=True)
class Pushed:
    """Spark SQL in a source."""

    what: str
    where: Condition | None = None
    column: str = ""
    expr: Expr | None = None
    columns: tuple[str, ...] = ()

    def build(self, stream: pen.Stream) -> pen.Stream:
        if self.where is not None:
            return stream.where(_spark(self.where.sql))
        if self.expr is not None:
            return stream.with_column(self.column, _spark(self.expr.sql))
        return stream.select(*(_spark(sql_name(name)) for name in self.columns))

    def sql(self, rows: str) -> str:
        if self.where is not None:
            return f"SELECT * FROM {rows} WHERE {self.where.sql}"
        if self.expr is not None:
            return f"SELECT *, {self.expr.sql} AS {sql_name(self.column)} FROM {rows}"
        return f"SELECT {', '.join(map(sql_name, self.columns))} FROM {rows}"


def _spark(sql: str) -> str:
    return sql.replace('"', "`")


@dataclass(slots=True)
class Input:
    """The rows of all sources, by micro-batch: tables by the number of the source."""

    batches: list[dict[int, list[Row]]] = field(default_factory=list)

    def tables(self, schemas: Mapping[int, pa.Schema]) -> list[dict[int, pa.Table]]:
        return [
            {index: pa.Table.from_pylist(batch.get(index, []), schema=schema) for index, schema in schemas.items()}
            for batch in self.batches
        ]

    def __str__(self) -> str:
        return "\n".join(
            f"    source{index} {row}" for batch in self.batches for index, rows in batch.items() for row in rows
        )


def draw_sources(pool: Pool) -> list[Node]:
    chance = pool.chance
    count = chance.choice((1, 2, 2, 3))
    time = chance.choice(("ts", "event time")) if chance.random() < 0.8 else None
    columns = draw_columns(chance, time)
    nodes = []
    for index in range(count):
        mine = columns if chance.random() < 0.8 else draw_columns(chance, time)
        nodes.append(_source(pool, index, mine, time if chance.random() < 0.9 else None))
    return nodes


def draw_columns(chance: Random, time: str | None) -> Columns:
    columns: Columns = dict.fromkeys(LINEAGE, LINE)
    if time is not None:
        columns[time] = TIME
    kinds: list[Kind] = [*chance.choices(VALUES, k=chance.randint(1, 4)), chance.choice((SMALL, TEXT))]
    for name, kind in zip(chance.sample(NAMES, len(kinds)), kinds, strict=True):
        columns[name] = kind
    return columns


def _source(pool: Pool, index: int, columns: Columns, time: str | None) -> Node:
    chance = pool.chance
    parts = chance.choice((1, 1, 2, 3))
    late = time is not None and chance.random() < 0.15
    name = "source" if index == 0 and chance.random() < 0.5 else f"s{index}"
    op = Source(index, name, time, chance.choice((DELAY_S, DELAY_S, DELAY_S + 4)), parts, late)
    facts = Facts(
        size=80,
        order=("n",) if parts == 1 else (),
        traced=frozenset([index]),
        stepwise=True,
        time=time,
        late=op.delay if late else 0,
    )
    return pool.add(Node(op, (), columns, facts))


def draw_pushed(pool: Pool) -> Node | None:
    """Only directly on a source, only where there is Spark."""
    fitting = [node for node in pool.nodes if isinstance(node.op, Source | Pushed) and not node.facts.late]
    if not pool.on_spark or not fitting:
        return None
    node = pool.chance.choice(fitting)
    columns = dict(node.columns)
    match pool.chance.choice(("where", "with_column", "select")):
        case "where":
            condition = draw_condition(pool.chance, columns)
            return (
                None if condition is None else pool.add(Node(Pushed("where", condition), (node,), columns, node.facts))
            )
        case "with_column":
            expr = draw_expr(pool.chance, columns, pool.chance.choice(list(node.values)))
            if expr.form in ("exclaimed", "count", "field", "length"):
                return None
            column = f"more{len(columns)}"
            op = Pushed("with_column", column=column, expr=expr)
            return pool.add(Node(op, (node,), {**columns, column: expr.kind(columns)}, node.facts))
    names = tuple(name for name in columns if name not in node.values or pool.chance.random() < 0.7)
    op = Pushed("select", columns=names)
    return pool.add(Node(op, (node,), {name: columns[name] for name in names}, node.facts))


# -- rows ------------------------------------------------------------------------------------------------------------


def draw_input(chance: Random, sources: list[Node], *, closes: bool) -> Input:
    """Time moves on from micro-batch to micro-batch by less than the delay, or by more; the last one closes all, if
    something has to."""
    pools = [_values(chance, node.columns) for node in sources]
    drawn, number, base = Input(), 0, 0
    for mb in range(chance.choice((1, 2, 2, 3, 4))):
        batch: dict[int, list[Row]] = {}
        base += chance.randint(0, 25)
        for node, values in zip(sources, pools, strict=True):
            op = node.op
            assert isinstance(op, Source)
            rows: list[Row] = []
            for part in range(op.parts):
                for _ in range(chance.choice((0, 1, 3, 10, 25)) * 2 // (op.parts + 1)):
                    made = {"n": number, "mb": mb, "part": part, "src": op.index, **_row(chance, values)}
                    if op.time is not None:
                        made[op.time] = _moment(chance, base, late=op.late)
                    elif TIME in node.columns.values():
                        made |= {name: START for name, kind in node.columns.items() if kind == TIME}
                    rows.append(made)
                    number += 1
            batch[op.index] = rows
        drawn.batches.append(batch)
    if not closes:
        return drawn
    drawn.batches.append({})
    for node in sources:
        op = node.op
        assert isinstance(op, Source)
        last = {"n": number, "mb": len(drawn.batches) - 1, "part": 0, "src": op.index}
        last |= {name: LAST for name, kind in node.columns.items() if kind == TIME}
        drawn.batches[-1][op.index] = [last]
        number += 1
    return drawn


def _values(chance: Random, columns: Columns) -> dict[str, list[Any]]:
    """What stands in each column: few values, or many."""
    return {
        name: [kind.draw(chance) for _ in range(chance.choice((1, 3, 5, 40)))]
        for name, kind in columns.items()
        if kind not in (LINE, TIME)
    }


def _row(chance: Random, values: dict[str, list[Any]]) -> Row:
    return {name: None if chance.random() < 0.12 else chance.choice(options) for name, options in values.items()}


def _moment(chance: Random, base: int, *, late: bool) -> Any:
    if late and chance.random() < 0.1:
        return None
    quarters = chance.randint(-120 if late else 0, DELAY_S * 4)
    return START + timedelta(seconds=base + quarters / 4)
