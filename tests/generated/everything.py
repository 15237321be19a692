"""Windows over all rows, without a key, and rows that are spread over all subtasks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import penstock as pen
from tests.generated.aggregates import draw_aggregates
from tests.generated.nodes import Facts, Node, Pool
from tests.generated.timed import BOUNDS, Windowed, draw_span

ONE = "__one"


@dataclass(frozen=True, slots=True)
class Everything:
    """An operation per key, of which there is one: our API has no key then, SQL a constant."""

    keyed: Any

    def build(self, stream: pen.Stream) -> pen.Stream:
        return self.keyed.build(_Whole(stream))

    def sql(self, rows: str) -> str:
        return f"SELECT * EXCLUDE ({ONE}) FROM ({self.keyed.sql(f'(SELECT *, 0 AS {ONE} FROM {rows})')})"


@dataclass(frozen=True, slots=True)
class _Whole:
    stream: pen.Stream

    def key_by(self, *_: str) -> pen.Stream:
        return self.stream


@dataclass(frozen=True, slots=True)
class Rebalance:
    number: int

    def build(self, stream: pen.Stream) -> pen.Stream:
        return stream.rebalance()

    def sql(self, rows: str) -> str:
        return f"SELECT * FROM {rows}"


def draw_everything(pool: Pool) -> Node | None:
    node = pool.one(lambda node: node.timed)
    if node is None or node.facts.time is None or node.facts.late:
        return None
    span = draw_span(pool)
    aggregates = draw_aggregates(pool.chance, node.columns, ())
    columns = {**BOUNDS, **aggregates.columns(node.columns)}
    if len(columns) < 3 + len(aggregates.parts):
        return None
    op = Windowed((ONE,), span, node.facts.time, node.facts.ends, aggregates, "on_close", 0, 0, pool.name("whole"))
    size = node.facts.size * (3 if span.kind == "sliding" else 1)
    return pool.add(Node(Everything(op), (node,), columns, Facts(size, time="window_end", ends=True)))


def draw_rebalance(pool: Pool) -> Node | None:
    node = pool.one()
    if node is None:
        return None
    op = Rebalance(len(pool.nodes))
    return pool.add(Node(op, (node,), dict(node.columns), replace(node.handed_on.unordered())))
