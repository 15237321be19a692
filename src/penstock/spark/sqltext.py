"""Spark SQL text of a user, put into the DataFrame of a source."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.errors import PipelineError
from penstock.spark.quirks.querylogs import without_query_logs
from penstock.spark.quirks.sqlplans import is_deterministic, root_of


def select(frame: DataFrame, expressions: tuple[str, ...]) -> DataFrame:
    """Raises: `PipelineError`."""
    return _plain(frame, f"select{expressions!r}", lambda: frame.selectExpr(*expressions))


def picked(frame: DataFrame, names: Mapping[str, str]) -> DataFrame:
    """These columns: new names, each with the old one. Dots in names are part of them."""
    return frame.select(*(frame[f"`{old.replace('`', '``')}`"].alias(new) for new, old in names.items()))


def where(frame: DataFrame, condition: str) -> DataFrame:
    """Raises: `PipelineError`."""
    return _plain(frame, f"filter({condition!r})", lambda: frame.where(condition))


def with_column(frame: DataFrame, name: str, expression: str) -> DataFrame:
    """Raises: `PipelineError`."""
    what = f"the expression {expression!r}"
    made = _plain(frame, what, lambda: frame.withColumn(name, F.expr(expression)))
    if root_of(made) == "Generate" != root_of(frame):
        raise PipelineError(
            f"{what} makes several rows of one",
            cause="explode() and the like; other aggregates beside it would count each row several times",
            next_step="write it before pen.read, or in select(…)",
        )
    return made


def _plain(frame: DataFrame, what: str, make: Callable[[], DataFrame]) -> DataFrame:
    """What `make` gives, if it computes rows from single rows, the same ones each time."""
    try:
        with without_query_logs():
            made = make()
    except PySparkException as error:
        raise PipelineError(
            f"{what}: {_first_line(error)}",
            cause="Spark SQL cannot read it, or it names a column that is not there",
            next_step=f"write Spark SQL over the columns {', '.join(frame.columns)}",
        ) from None
    if root_of(made) in ("Aggregate", "Window") and root_of(frame) != root_of(made):
        raise PipelineError(
            f"{what} is about several rows at once",
            cause="an aggregate or window function of Spark SQL",
            next_step="use key_by(…).aggregate(…) or window(…), which keep their state in the checkpoint",
        )
    if not is_deterministic(made) and is_deterministic(frame):
        raise PipelineError(
            f"{what} gives other rows each time",
            cause="rand(), uuid() and the like; Spark may compute the rows of a micro-batch again after a failure",
            next_step="derive such values from columns, for example xxhash64(id)",
        )
    return made


def _first_line(error: PySparkException) -> str:
    return str(error).strip().partition("\n")[0]
