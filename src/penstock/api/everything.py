"""One key for all rows: a constant column that users do not see. It is added in front of an operator that needs a key,
and dropped behind it."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock.api.columns import computed_node
from penstock.api.sql import in_source, pushed_down
from penstock.errors import PipelineError
from penstock.graph.nodes import Node, OperatorNode, schema_of
from penstock.operators.rowwise.stateless import Projection

ALL = "__all"
"""The name of the column, and of the key in the state."""


def with_one_key(node: Node) -> Node:
    """Raises: `PipelineError` if there is such a column."""
    names = schema_of(node).names
    if ALL in names:
        raise PipelineError(
            f"the stream has a column {ALL!r}",
            cause="aggregates, windows and top_n without a key add a column of that name for themselves",
            next_step=f"rename it: rename({{{ALL!r}: 'whole'}})",
            column=ALL,
        )
    if in_source(node):
        return pushed_down(node, "the one key", lambda frame: frame.selectExpr("*", f"0 AS `{ALL}`"))
    zero = pc.scalar(pa.scalar(0, pa.int32())).cast(pa.int32())
    return computed_node(node, {**{name: pc.field(name) for name in names}, ALL: zero}, "with_one_key")


def without_key(node: OperatorNode) -> OperatorNode:
    return computed_node(node, {name: pc.field(name) for name in schema_of(node).names if name != ALL}, "of_all")


def behind_key(node: Node) -> Node:
    """The operator itself, of a stream whose one key was dropped behind it."""
    if isinstance(node, OperatorNode) and isinstance(node.spec, Projection) and ALL in node.spec.input_schema.names:
        return node.inputs[0].node
    return node
