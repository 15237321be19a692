"""Spark takes the plan of a streaming query at its start, so another number of partitions needs another query.

Yet it plans each micro-batch anew, from a logical plan that it keeps in a field. That field is not final. So the plan
is made once more for another number of partitions, around the same sources, and put into the field. Spark reads the
field once for each micro-batch: one that is being planned at that moment has the old plan.

Where the class, the field or the plan is not as expected, nothing is changed. The caller then starts the query anew,
and a warning says once what has changed in Spark.

Seen in Spark 4.3.0.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import pyspark
from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.spark.quirks.stopped import is_stopped

FIELD = "logicalPlan"
_EXCHANGE = "RepartitionByExpression"
_ABOVE_EXCHANGE_MAX = 4
_TO_FACTOR = ({"DirectShufflePartitionID"}, {"Cast"}, {"ShiftRight", "IntegralDivide"}, {"Multiply"})
"""From the partition of a row down to the product of its key group and the number of partitions."""
_PARTITIONS_AT = 2
"""The number among the arguments of the exchange; before it are the expressions and the child."""

_CALLING = "An error occurred while calling"

log = logging.getLogger("penstock.spark")
warned = threading.Event()
"""Once in a program is enough: it is the same for all queries."""


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
        _tell(error, session)
        return False
    return True


def _tell(error: Exception, session: SparkSession) -> None:
    """Says what is not as expected. Without a JVM or a session nothing is, and Spark has not changed."""
    gone = isinstance(error, ConnectionError | Py4JNetworkError) or is_stopped(session.sparkContext)
    if gone or warned.is_set():
        log.debug("the plan of the streaming query stays as it is: %s", error)
        return
    warned.set()
    log.warning(
        "a rescale starts the streaming query anew from now on, which takes longer: PySpark %s does not let its plan be"
        " changed as expected: %s",
        pyspark.__version__,
        _brief(error),
    )


def _brief(error: Exception) -> str:
    """The words that matter: those of an error in the JVM come behind a line that names a call, before its stack.

    >>> _brief(Exception("An error occurred while calling o1.x.\\n: java.lang.NoSuchFieldException: y\\n\\tat z"))
    'java.lang.NoSuchFieldException: y'
    """
    lines = (line.removeprefix(": ").strip() for line in str(error).splitlines())
    return next((line for line in lines if line and not line.startswith(_CALLING)), type(error).__name__)


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
                raise _Unexpected(f"there is {plan.nodeName()} instead of {_EXCHANGE}")
            above.append(plan)
            plan = plan.children().apply(0)
        made = self._exchange(plan, old, new)
        for node in reversed(above):
            made = node.withNewChildren(self._seq(made))
        return made

    def _exchange(self, exchange: Any, old: int, new: int) -> Any:
        found = exchange.partitionExpressions()
        if exchange.numPartitions() != old or found.size() != 1:
            seen = f"{exchange.numPartitions()} partitions by {found.size()} expressions"
            raise _Unexpected(f"its exchange has {seen}, not {old} by one")
        arguments = [exchange.productElement(place) for place in range(exchange.productArity())]
        arguments[0] = self._seq(self._expression(found.apply(0), old, new))
        arguments[_PARTITIONS_AT] = self._jvm.scala.Some(new)
        made = exchange.makeCopy(self._array(arguments))
        if made.numPartitions() != new:
            raise _Unexpected(f"a copy of its exchange has {made.numPartitions()} partitions, not {new}")
        return made

    def _expression(self, expression: Any, old: int, new: int) -> Any:
        above: list[Any] = []
        for names in _TO_FACTOR:
            if expression.getClass().getSimpleName() not in names:
                raise _Unexpected(f"there is {expression.toString()} instead of {' or '.join(sorted(names))}")
            above.append(expression)
            expression = expression.children().apply(0)
        product = above.pop()
        if product.right().toString() != str(old):
            raise _Unexpected(f"a factor is {product.right().toString()}, not {old}")
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
