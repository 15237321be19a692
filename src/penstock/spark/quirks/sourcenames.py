"""Spark 4.3 can keep offsets by the names of sources, but only of readers that were named when they were made, in a
session with that setting; and it takes no name later.

Its relations have a method that gives them a name. So Penstock makes the plan of a frame once more with named
relations, and the program need not know. The setting is on only while a streaming query with a new log is started:
an entry of the log repeats it, and Spark reads it from there.

Seen in Spark 4.3.0.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

from penstock.protocol.sourcelog import EVOLUTION

_FIRST = (4, 3)
"""Spark 4.2 has the setting, too; how it treats such a log was not tried."""
_SETTINGS = {EVOLUTION: "true", "spark.sql.streaming.offsetLog.formatVersion": "2"}
_setting = threading.Lock()
"""Two queries that start at the same time in one session must not restore each other's setting."""


class NoNames(Exception):
    """A frame whose readers cannot be named."""


def relations_of(frame: DataFrame) -> list[Any]:
    """Spark's relations of the streaming readers of a frame, in the order of its plan.

    Raises: `NoNames`.
    """
    if tuple(map(int, frame.sparkSession.version.split(".")[:2])) < _FIRST:
        raise NoNames("Spark before 4.3 knows sources by their places")
    try:
        leaves = frame._jdf.queryExecution().analyzed().collectLeaves()  # noqa: SLF001 - there is no other way
        found = [leaves.apply(number) for number in range(leaves.size())]
        streaming = [leaf for leaf in found if leaf.isStreaming()]
        for leaf in streaming:
            leaf.withSourceIdentifyingName(leaf.sourceIdentifyingName())
    except (Py4JError, AttributeError) as error:
        raise NoNames("a reader of the program cannot be given a name in this version of Spark") from error
    return streaming


def readers_of(frames: Sequence[DataFrame]) -> list[tuple[str, ...]]:
    """What each frame is made of: ``FileSource[/orders]``, ``kafka``. Raises: `NoNames`."""
    relations = [relations_of(frame) for frame in frames]
    everything = [relation for found in relations for relation in found]
    for number, relation in enumerate(everything):
        if any(relation.equals(other) for other in everything[number + 1 :]):
            raise NoNames("a reader of the program is used twice, and Spark reads it once for both")
    return [tuple(str(relation.toString()) for relation in found) for found in relations]


def with_names(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    """The same frame, its readers with names."""
    session = frame.sparkSession
    jvm: Any = session.sparkContext._jvm  # noqa: SLF001 - there is no other way
    left = list(reversed(names))

    def named(plan: Any) -> Any:
        children = plan.children()
        count = children.size()
        if count:
            made = [named(children.apply(number)) for number in range(count)]
            return plan.withNewChildren(jvm.org.apache.spark.api.python.PythonUtils.toSeq(made))
        if not plan.isStreaming():
            return plan
        return plan.withSourceIdentifyingName(jvm.org.apache.spark.sql.catalyst.streaming.UserProvided(left.pop()))

    plan = named(frame._jdf.queryExecution().analyzed())  # noqa: SLF001
    assert not left, "every name is that of a reader"
    made = jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan)  # noqa: SLF001
    return DataFrame(made, session)


@contextmanager
def names_in_log(session: SparkSession, *, new_log: bool) -> Iterator[None]:
    """For the start of a streaming query. One whose readers have no names must not start while another one's setting is
    on: Spark would refuse it."""
    with _setting:
        if not new_log:
            yield
            return
        before = {name: session.conf.get(name, None) for name in _SETTINGS}
        for name, value in _SETTINGS.items():
            session.conf.set(name, value)
        try:
            yield
        finally:
            for name, old in before.items():
                if old is None:
                    session.conf.unset(name)
                else:
                    session.conf.set(name, old)
