"""Operations on single rows, and unions."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import penstock as pen
from tests.generated.exprs import IN_ARROW, Condition, Expr, draw_condition, draw_expr, spark_text
from tests.generated.kinds import LINE, Columns, schema_of, sql_name
from tests.generated.nodes import LINEAGE, Facts, Node, Pool, some

Row = dict[str, Any]
Shape = tuple[tuple[str, Expr], ...]


@dataclass(frozen=True, slots=True)
class Reshape:
    """A function of a row, and of a batch, that makes other columns; fails for rows whose number has a certain rest.

    Rows without a number, which outer joins make, do not fail.
    """

    shape: Shape
    schema: pa.Schema
    fails: int | None = None

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.fails is not None and (batch.column("n").to_numpy(zero_copy_only=False) % 7 == self.fails).any():
            raise ValueError("a row that fails")
        return pa.RecordBatch.from_arrays([expr.arrow(batch) for _, expr in self.shape], schema=self.schema)

    def row(self, row: Row) -> Row:
        if self.fails is not None and row["n"] is not None and row["n"] % 7 == self.fails:
            raise ValueError("a row that fails")
        return {name: expr.row(row) for name, expr in self.shape}

    @property
    def sql(self) -> str:
        return ", ".join(f"{expr.sql} AS {sql_name(name)}" for name, expr in self.shape)

    @property
    def passing(self) -> str:
        return "" if self.fails is None else f" WHERE (n % 7 = {self.fails}) IS NOT TRUE"

    @property
    def on_error(self) -> Any:
        return "stop" if self.fails is None else "dead_letter"


@dataclass(frozen=True, slots=True)
class Rows:
    """`Reshape` as a function of a row, `copies` times or none at all."""

    reshape: Reshape
    copies: int | None
    index: str | None

    def __call__(self, row: Row) -> Iterator[Row]:
        made = self.reshape.row(row)
        for index in range(self.count(row)):
            yield made if self.index is None else {**made, self.index: index}

    def count(self, row: Row) -> int:
        return 1 if self.copies is None else row["n"] % self.copies


@dataclass(frozen=True, slots=True)
class Awaited:
    """`Reshape` as a coroutine that takes its time."""

    reshape: Reshape

    async def __call__(self, row: Row) -> Row:
        for _ in range(row["n"] % 3 if "n" in row else 0):
            await asyncio.sleep(0)
        return self.reshape.row(row)


@dataclass(frozen=True, slots=True)
class MapBatches:
    reshape: Reshape
    name: str | None
    inferred: bool

    def build(self, stream: pen.Stream) -> pen.Stream:
        schema = None if self.inferred else self.reshape.schema
        return stream.map_batches(self.reshape, schema, name=self.name, on_error=self.reshape.on_error)

    def sql(self, rows: str) -> str:
        return f"SELECT {self.reshape.sql} FROM {rows}{self.reshape.passing}"

    def __repr__(self) -> str:
        return f"map_batches({list(self.reshape.shape)}, fails={self.reshape.fails}, name={self.name!r})"


@dataclass(frozen=True, slots=True)
class FlatMap:
    rows: Rows
    name: str | None
    schema: pa.Schema

    def build(self, stream: pen.Stream) -> pen.Stream:
        return stream.flat_map(self.rows, self.schema, name=self.name, on_error=self.rows.reshape.on_error)

    def sql(self, rows: str) -> str:
        made = f"SELECT {self.rows.reshape.sql} FROM {rows}{self.rows.reshape.passing}"
        if self.rows.index is None:
            return made
        index = sql_name(self.rows.index)
        return f"SELECT *, unnest(range(n % {self.rows.copies})) AS {index} FROM ({made})"

    def __repr__(self) -> str:
        made = self.rows.reshape
        return f"flat_map({list(made.shape)}, copies={self.rows.copies}, fails={made.fails}, name={self.name!r})"


@dataclass(frozen=True, slots=True)
class MapAsync:
    reshape: Reshape
    ordered: bool
    concurrency: int
    name: str | None

    def build(self, stream: pen.Stream) -> pen.Stream:
        return stream.map_async(
            Awaited(self.reshape),
            self.reshape.schema,
            ordered=self.ordered,
            concurrency=self.concurrency,
            retries=0,
            name=self.name,
            on_error=self.reshape.on_error,
        )

    def sql(self, rows: str) -> str:
        return f"SELECT {self.reshape.sql} FROM {rows}{self.reshape.passing}"

    def __repr__(self) -> str:
        made = self.reshape
        return f"map_async({list(made.shape)}, ordered={self.ordered}, fails={made.fails}, name={self.name!r})"


@dataclass(frozen=True, slots=True)
class Letters:
    """The numbers of the rows that failed."""

    fails: int

    def build(self, stream: pen.Stream, _: pen.Stream) -> pen.Stream:
        return stream.side("dead_letters").flat_map(letter, pa.schema([("n", pa.int64())]))

    def sql(self, _: str, rows: str) -> str:
        return f"SELECT n FROM {rows} WHERE n % 7 = {self.fails}"


def letter(row: Row) -> list[Row]:
    return [{"n": json.loads(row["record"])["n"]}]


@dataclass(frozen=True, slots=True)
class Select:
    """Columns under other names, by Arrow; as SQL text also computed ones."""

    shape: Shape
    as_text: bool
    name: str | None

    def build(self, stream: pen.Stream) -> pen.Stream:
        if self.as_text:
            return stream.select({new: spark_text(expr.sql) for new, expr in self.shape}, name=self.name)
        return stream.select({new: pc.field(expr.column) for new, expr in self.shape}, name=self.name)

    def sql(self, rows: str) -> str:
        return f"SELECT {', '.join(f'{expr.sql} AS {sql_name(name)}' for name, expr in self.shape)} FROM {rows}"


@dataclass(frozen=True, slots=True)
class Filter:
    condition: Condition
    form: str
    name: str | None

    def build(self, stream: pen.Stream) -> pen.Stream:
        if self.form == "text":
            return stream.filter(spark_text(self.condition.sql), name=self.name)
        predicate = self.condition.expression if self.form == "expression" else None
        return stream.filter(self.condition.arrow if predicate is None else predicate, name=self.name)

    def sql(self, rows: str) -> str:
        return f"SELECT * FROM {rows} WHERE {self.condition.sql}"


@dataclass(frozen=True, slots=True)
class Union:
    name: str | None

    def build(self, *streams: pen.Stream) -> pen.Stream:
        return streams[0].union(*streams[1:], name=self.name)

    def sql(self, *rows: str) -> str:
        return " UNION ALL ".join(f"SELECT * FROM {part}" for part in rows)


# -- drawing ---------------------------------------------------------------------------------------------------------


def draw_reshape(pool: Pool, node: Node) -> tuple[Shape, Columns, Facts]:
    """Other columns, and what is then known of the rows."""
    chance, shape = pool.chance, []
    keep = chance.random() < 0.9
    for name, kind in node.columns.items():
        if kind == LINE and not keep:
            continue
        if name == node.facts.time and not keep and chance.random() < 0.5:
            continue
        if name not in node.values or name in node.facts.updated:
            shape.append((name, Expr(name)))
    for name in some(chance, node.values):
        if name in dict(shape):
            continue
        expr = draw_expr(chance, node.columns, name)
        new = name if chance.random() < 0.6 else f"{name}{len(shape)}"
        shape.append((new, expr))
    shape = shape or [(name, Expr(name)) for name in node.columns]
    columns = {name: expr.kind(node.columns) for name, expr in shape}
    if len(columns) < len(shape):
        shape = [(name, Expr(name)) for name in node.columns]
        columns = dict(node.columns)
    return tuple(shape), columns, _facts_after(node, dict(shape))


def _facts_after(node: Node, shape: dict[str, Expr]) -> Facts:
    facts = node.handed_on
    same = {name for name, expr in shape.items() if expr == Expr(name)}
    if facts.time not in same:
        facts = replace(facts, time=None, ends=False)
    if not same.issuperset(LINEAGE):
        return facts.unordered()
    if not {*facts.order, *facts.within} <= same:
        return facts.mixed()
    return facts


def _fails(pool: Pool, node: Node) -> int | None:
    return pool.chance.randint(0, 6) if node.columns.get("n") == LINE and pool.chance.random() < 0.2 else None


def _with_letters(pool: Pool, node: Node, fails: int | None) -> Node:
    pool.add(node)
    if fails is not None:
        size = node.inputs[0].facts.size // 7
        pool.add(Node(Letters(fails), (node, *node.inputs), {"n": LINE}, Facts(size), must=True))
    return node


def draw_map_batches(pool: Pool) -> Node | None:
    node = pool.one(updated=True)
    if node is None:
        return None
    shape, columns, facts = draw_reshape(pool, node)
    if facts.updated and not {*facts.updated, *facts.newest} <= set(columns):
        return None
    fails = None if facts.updated else _fails(pool, node)
    op = MapBatches(Reshape(shape, schema_of(columns), fails), pool.name("map"), pool.chance.random() < 0.5)
    return _with_letters(pool, Node(op, (node,), columns, facts), fails)


def _behind_operators(node: Node) -> bool:
    if type(node.op).__name__ == "Rebalance":
        return _behind_operators(node.inputs[0])
    return type(node.op).__name__ not in ("Source", "Pushed")


def draw_select(pool: Pool) -> Node | None:
    node = pool.one()
    if node is None:
        return None
    # In the source Spark computes text, and refuses to drop the event time.
    as_text = _behind_operators(node) and pool.chance.random() < 0.5
    known = IN_ARROW if as_text else {"same"}
    shape = [(name, expr) for name, expr in draw_reshape(pool, node)[0] if expr.form in known]
    if not shape:
        return None
    columns = {name: expr.kind(node.columns) for name, expr in shape}
    op = Select(tuple(shape), as_text, pool.name("select"))
    return pool.add(Node(op, (node,), columns, _facts_after(node, dict(shape))))


def draw_flat_map(pool: Pool) -> Node | None:
    node = pool.one(size=800)
    if node is None:
        return None
    shape, columns, facts = draw_reshape(pool, node)
    fails = _fails(pool, node)
    reshape = Reshape(shape, schema_of(columns), fails)
    copies = pool.chance.choice((2, 3)) if columns.get("n") == LINE and pool.chance.random() < 0.6 else None
    index = None
    if copies is not None:
        index = next(name for name in (f"i{place}" for place in itertools.count()) if name not in columns)
        columns = {**columns, index: LINE}
        facts = replace(facts, size=facts.size * 2, order=(*facts.order, index) if facts.order else ())
    op = FlatMap(Rows(reshape, copies, index), pool.name("flat"), schema_of(columns))
    return _with_letters(pool, Node(op, (node,), columns, facts), fails)


def draw_map_async(pool: Pool) -> Node | None:
    node = pool.one(size=400)
    if node is None:
        return None
    shape, columns, facts = draw_reshape(pool, node)
    ordered, fails = pool.chance.random() < 0.6, _fails(pool, node)
    reshape = Reshape(shape, schema_of(columns), fails)
    op = MapAsync(reshape, ordered, pool.chance.choice((1, 3, 100)), pool.name("call"))
    return _with_letters(pool, Node(op, (node,), columns, facts if ordered else facts.unordered()), fails)


def draw_filter(pool: Pool) -> Node | None:
    node = pool.one()
    condition = None if node is None else draw_condition(pool.chance, node.columns)
    if node is None or condition is None:
        return None
    forms = ("function", "expression", *(("text",) if _behind_operators(node) else ()))
    op = Filter(condition, pool.chance.choice(forms), pool.name("filter"))
    return pool.add(Node(op, (node,), dict(node.columns), node.handed_on))


def draw_union(pool: Pool) -> Node | None:
    """With itself, with others, of two or three."""
    node = pool.one(size=600)
    if node is None:
        return None
    columns = list(node.columns.items())
    fitting = [
        other for other in pool.nodes
        if other.ordinary and not other.facts.updated and other.facts.size <= 600
        and list(other.columns.items()) == columns
    ]  # fmt: skip
    others = [pool.chance.choice(fitting) for _ in range(pool.chance.choice((1, 1, 2)))]
    parts = (node, *others)
    op = Union(pool.name("union"))
    return pool.add(Node(op, parts, dict(node.columns), _facts_of_union(parts)))


def _facts_of_union(parts: tuple[Node, ...]) -> Facts:
    facts = [part.handed_on for part in parts]
    times = {part.time for part in facts}
    traced: list[int] = [source for part in facts for source in part.traced]
    disjoint = len(set(traced)) == len(traced) and all(part.traced for part in facts)
    within = {part.within for part in facts}
    return Facts(
        size=sum(part.size for part in facts),
        traced=frozenset(traced) if disjoint and len(within) == 1 else frozenset(),
        within=within.pop() if disjoint and len(within) == 1 else (),
        stepwise=all(part.stepwise for part in facts),
        time=times.pop() if len(times) == 1 and len({part.ends for part in facts}) == 1 else None,
        ends=facts[0].ends,
    )
