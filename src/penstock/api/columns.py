"""Columns chosen, added, dropped and renamed: by Spark in the source before the first operator, by Arrow behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.api.checks import check_outputs
from penstock.api.sql import pushed_down, require_no_operator
from penstock.errors import PipelineError
from penstock.graph.nodes import Input, Node, OperatorNode, SourceNode, event_time_of, schema_of
from penstock.operators.columns import require_column
from penstock.operators.failures.careful import OnError
from penstock.operators.rowwise.stateless import Projection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def selected(
    node: Node, columns: Sequence[object], expressions: Mapping[str, object], name: str | None, on_error: OnError
) -> Node:
    """Raises: `PipelineError`."""
    if _in_source(node) and not expressions and all(isinstance(column, str) for column in columns):
        require_no_operator(f"select{columns!r:.100}", name=name, on_error=on_error)
        return pushed_down(node, "select()", _sql("select", tuple(columns)))
    return _computed(node, _chosen(schema_of(node), columns, expressions), "select", name, on_error)


def with_one(node: Node, column: str, expression: object, name: str | None, on_error: OnError) -> Node:
    """All columns, and one more or another one of that name.

    Raises: `PipelineError`.
    """
    if isinstance(expression, str):
        require_no_operator(f"with_column({column!r}, {expression!r:.100})", name=name, on_error=on_error)
        return pushed_down(node, "with_column() with SQL", _sql("with_column", column, expression))
    every = {**_as_they_are(schema_of(node)), column: expression}
    return _computed(node, every, "with_column", name, on_error)


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


def _in_source(node: Node) -> bool:
    """Whether Spark can still compute columns of this stream."""
    return isinstance(node, SourceNode) and node.frame is not None


def _picked(node: Node, what: str, names: Mapping[str, str]) -> Node:
    """Projection under new names, each with the old one."""
    if _in_source(node):
        return pushed_down(node, f"{what}()", _sql("picked", names))
    return _computed(node, {new: pc.field(old) for new, old in names.items()}, what, None, "stop")


def _computed(
    node: Node, expressions: Mapping[str, Any], label: str, name: str | None, on_error: OnError
) -> OperatorNode:
    spec = Projection(name or label, schema_of(node), expressions, on_error=on_error, event_time=event_time_of(node))
    check_outputs(spec)
    return OperatorNode(spec, name is not None, (Input(node),))


def _sql(function: str, *arguments: Any) -> Callable[[DataFrame], DataFrame]:
    """A function of `sqltext`, which is imported only where Spark is."""

    def change(frame: DataFrame) -> DataFrame:
        from penstock.spark import sqltext

        made: DataFrame = getattr(sqltext, function)(frame, *arguments)
        return made

    return change


def _chosen(schema: pa.Schema, columns: Sequence[object], expressions: Mapping[str, object]) -> dict[str, object]:
    """Names of columns stand for themselves; mappings and keywords have expressions by name."""
    picked: dict[str, object] = {}
    for part in (*columns, expressions):
        more: Mapping[str, object] = part if isinstance(part, Mapping) else {str(part): _field(schema, part)}
        for name, expression in more.items():
            if name in picked:
                raise _doubled(name)
            picked[name] = expression
    return picked


def _as_they_are(schema: pa.Schema) -> dict[str, pc.Expression]:
    return {name: pc.field(name) for name in schema.names}


def _field(schema: pa.Schema, column: object) -> pc.Expression:
    if isinstance(column, str) and column in schema.names:
        return pc.field(column)
    raise PipelineError(
        f"select({column!r:.100}) behind an operator: there is no such column; columns are {', '.join(schema.names)}",
        cause="behind an operator select takes names of columns, and Arrow expressions by name; Spark SQL works only"
        " before the first operator",
        next_step='name a column, or write for example select("user", twice=pc.field("amount") * 2)',
    )


def _doubled(name: object) -> PipelineError:
    return PipelineError(
        f"two columns would be called {name!r}",
        cause="two columns of one name cannot be told apart",
        next_step="give one of them another name",
    )
