"""SQL text on streams. Before the first operator it goes into the DataFrame of the source, where Spark computes it
before the shuffle. Behind an operator, and in a test without Spark, Arrow computes it.

Spark sees each stream that it computes as a source of its own: several streams made of one `read` each read the rows
themselves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.api.checks import check_columns
from penstock.errors import PipelineError
from penstock.graph.nodes import Node, SourceNode, schema_of
from penstock.operators.failures.careful import OnError
from penstock.operators.sql.parser import Types, expression_of, item_of
from penstock.operators.sql.tokens import SqlError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


T = TypeVar("T")


def in_source(node: Node) -> bool:
    """Whether Spark can still compute columns of this stream."""
    return isinstance(node, SourceNode) and node.frame is not None


def by_arrow(node: Node, what: str, sql: str) -> pc.Expression:
    """SQL text as an Arrow expression. Raises: `PipelineError`."""
    return _read(node, what, sql, expression_of)


def item_by_arrow(node: Node, sql: str) -> tuple[str, pc.Expression]:
    """An item of a select list as a name and an Arrow expression. Raises: `PipelineError`."""
    return _read(node, f"select({sql!r:.100})", sql, item_of)


def _read(node: Node, what: str, sql: str, read: Callable[[str, pa.Schema, Types], T]) -> T:
    from penstock.spark.schemas import arrow_type

    try:
        return read(sql, schema_of(node), arrow_type)
    except SqlError as error:
        raise PipelineError(
            f"{what}: {error}",
            cause="behind an operator Arrow computes SQL text; it knows a part of Spark SQL",
            next_step='correct it, or write an Arrow expression, such as pc.field("amount") * 2 with pyarrow.compute as'
            " pc, or compute it before the first operator, where Spark does",
        ) from None


def pushed_down(node: Node, what: str, change: Callable[[DataFrame], DataFrame]) -> SourceNode:
    """The source, for which `in_source` holds, with a changed DataFrame.

    Raises: `PipelineError` for text that Spark refuses.
    """
    assert isinstance(node, SourceNode)
    from penstock.spark.schemas import frame_schema

    frame: Any = change(node.frame)  # type: ignore[arg-type]
    schema = frame_schema(frame)
    check_columns(schema, f"source {node.name}")
    if node.event_time is not None and (
        node.event_time not in schema.names or not pt.is_timestamp(schema.field(node.event_time).type)
    ):
        raise PipelineError(
            f"{what} drops the event time {node.event_time!r} of source {node.name}",
            cause="windows, joins and watermarks need it",
            next_step=f"keep the column {node.event_time!r}, or read the source without event_time=",
            column=node.event_time,
        )
    return dataclasses.replace(_with_parts(node, schema, what), schema=schema, frame=frame, derived=True)


def _with_parts(node: SourceNode, schema: pa.Schema, what: str) -> SourceNode:
    """The source without `watermark_by` if its columns are gone.

    Raises: `PipelineError` if the user asked for them.
    """
    gone = [column for column in node.watermark_by if column not in schema.names]
    if not gone:
        return node
    if not node.by_default:
        raise PipelineError(
            f"{what} drops {', '.join(map(repr, gone))}, which watermark_by of source {node.name} needs",
            cause="the parts of the source are told apart by it",
            next_step=f"keep the column {gone[0]!r}, or read the source without watermark_by=",
            column=gone[0],
        )
    assert node.time is not None
    return dataclasses.replace(node, watermark_by=(), time=dataclasses.replace(node.time, by_part=False))


def where_sql(frame: DataFrame, condition: str) -> DataFrame:
    from penstock.spark import sqltext

    return sqltext.where(frame, condition)


def require_no_operator(call: str, *, name: str | None, on_error: OnError) -> None:
    """Raises: `PipelineError` if a call with SQL is given what only an operator can have."""
    given = [f"name={name!r}"] if name is not None else []
    given += [f"on_error={on_error!r}"] if on_error != "stop" else []
    if given:
        raise PipelineError(
            f"{call} with {' and '.join(given)}",
            cause="Spark computes SQL in the source: there is no operator to name, and none in which a record fails",
            next_step=f"leave {' and '.join(given)} out, or write an Arrow expression instead of SQL",
        )


def with_expressions(
    node: Node, aggregates: Iterable[object], compute: Callable[[Node, dict[str, pc.Expression]], Node]
) -> Node:
    """Adds a column for each aggregate over an SQL expression. The text of the expression is the column's name. Spark
    computes it, or `compute` behind an operator.

    Raises: `PipelineError`.
    """
    texts = (getattr(aggregate, "column", None) for aggregate in aggregates)
    missing = dict.fromkeys(text for text in texts if isinstance(text, str) and text not in schema_of(node).names)
    # A plain name that does not exist is a mistake. Spark would match it in another case and rename it.
    texts_missing = [text for text in missing if not text.isidentifier()]
    if not texts_missing:
        return node
    if not in_source(node):
        return compute(node, {text: by_arrow(node, f"the expression {text!r}", text) for text in texts_missing})
    for text in texts_missing:
        node = pushed_down(node, f"the expression {text!r}", _column(text))
    return node


def _column(text: str) -> Callable[[DataFrame], DataFrame]:
    def add(frame: DataFrame) -> DataFrame:
        from penstock.spark import sqltext

        return sqltext.with_column(frame, text, text)

    return add
