"""`DataFrame.mapInArrow` takes a dot in a column's name for a field of a struct, and pickles its function each time.

It looks up all columns by their plain names. Here the same is done in two steps. The caller chooses the columns, and
makes the call once. The call can then be put on every DataFrame that has these columns.

Seen in Spark 4.3.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import StructType
from pyspark.util import PythonEvalType


def call_of(
    work: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], result: StructType, columns: Sequence[Column]
) -> Column:
    """The work as a function of columns."""
    function = pandas_udf(work, result, PythonEvalType.SQL_MAP_ARROW_ITER_UDF)  # type: ignore[call-overload]
    call: Column = function(*columns)
    return call


def mapped(rows: DataFrame, call: Column) -> DataFrame:
    """``rows.mapInArrow(work, result)``."""
    return DataFrame(rows._jdf.mapInArrow(call._jc, False, None), rows.sparkSession)  # noqa: SLF001
