"""Operations on several streams at once: `connect` by key, with rows held back, and with broadcast rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

import penstock as pen
from tests.generated.kinds import LINE, NUMBER, TEXT, Columns, schema_of, sql_name, sql_names
from tests.generated.nodes import Facts, Node, Pool, kept

Row = dict[str, Any]
Keys = tuple[str, ...]


class Counting(pen.ConnectProcess):
    """Counts the rows of a key over all inputs."""

    inputs: ClassVar[tuple[str, ...]]
    output: ClassVar[Any]
    keys: ClassVar[Keys]
    seen = pen.value_state("bigint")

    def process(self, port: str, key: Row, rows: list[Row], state: Any, out: Any) -> None:
        for _ in rows:
            state.seen = (state.seen or 0) + 1
            out.emit(**{name: key[name] for name in self.keys}, seen=state.seen)


@dataclass(frozen=True, slots=True)
class Connect:
    keys: tuple[Keys, ...]
    columns: Columns
    hold_back: Keys
    name: str | None

    def build(self, first: pen.Stream, *others: pen.Stream) -> pen.Stream:
        ports = tuple(f"in{number}" for number in range(len(self.keys)))
        parts = {"inputs": ports, "output": schema_of(self.columns), "keys": self.keys[0]}
        keyed = [stream.key_by(*keys) for stream, keys in zip(others, self.keys[1:], strict=True)]
        process = type("Counting", (Counting,), parts)
        return first.key_by(*self.keys[0]).connect(
            *keyed, process=process, hold_back=self.hold_back, name=self.name
        )  # fmt: skip

    def sql(self, *rows: str) -> str:
        every = [f"SELECT {sql_names(keys)} FROM {part}" for part, keys in zip(rows, self.keys, strict=True)]
        names = sql_names(self.keys[0])
        seen = f"row_number() OVER (PARTITION BY {names}) AS seen"
        return f"SELECT *, {seen} FROM ({' UNION ALL '.join(every)})"

    def __repr__(self) -> str:
        return f"connect({self.keys}, process=Counting, hold_back={self.hold_back}, name={self.name!r})"


class Looking(pen.ConnectProcess):
    """Looks a text up in what the other stream said in the first micro-batch."""

    inputs = ("rows", "rules")
    output: ClassVar[Any]
    texts: ClassVar[tuple[str, str]]
    rule = pen.broadcast_map("string", "bigint")

    def process(self, port: str, key: Row, rows: list[Row], state: Any, out: Any) -> None:
        out.emit_many({"n": row["n"], "rule": state.rule.get(row[self.texts[0]])} for row in rows)

    def process_broadcast(self, port: str, rows: list[Row], broadcast: Any) -> None:
        for row in rows:
            text = row[self.texts[1]]
            if row["mb"] == 0 and text is not None:
                broadcast.rule[text] = max(row["n"], broadcast.rule.get(text) or 0)


@dataclass(frozen=True, slots=True)
class Broadcast:
    keys: Keys
    texts: tuple[str, str]
    name: str | None

    def build(self, rows: pen.Stream, rules: pen.Stream) -> pen.Stream:
        output = pa.schema([("n", pa.int64()), ("rule", pa.int64())])
        process = type("Looking", (Looking,), {"output": output, "texts": self.texts})
        other = rules.broadcast()
        if self.keys:
            return rows.key_by(*self.keys).connect(other, process=process, name=self.name)
        return rows.connect(other, process=process, name=self.name)

    def sql(self, rows: str, rules: str) -> str:
        mine, theirs = map(sql_name, self.texts)
        said = f"SELECT {theirs} AS said, max(n) AS rule FROM {rules} WHERE mb = 0 AND {theirs} IS NOT NULL GROUP BY 1"
        return f"SELECT n, rule FROM {rows} LEFT JOIN ({said}) ON {mine} = said"

    def __repr__(self) -> str:
        return f"connect(broadcast, keys={self.keys}, texts={self.texts}, name={self.name!r})"


def draw_connect(pool: Pool) -> Node | None:
    first = pool.one(size=500)
    keys = () if first is None else pool.keys(first)
    if first is None or not keys or "seen" in keys:
        return None
    wanted = [first.columns[key] for key in keys]
    parts, all_keys = [first], [keys]
    for _ in range(pool.chance.choice((1, 1, 2))):
        other = first if pool.chance.random() < 0.3 else pool.one(size=500)
        theirs = () if other is None else _alike(pool, other, wanted)
        if other is None or len(theirs) < len(keys):
            return None
        parts.append(other)
        all_keys.append(theirs)
    columns = {**kept(first.columns, keys), "seen": NUMBER}
    held = ("in1",) if pool.chance.random() < 0.4 else ()
    op = Connect(tuple(all_keys), columns, held, pool.name("connect"))
    return pool.add(Node(op, tuple(parts), columns, Facts(sum(part.facts.size for part in parts))))


def _alike(pool: Pool, node: Node, wanted: list[Any]) -> Keys:
    found: list[str] = []
    for kind in wanted:
        fitting = [name for name, mine in node.columns.items() if mine == kind and name not in found]
        if fitting:
            found.append(pool.chance.choice(fitting))
    return tuple(found)


def draw_broadcast(pool: Pool) -> Node | None:
    """Rules come straight from a source: only then are they there before the rows of their micro-batch."""
    rows = pool.one(lambda node: node.columns.get("n") == LINE and TEXT in node.columns.values())
    sources = [node for node in pool.nodes if not node.inputs]
    if rows is None or rows.columns.get("n") != LINE:
        return None
    rules = pool.chance.choice(sources)
    mine = [name for name, kind in rows.columns.items() if kind == TEXT]
    theirs = [name for name, kind in rules.columns.items() if kind == TEXT]
    if not mine or not theirs:
        return None
    keys = pool.keys(rows) if pool.chance.random() < 0.5 else ()
    op = Broadcast(keys, (pool.chance.choice(mine), pool.chance.choice(theirs)), pool.name("look"))
    columns: Columns = {"n": LINE, "rule": LINE}
    return pool.add(Node(op, (rows, rules), columns, Facts(rows.facts.size)))
