"""Starting from a checkpoint: does it fit the pipeline, where does the source stand, what is dropped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from penstock.protocol.ids import NO_CHECKPOINT, NO_GENERATION, BatchId
from penstock.protocol.manifest import (
    FORMAT_VERSION,
    EdgeState,
    Manifest,
    OperatorShape,
    PipelineShape,
    SinkState,
    SourcePosition,
)

Verdict = Literal["same", "extended", "new", "missing", "incompatible"]
Columns = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Whether one part of a pipeline fits its checkpoint."""

    what: str
    verdict: Verdict
    detail: str = ""

    @property
    def fits(self) -> bool:
        return self.verdict in {"same", "extended"}


def compare_shapes(
    stored: PipelineShape, current: PipelineShape, growing: Mapping[str, frozenset[str]]
) -> tuple[Comparison, ...]:
    """Part by part: sources, operators, edges and sinks of the checkpoint against those of the pipeline.

    `growing` names, by operator, the tables of state that may have more columns than the checkpoint's.
    """
    rows: list[Comparison] = []
    rows += _compare("source", stored.sources, current.sources)
    told = {name: _as_told(shape, stored.operators.get(name)) for name, shape in current.operators.items()}
    for row in _compare("operator", stored.operators, told):
        name = row.what.partition(" ")[2]
        more = None
        if row.verdict == "incompatible":
            more = _growth(stored.operators[name], told[name], growing.get(name, frozenset()))
        rows.append(row if more is None else Comparison(row.what, "extended", f"new in its state: {more}"))
    rows += _compare("edge", stored.edges, current.edges)
    rows += _compare("sink", dict.fromkeys(stored.sinks, ""), dict.fromkeys(current.sinks, ""))
    return tuple(rows)


def _as_told(current: OperatorShape, stored: OperatorShape | None) -> OperatorShape:
    """The operator as far as the checkpoint can tell: older ones do not say what is computed."""
    unknown = stored is not None and stored.computed is msgspec.UNSET
    return msgspec.structs.replace(current, computed=msgspec.UNSET) if unknown else current


def _compare(kind: str, stored: Mapping[str, object], current: Mapping[str, object]) -> list[Comparison]:
    rows = []
    for name in dict.fromkeys((*stored, *current)):
        what = f"{kind} {name}"
        if name not in current:
            rows.append(Comparison(what, "missing", "in the checkpoint, not in the pipeline"))
        elif name not in stored:
            rows.append(Comparison(what, "new", "in the pipeline, not in the checkpoint"))
        elif stored[name] != current[name]:
            rows.append(Comparison(what, "incompatible", _difference(stored[name], current[name])))
        else:
            rows.append(Comparison(what, "same"))
    return rows


def _growth(stored: OperatorShape, current: OperatorShape, growing: frozenset[str]) -> str | None:
    """What an operator's state has more than in the checkpoint; None if something else is different."""
    if msgspec.structs.replace(stored, state=current.state) != current:
        return None
    more: list[str] = []
    for table in dict.fromkeys((*stored.state, *current.state)):
        old, new = stored.state.get(table), current.state.get(table)
        if old == new:
            continue
        if new is None or table not in growing or (added := added_columns(old or (), new)) is None:
            return None
        more += [table] if old is None and table else [f"{name} {kind}" for name, kind in added]
    return ", ".join(more)


def added_columns(old: Columns, new: Columns) -> Columns | None:
    """The columns of `new` that are not in `old`; None unless those of `old` are all there, in the same order.

    >>> added_columns((("a", "int64"),), (("b", "string"), ("a", "int64")))
    (('b', 'string'),)
    """
    left = list(reversed(old))
    added = []
    for column in new:
        if left and left[-1] == column:
            left.pop()
        else:
            added.append(column)
    return None if left else tuple(added)


def _difference(stored: object, current: object) -> str:
    if isinstance(stored, msgspec.Struct) and isinstance(current, msgspec.Struct):
        pairs = ((name, getattr(stored, name), getattr(current, name)) for name in stored.__struct_fields__)
        return "; ".join(f"{name}: {_difference(old, new)}" for name, old, new in pairs if old != new)
    return f"checkpoint has {_plain(stored)}, pipeline has {_plain(current)}"


