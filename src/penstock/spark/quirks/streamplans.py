"""Spark takes the plan of a streaming query at its start, so another number of partitions needs another query.

Yet it plans each micro-batch anew, from a logical plan that it keeps in a field. That field is not final. So the plan
is made once more for another number of partitions, around the same sources, and put into the field. Spark reads the
field once for each micro-batch: one that is being planned at that moment has the old plan.

Where the class, the field or the plan is not as expected, nothing is changed. The caller then starts the query anew.

Seen in Spark 4.3.0.
"""

from __future__ import annotations

import logging
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

FIELD = "logicalPlan"
_EXCHANGE = "RepartitionByExpression"
_ABOVE_EXCHANGE_MAX = 4
_TO_FACTOR = ({"DirectShufflePartitionID"}, {"Cast"}, {"ShiftRight", "IntegralDivide"}, {"Multiply"})
"""From the partition of a row down to the product of its key group and the number of partitions."""
_PARTITIONS_AT = 2
"""The number among the arguments of the exchange; before it are the expressions and the child."""

log = logging.getLogger("penstock.spark")


class _Unexpected(Exception):
    """The plan is not the one that was asked for."""


def change_partitions(query: StreamingQuery, session: SparkSession, *, old: int, new: int) -> bool:
    """Has Spark plan the next micro-batches with `new` partitions in the topmost exchange, which was made by
    ``repartitionById(old, ... * old ...)``. False where that cannot be done; the plan is as before then."""
    try:
        execution: Any = query._jsq.streamingQuery()  # noqa: SLF001 - no public way to the plan of a running query
        field = execution.getClass().getDeclaredField(FIELD)
        made = _Maker(session).plan(execution.logicalPlan(), old, new)
        field.setAccessible(True)
        field.set(execution, made)
    except Exception as error:  # of whatever kind: the other way is always there
        log.debug("the plan of the streaming query stays as it is: %s", error)
        return False
    return True


class _Maker:
    """Makes plans with another number of partitions."""

    def __init__(self, session: SparkSession) -> None:
        context = session.sparkContext
        self._jvm: Any = context._jvm  # noqa: SLF001 - plans are in the JVM
        self._gateway: Any = context._gateway  # noqa: SLF001
        self._parser: Any = session._jsparkSession.sessionState().sqlParser()  # noqa: SLF001

    def plan(self, plan: Any, old: int, new: int) -> Any:
        above: list[Any] = []
        while plan.nodeName() != _EXCHANGE:
            if len(above) == _ABOVE_EXCHANGE_MAX or plan.children().size() != 1:
                raise _Unexpected(f"no exchange, but {plan.nodeName()}")
            above.append(plan)
            plan = plan.children().apply(0)
        made = self._exchange(plan, old, new)
        for node in reversed(above):
            made = node.withNewChildren(self._seq(made))
        return made

    def _exchange(self, exchange: Any, old: int, new: int) -> Any:
        found = exchange.partitionExpressions()
        if exchange.numPartitions() != old or found.size() != 1:
            raise _Unexpected(f"{exchange.numPartitions()} partitions by {found.size()} expressions")
        arguments = [exchange.productElement(place) for place in range(exchange.productArity())]
        arguments[0] = self._seq(self._expression(found.apply(0), old, new))
        arguments[_PARTITIONS_AT] = self._jvm.scala.Some(new)
        made = exchange.makeCopy(self._array(arguments))
        if made.numPartitions() != new:
            raise _Unexpected(f"an exchange of {made.numPartitions()} partitions")
        return made

    def _expression(self, expression: Any, old: int, new: int) -> Any:
        above: list[Any] = []
        for names in _TO_FACTOR:
            if expression.getClass().getSimpleName() not in names:
                raise _Unexpected(f"the expression {expression.toString()}")
            above.append(expression)
            expression = expression.children().apply(0)
        product = above.pop()
        if product.right().toString() != str(old):
            raise _Unexpected(f"the factor {product.right().toString()}")
        made = product.withNewChildren(self._seq(product.left(), self._parser.parseExpression(f"{new}L")))
        for node in reversed(above):
            others = node.children()
            rest = [others.apply(place) for place in range(1, others.size())]
            made = node.withNewChildren(self._seq(made, *rest))
        return made

    def _seq(self, *parts: Any) -> Any:
        return self._jvm.org.apache.spark.api.python.PythonUtils.toSeq(list(parts))

    def _array(self, parts: list[Any]) -> Any:
        array = self._gateway.new_array(self._jvm.java.lang.Object, len(parts))
        for place, part in enumerate(parts):
            array[place] = part
        return array
