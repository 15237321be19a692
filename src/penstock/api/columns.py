"""Columns chosen, added, dropped and renamed: by Spark in the source before the first operator, by Arrow behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.api.checks import check_outputs
from penstock.api.sql import by_arrow, in_source, item_by_arrow, pushed_down, require_no_operator, with_expressions
from penstock.errors import PipelineError
from penstock.graph.nodes import Input, Node, OperatorNode, event_time_of, schema_of
from penstock.operators.columns import require_column
from penstock.operators.failures.careful import OnError
from penstock.operators.rowwise.stateless import Projection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def selected(
    node: Node, columns: Sequence[object], expressions: Mapping[str, object], name: str | None, on_error: OnError
) -> Node:
    """Raises: `PipelineError`."""
    every = (*columns, *expressions.values())
    if in_source(node) and all(isinstance(column, str) for column in every):
        require_no_operator(f"select{columns!r:.100}", name=name, on_error=on_error)
        named = (f"{text} AS `{new.replace('`', '``')}`" for new, text in expressions.items())
        return pushed_down(node, "select()", _sql("select", (*columns, *named)))
    return _computed(node, _chosen(node, columns, expressions), "select", name, on_error)


def with_one(node: Node, column: str, expression: object, name: str | None, on_error: OnError) -> Node:
    """All columns, and one more or another one of that name.

    Raises: `PipelineError`.
    """
    if isinstance(expression, str):
        call = f"with_column({column!r}, {expression!r:.100})"
        if in_source(node):
            require_no_operator(call, name=name, on_error=on_error)
            return pushed_down(node, "with_column() with SQL", _sql("with_column", column, expression))
        expression = by_arrow(node, call, expression)
    every = {**_as_they_are(schema_of(node)), column: expression}
    return _computed(node, every, "with_column", name, on_error)


def with_aggregated(node: Node, aggregates: Iterable[object]) -> Node:
    """The stream with a column for each aggregate over an expression in SQL.

    Raises: `PipelineError`.
    """

    def compute(behind: Node, more: dict[str, pc.Expression]) -> Node:
        return _computed(behind, {**_as_they_are(schema_of(behind)), **more}, "with_column", None, "stop")

    return with_expressions(node, aggregates, compute)


def without(node: Node, columns: Sequence[str]) -> Node:
    """Raises: `PipelineError` for a column that is not there, and when none is left."""
    schema = schema_of(node)
    for column in columns:
        require_column("drop()", schema, column, "drop()")
    left = {name: name for name in schema.names if name not in columns}
    if not left:
        raise PipelineError(
            f"drop({', '.join(map(repr, columns))}) leaves no column",
            cause="these are all the columns of the stream",
            next_step="keep at least one",
        )
    return _picked(node, "drop", left)


def renamed(node: Node, names: Mapping[str, str]) -> Node:
    """Raises: `PipelineError` for a column that is not there, and for a name that is taken."""
    schema = schema_of(node)
    for old in names:
        require_column("rename()", schema, old, "rename()")
    after = [names.get(name, name) for name in schema.names]
    for name in after:
        if after.count(name) > 1:
            raise _doubled(name)
    return _picked(node, "rename", dict(zip(after, schema.names, strict=True)))


def _picked(node: Node, what: str, names: Mapping[str, str]) -> Node:
    """Projection under new names, each with the old one."""
    if in_source(node):
        return pushed_down(node, f"{what}()", _sql("picked", names))
    return _computed(node, {new: pc.field(old) for new, old in names.items()}, what, None, "stop")


def _computed(
    node: Node, expressions: Mapping[str, Any], label: str, name: str | None, on_error: OnError
) -> OperatorNode:
    spec = Projection(name or label, schema_of(node), expressions, on_error=on_error, event_time=event_time_of(node))
    check_outputs(spec)
    return OperatorNode(spec, name is not None, (Input(node),))


def computed_node(node: Node, expressions: Mapping[str, pc.Expression], label: str) -> OperatorNode:
    """Columns that Penstock computes for itself."""
    spec = Projection(label, schema_of(node), expressions, event_time=event_time_of(node))
    return OperatorNode(spec, False, (Input(node),))


def _sql(function: str, *arguments: Any) -> Callable[[DataFrame], DataFrame]:
    """A function of `sqltext`, which is imported only where Spark is."""

    def change(frame: DataFrame) -> DataFrame:
        from penstock.spark import sqltext

        made: DataFrame = getattr(sqltext, function)(frame, *arguments)
        return made

    return change


def _chosen(node: Node, columns: Sequence[object], expressions: Mapping[str, object]) -> dict[str, object]:
    """Text is an item of a select list, or ``*``; mappings and keywords have expressions by name."""
    picked: dict[str, object] = {}
    for part in (*columns, expressions):
        for name, expression in _items(node, part).items():
            if name in picked:
                raise _doubled(name)
            picked[name] = expression
    return picked


def _items(node: Node, part: object) -> Mapping[str, object]:
    schema = schema_of(node)
    if isinstance(part, Mapping):
        return {
            name: by_arrow(node, f"select({name}={made!r:.100})", made) if isinstance(made, str) else made
            for name, made in part.items()
        }
    if isinstance(part, str) and part == "*":
        return _as_they_are(schema)
    if isinstance(part, str) and part in schema.names:
        return {part: pc.field(part)}
    if isinstance(part, str):
        return dict([item_by_arrow(node, part)])
    raise PipelineError(
        f"select() got {type(part).__name__} {part!r:.100}",
        cause="an expression needs a name",
        next_step='name columns as text, and expressions by keyword: select("user", twice=pc.field("amount") * 2)',
    )


def _as_they_are(schema: pa.Schema) -> dict[str, pc.Expression]:
    return {name: pc.field(name) for name in schema.names}


def _doubled(name: object) -> PipelineError:
    return PipelineError(
        f"two columns would be called {name!r}",
        cause="two columns of one name cannot be told apart",
        next_step="give one of them another name",
    )