def _plain(value: object) -> str:
    """For people.

    >>> _plain({"": (("user", "int64"), ("n", "int64")), "timers": ()})
    '(user int64, n int64) and timers ()'
    """
    if isinstance(value, dict):
        return " and ".join(f"{name} {_plain(part)}".lstrip() for name, part in value.items()) or "none"
    if isinstance(value, tuple) and all(isinstance(part, tuple) for part in value):
        return "(" + ", ".join(" ".join(map(str, part)) for part in value) + ")"
    return str(value)


@dataclass(frozen=True, slots=True)
class TakeBatch:
    """The micro-batch follows the last one ingested."""


@dataclass(frozen=True, slots=True)
class SkipBatch:
    """The micro-batch is already part of the checkpoint: Spark replays it after a restart."""


@dataclass(frozen=True, slots=True)
class RefuseBatch:
    """The source's checkpoint does not fit ours."""

    why: str


def judge_batch(
    manifest: Manifest, batch_id: BatchId, offsets_digest: str | None, query_id: str | None
) -> TakeBatch | SkipBatch | RefuseBatch:
    """Whether an offered micro-batch is the next one, a replay, or from a source checkpoint that does not fit."""
    position = manifest.source
    if position.query_id is not None and query_id is not None and position.query_id != query_id:
        return RefuseBatch(f"it belongs to the streaming query {query_id}, ours was {position.query_id}")
    last = -1 if position.batch_id is None else position.batch_id
    if batch_id == last + 1:
        return TakeBatch()
    if batch_id == last:
        if position.offsets_digest not in (None, offsets_digest):
            return RefuseBatch("its offsets are not those that were ingested under the same batch id")
        return SkipBatch()
    return RefuseBatch("it is older" if batch_id < last else "batches in between are missing")


def first_manifest(
    *, identity: str, library: str, max_parallelism: int, shape: PipelineShape, created_at: str
) -> Manifest:
    """The empty checkpoint a new query starts from; it is never published itself."""
    return Manifest(
        format=FORMAT_VERSION,
        library=library,
        identity=identity,
        checkpoint=NO_CHECKPOINT,
        parent=None,
        generation=NO_GENERATION,
        created_at=created_at,
        max_parallelism=max_parallelism,
        parallelism={},
        shape=shape,
        source=SourcePosition(),
        edges={name: EdgeState() for name in shape.edges},
        state={},
        sinks={name: SinkState() for name in shape.sinks},
    )


@dataclass(frozen=True, slots=True)
class Dropped:
    """In-flight records of one edge that a user had thrown away."""

    edge: str
    rows: int
    bytes: int


def edges_named(shape: PipelineShape, names: Iterable[str]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Edges by their own names, or by that of an operator whose stage they feed; and the names that mean none."""
    edges: set[str] = set()
    unknown = []
    for name in names:
        operator = shape.operators.get(name)
        stage = None if operator is None else operator.stage
        found = {edge for edge, ends in shape.edges.items() if edge == name or ends.consumer == stage}
        edges |= found
        if not found:
            unknown.append(name)
    return frozenset(edges), tuple(unknown)


def drop_in_flight(manifest: Manifest, edges: frozenset[str]) -> tuple[Manifest, tuple[Dropped, ...]]:
    """The checkpoint without what is in flight on some edges. What is dropped is counted, so records still add up."""
    dropped = tuple(
        Dropped(name, edge.rows_in_flight, edge.bytes_in_flight)
        for name, edge in manifest.edges.items()
        if name in edges and edge.rows_in_flight
    )
    emptied = {
        part.edge: msgspec.structs.replace(edge, dropped=edge.dropped + part.rows, segments=())
        for part in dropped
        for edge in (manifest.edges[part.edge],)
    }
    return msgspec.structs.replace(manifest, edges={**manifest.edges, **emptied}), dropped
