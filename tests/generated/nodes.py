"""The specification of a pipeline: a graph of nodes, each with its columns and with what is known of its rows.

Nothing here knows how Penstock runs a pipeline. An operation says how it is written with the public API, and which
SQL over the rows of its inputs gives its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Protocol

import penstock as pen
from tests.generated.kinds import LINE, TIME, Columns, Kind

LINEAGE = ("n", "mb", "part", "src")
"""Where a row comes from: its number, its micro-batch, its partition of that, its source."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of the rows of a stream."""

    size: int
    """About how many there are."""
    order: tuple[str, ...] = ()
    """The rows of a key arrive in the order of these columns, whatever the key is; empty: nobody knows."""
    traced: frozenset[int] = frozenset()
    """Sources whose rows came on one path each, with their lineage: those of one do not overtake each other."""
    stepwise: bool = False
    """Rows have their lineage, and only operations on single rows are behind them: of each source none overtakes one of
    an earlier micro-batch."""
    within: tuple[str, ...] = ()
    """`order` and `traced` hold only among rows that are equal in these."""
    time: str | None = None
    """The column with event time."""
    late: int = 0
    """How many seconds the watermark is behind, where rows may be later than that; 0: none is late."""
    ends: bool = False
    """Event time is the end of a window."""
    updated: tuple[str, ...] = ()
    """Rows are updated: the newest of those that are equal in these columns counts."""
    newest: tuple[str, ...] = ()
    """SQL by which the newest one is largest."""

    def unordered(self) -> Facts:
        return replace(self, order=(), traced=frozenset(), within=(), stepwise=False)

    def mixed(self) -> Facts:
        """Nothing is known of rows of one micro-batch."""
        return replace(self, order=(), traced=frozenset(), within=())

    def ordered_for(self, keys: Iterable[str]) -> bool:
        return bool(self.order) and set(self.within) <= set(keys)

    def traced_for(self, keys: Iterable[str]) -> bool:
        return bool(self.traced) and set(self.within) <= set(keys)


class Op(Protocol):
    """An operation on streams, written down."""

    def build(self, *inputs: pen.Stream) -> pen.Stream: ...

    def sql(self, *inputs: str) -> str: ...


@dataclass(frozen=True, slots=True)
class Check:
    """What is not compared with SQL but held by the rows that came out."""

    sql: str
    """Over `out`: gives the rows that are wrong."""
    ignored: tuple[str, ...]
    """Columns that SQL does not know."""


@dataclass(eq=False, slots=True)
class Node:
    """A stream of the pipeline."""

    op: Op
    inputs: tuple[Node, ...]
    columns: Columns
    facts: Facts
    check: Check | None = None
    must: bool = False
    """Somebody has to read it."""
    number: int = 0
    ordinary: bool = True
    """Other operations may follow."""

    @property
    def handed_on(self) -> Facts:
        """What is known behind an operation: where rows are late, when they arrive there is not known."""
        return replace(self.facts, time=None, late=0) if self.facts.late else self.facts

    def where(self, *wanted: str) -> list[str]:
        """Columns whose kinds have all of these properties."""
        return [name for name, kind in self.columns.items() if all(getattr(kind, part) for part in wanted)]

    @property
    def ordered(self) -> bool:
        return bool(self.facts.order)

    @property
    def timed(self) -> bool:
        return self.facts.time is not None

    @property
    def values(self) -> Columns:
        """What a source's rows are about."""
        return {name: kind for name, kind in self.columns.items() if kind not in (LINE, TIME)}

    def has_lineage(self) -> bool:
        return all(self.columns.get(name) == LINE for name in LINEAGE)

    def __str__(self) -> str:
        inputs = ", ".join(f"t{node.number}" for node in self.inputs)
        columns = ", ".join(f"{name} {kind}" for name, kind in self.columns.items())
        return f"t{self.number} = {self.op!r} of ({inputs})\n      # {columns}"


@dataclass(slots=True)
class Pool:
    """All streams so far."""

    chance: Random
    on_spark: bool = False
    nodes: list[Node] = field(default_factory=list)
    names: int = 0
    focus: Node | None = None
    """What the next operation works on, if it can."""

    def add(self, node: Node) -> Node:
        node.number = len(self.nodes)
        self.nodes.append(node)
        return node

    def one(
        self, fits: Callable[[Node], bool] = lambda _: True, *, size: int = 2000, updated: bool = False
    ) -> Node | None:
        """A stream that something can follow, the newer ones more often."""
        fitting = [
            node for node in self.nodes
            if node.ordinary and node.facts.size <= size and (updated or not node.facts.updated) and fits(node)
        ]  # fmt: skip
        if not fitting:
            return None
        if self.focus in fitting:
            return self.focus
        return fitting[max(self.chance.randrange(len(fitting)) for _ in range(self.chance.choice((1, 1, 2))))]

    def name(self, stem: str) -> str | None:
        """None, so that the name is made, as often as one of its own."""
        if self.chance.random() < 0.55:
            return None
        self.names += 1
        return f"{self.chance.choice((stem, 'my', 'x-to-union', 'union-2', 'a.b', 'sink'))}{self.names}"

    def keys(self, node: Node, count: int | None = None) -> tuple[str, ...]:
        """Columns to group by: mostly one in which values meet."""
        fitting = node.where("key")
        values = [name for name in fitting if name in node.values]
        some = values if values and self.chance.random() < 0.85 else fitting
        if not some:
            return ()
        wanted = count or self.chance.choice((1, 1, 1, 2))
        return tuple(self.chance.sample(some, min(wanted, len(some))))


def kept(columns: Columns, names: Iterable[str]) -> Columns:
    return {name: columns[name] for name in names}


def lineage_of(node: Node) -> Columns:
    """The columns by which order is known."""
    return {name: kind for name, kind in node.columns.items() if kind in (LINE, TIME)}


def some(chance: Random, columns: dict[str, Kind], least: int = 0) -> list[str]:
    names = list(columns)
    return sorted(chance.sample(names, chance.randint(min(least, len(names)), len(names))), key=names.index)
