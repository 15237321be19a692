"""Operations per key without event time: aggregates, the best rows, deduplication, code with state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

import penstock as pen
from tests.generated.aggregates import Aggregates, draw_aggregates
from tests.generated.kinds import INT, LINE, NUMBER, SMALL, Columns, Kind, schema_of, sql_name, sql_names
from tests.generated.nodes import LINEAGE, Check, Facts, Node, Pool, kept, lineage_of

Row = dict[str, Any]
Keys = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Aggregate:
    keys: Keys
    aggregates: Aggregates
    name: str | None

    def build(self, stream: pen.Stream) -> pen.Stream:
        return stream.key_by(*self.keys).aggregate(self.aggregates.ours(), name=self.name)

    def sql(self, rows: str) -> str:
        return f"SELECT {sql_names(self.keys)}, {self.aggregates.sql} FROM {rows} GROUP BY {sql_names(self.keys)}"


@dataclass(frozen=True, slots=True)
class Top:
    keys: Keys
    count: int
    by: str
    ascending: bool
    order: tuple[str, ...]
    name: str | None

    def build(self, stream: pen.Stream) -> pen.Stream:
        return stream.key_by(*self.keys).top_n(self.count, by=self.by, ascending=self.ascending, name=self.name)

    def sql(self, rows: str) -> str:
        direction = "" if self.ascending else " DESC"
        best = f"{sql_name(self.by)}{direction}, {sql_names(self.order)}"
        ranks = f"row_number() OVER (PARTITION BY {sql_names(self.keys)} ORDER BY {best}) AS rank"
        known = f"SELECT *, {ranks} FROM {rows} WHERE {sql_name(self.by)} IS NOT NULL"
        return f"SELECT * FROM ({known}) WHERE rank <= {self.count}"


@dataclass(frozen=True, slots=True)
class Deduplicate:
    keys: Keys
    columns: Keys
    order: tuple[str, ...]
    within: str | None
    name: str | None

    def build(self, stream: pen.Stream) -> pen.Stream:
        return stream.key_by(*self.keys).deduplicate(columns=self.columns, within=self.within, name=self.name)

    def sql(self, rows: str) -> str:
        apart = sql_names((*self.keys, *self.columns))
        if not self.order:
            return f"SELECT DISTINCT ON ({apart}) * FROM {rows}"
        return f"SELECT DISTINCT ON ({apart}) * FROM {rows} ORDER BY {apart}, {sql_names(self.order)}"


class Numbering(pen.KeyedProcess):
    """Numbers the rows of a key and adds a column up; every third goes on the side, some fail."""

    output: ClassVar[Any]
    sides: ClassVar[Any]
    taken: ClassVar[tuple[str, ...]]
    amount: ClassVar[str]
    fails: ClassVar[int | None]
    seen = pen.value_state("bigint")
    total = pen.value_state("bigint")
    numbers = pen.list_state("bigint")
    rests = pen.map_state("bigint", "bigint")

    def process(self, key: Row, rows: list[Row], state: Any, out: Any) -> None:
        for row in rows:
            if self.fails is not None and row["n"] is not None and row["n"] % 7 == self.fails:
                raise ValueError("a row that fails")
            state.seen = (state.seen or 0) + 1
            state.total = (state.total or 0) + (row[self.amount] or 0)
            state.numbers.append(row["n"])
            rest = row["n"] % 3
            state.rests[rest] = state.rests.get(rest, 0) + 1
            made = {name: row[name] for name in self.taken}
            out.emit(**made, nth=state.seen, total=state.total, listed=len(state.numbers), alike=state.rests[rest])
            if state.seen % 3 == 0:
                out.side("third").emit(n=row["n"])


@dataclass(frozen=True, slots=True)
class Number:
    keys: Keys
    taken: Keys
    amount: str
    order: tuple[str, ...]
    fails: int | None
    columns: Columns
    name: str | None

    def build(self, stream: pen.Stream) -> pen.Stream:
        parts = {"taken": self.taken, "amount": self.amount, "fails": self.fails}
        sides = {"third": pa.schema([("n", pa.int64())])}
        process = type("Numbering", (Numbering,), {**parts, "output": schema_of(self.columns), "sides": sides})
        on_error = "stop" if self.fails is None else "dead_letter"
        return stream.key_by(*self.keys).process(process, name=self.name, on_error=on_error)  # type: ignore[arg-type]

    def sql(self, rows: str) -> str:
        keys, order = sql_names(self.keys), sql_names(self.order)
        passing = "" if self.fails is None else f"WHERE (n % 7 = {self.fails}) IS NOT TRUE"
        return (
            f"SELECT {sql_names(self.taken)}, count(*) OVER so_far AS nth, "
            f"CAST(sum(coalesce({sql_name(self.amount)}, 0)) OVER so_far AS BIGINT) AS total, "
            f"count(*) OVER so_far AS listed, "
            f"count(*) OVER (PARTITION BY {keys}, n % 3 ORDER BY {order} ROWS UNBOUNDED PRECEDING) AS alike "
            f"FROM {rows} {passing} "
            f"WINDOW so_far AS (PARTITION BY {keys} ORDER BY {order} ROWS UNBOUNDED PRECEDING)"
        )

    def __repr__(self) -> str:
        return f"key_by{self.keys}.process(Number, {self.amount}, fails={self.fails}, name={self.name!r})"


@dataclass(frozen=True, slots=True)
class Third:
    """The side output of `Number`."""

    def build(self, stream: pen.Stream) -> pen.Stream:
        return stream.side("third")

    def sql(self, rows: str) -> str:
        return f"SELECT n FROM {rows} WHERE nth % 3 = 0"


class Noting(pen.KeyedProcess):
    """Notes in which order the rows of a key come."""

    output: ClassVar[Any]
    taken: ClassVar[tuple[str, ...]]
    seen = pen.value_state("bigint")

    def process(self, key: Row, rows: list[Row], state: Any, out: Any) -> None:
        seen = state.seen or 0
        for row in rows:
            seen += 1
            out.emit(**{name: row[name] for name in self.taken}, nth=seen)
        state.seen = seen


@dataclass(frozen=True, slots=True)
class Note:
    keys: Keys
    columns: Columns
    name: str | None

    def build(self, stream: pen.Stream) -> pen.Stream:
        taken = tuple(name for name in self.columns if name != "nth")
        process = type("Noting", (Noting,), {"taken": taken, "output": schema_of(self.columns)})
        return stream.key_by(*self.keys).process(process, name=self.name)

    def sql(self, rows: str) -> str:
        taken = [name for name in self.columns if name != "nth"]
        return f"SELECT {sql_names(taken)} FROM {rows}"

    def check(self, *, traced: bool) -> Check:
        """Rows of a key that came after a row of a later micro-batch of their source, or, where they all took one way,
        after a later row of their partition; and numbers that were given twice."""
        keys = sql_names(self.keys)
        before = "ORDER BY nth ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
        overtaken = (
            f"SELECT *, max(mb) OVER (PARTITION BY {keys}, src {before}) AS newest, "
            f"max(n) OVER (PARTITION BY {keys}, src, mb, part {before}) AS latest, "
            f"row_number() OVER (PARTITION BY {keys} ORDER BY nth) AS place FROM out"
        )
        later = " OR n < latest" if traced else ""
        wrong = f"SELECT * FROM ({overtaken}) WHERE mb < newest OR place <> nth{later}"
        return Check(wrong, ("nth",))

    def __repr__(self) -> str:
        return f"key_by{self.keys}.process(Note, name={self.name!r})"


class Summing(pen.BatchProcess):
    """Running count and sum, a column at a time."""

    output: ClassVar[Any]
    keys: ClassVar[tuple[str, ...]]
    amount: ClassVar[str]
    rows = pen.value_state("bigint")
    total = pen.value_state("bigint")

    def process(self, batch: pa.RecordBatch, keys: Any, state: Any) -> pa.Table:
        amounts = batch[self.amount].fill_null(0).to_numpy()
        state.rows = pc.add(state.rows.fill_null(0), pa.array(np.bincount(keys.numbers, minlength=keys.count)))
        added = np.bincount(keys.numbers, amounts, keys.count).astype(np.int64)
        state.total = pc.add(state.total.fill_null(0), pa.array(added))
        found = {name: keys.batch[name] for name in self.keys}
        return pa.table({**found, "rows": state.rows, "total": state.total})


@dataclass(frozen=True, slots=True)
class Sum:
    keys: Keys
    amount: str
    columns: Columns
    name: str | None

    def build(self, stream: pen.Stream) -> pen.Stream:
        parts = {"output": schema_of(self.columns), "keys": self.keys, "amount": self.amount}
        return stream.key_by(*self.keys).process(type("Summing", (Summing,), parts), name=self.name)

    def sql(self, rows: str) -> str:
        keys = sql_names(self.keys)
        total = f"CAST(sum(coalesce({sql_name(self.amount)}, 0)) AS BIGINT)"
        return f"SELECT {keys}, count(*) AS rows, {total} AS total FROM {rows} GROUP BY {keys}"

    def __repr__(self) -> str:
        return f"key_by{self.keys}.process(Sum, {self.amount}, name={self.name!r})"


# -- drawing ---------------------------------------------------------------------------------------------------------


def draw_aggregate(pool: Pool) -> Node | None:
    node = pool.one()
    keys = () if node is None else pool.keys(node)
    if node is None or not keys:
        return None
    order = node.facts.order if node.facts.ordered_for(keys) else ()
    aggregates = draw_aggregates(pool.chance, node.columns, order)
    columns = {**kept(node.columns, keys), **aggregates.columns(node.columns)}
    if len(columns) < len(keys) + 1 + len(aggregates.parts):
        return None
    facts = Facts(node.facts.size, updated=keys, newest=("rows",))
    op = Aggregate(keys, aggregates, pool.name("aggregate"))
    return pool.add(Node(op, (node,), columns, facts))


def _negated(column: str, kind: Kind) -> str:
    """The lowest integer of a type has no counterpart in it."""
    name = sql_name(column)
    return f"-CAST({name} AS HUGEINT)" if pt.is_integer(kind.arrow) else f"-{name}"


def draw_top(pool: Pool) -> Node | None:
    node = pool.one(lambda node: node.ordered)
    keys = () if node is None else pool.keys(node)
    if node is None or not keys or not node.facts.ordered_for(keys) or "rank" in node.columns:
        return None
    fitting = [name for name in node.where("adds") if name not in keys]
    if not fitting:
        return None
    by, ascending, order = pool.chance.choice(fitting), pool.chance.random() < 0.5, node.facts.order
    op = Top(keys, pool.chance.randint(1, 4), by, ascending, order, pool.name("top"))
    # Who takes a place is better, or as good and earlier in the list.
    better = _negated(by, node.columns[by]) if ascending else sql_name(by)
    facts = Facts(node.facts.size, updated=(*keys, "rank"), newest=(better, *(f"-{sql_name(name)}" for name in order)))
    columns = {**kept(node.columns, keys), "rank": INT, **node.columns}
    return pool.add(Node(op, (node,), columns, facts, ordinary=False))


def draw_deduplicate(pool: Pool) -> Node | None:
    node = pool.one()
    if node is None:
        return None
    keys = pool.keys(node)
    everything = node.where("key")
    if keys and node.facts.ordered_for(keys):
        rest = [name for name in everything if name not in keys]
        columns = tuple(pool.chance.sample(rest, min(len(rest), pool.chance.choice((0, 0, 1)))))
        order = node.facts.order
    elif len(everything) == len(node.columns):  # whoever of equal rows is first is as good as any
        keys, columns, order = tuple(everything[:1]), tuple(everything[1:]), ()
    else:
        return None
    timed = node.handed_on.time is not None and not node.facts.ends and pool.chance.random() < 0.4
    op = Deduplicate(keys, columns, order, "30 d" if timed else None, pool.name("first"))
    facts = replace(node.handed_on, within=tuple(dict.fromkeys((*node.facts.within, *keys))))
    return pool.add(Node(op, (node,), dict(node.columns), facts if order else facts.unordered()))


def draw_number(pool: Pool) -> Node | None:
    node = pool.one(lambda node: node.ordered and node.has_lineage())
    keys = () if node is None else pool.keys(node)
    if node is None or not keys or not node.facts.ordered_for(keys) or not node.has_lineage():
        return None
    amounts = [name for name, kind in node.columns.items() if kind in (SMALL, NUMBER)]
    if not amounts or {"nth", "total", "listed", "alike"} & set(node.columns):
        return None
    carried = {**lineage_of(node), **kept(node.columns, keys)}
    taken = tuple(name for name in node.columns if name in carried)
    columns = {**kept(node.columns, taken), "nth": NUMBER, "total": SMALL, "listed": NUMBER, "alike": NUMBER}
    fails = pool.chance.randint(0, 6) if pool.chance.random() < 0.2 else None
    op = Number(keys, taken, pool.chance.choice(amounts), node.facts.order, fails, columns, pool.name("number"))
    facts = replace(node.handed_on, within=tuple(dict.fromkeys((*node.facts.within, *keys))))
    made = pool.add(Node(op, (node,), columns, facts))
    if pool.chance.random() < 0.5:
        pool.add(Node(Third(), (made,), {"n": LINE}, Facts(node.facts.size // 3)))
    if fails is not None:
        from tests.generated.rowwise import Letters

        pool.add(Node(Letters(fails), (made, node), {"n": LINE}, Facts(node.facts.size // 7), must=True))
    return made


def draw_note(pool: Pool) -> Node | None:
    node = pool.one(lambda node: node.facts.stepwise)
    keys = () if node is None else pool.keys(node)
    if node is None or not keys or not node.facts.stepwise or "nth" in node.columns:
        return None
    columns = {**kept(node.columns, dict.fromkeys((*LINEAGE, *keys))), "nth": LINE}
    op = Note(keys, columns, pool.name("note"))
    return pool.add(
        Node(
            op,
            (node,),
            columns,
            Facts(node.facts.size),
            check=op.check(traced=node.facts.traced_for(keys)),
            ordinary=False,
        )
    )


def draw_sum(pool: Pool) -> Node | None:
    node = pool.one()
    keys = () if node is None else pool.keys(node)
    amounts = [] if node is None else [name for name, kind in node.columns.items() if kind in (SMALL, NUMBER)]
    if node is None or not keys or not amounts or {"rows", "total"} & set(node.columns):
        return None
    columns = {**kept(node.columns, keys), "rows": LINE, "total": SMALL}
    op = Sum(keys, pool.chance.choice(amounts), columns, pool.name("sum"))
    return pool.add(Node(op, (node,), columns, Facts(node.facts.size, updated=keys, newest=("rows",))))
