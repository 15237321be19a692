"""PySpark has the Arrow types of its columns, but no public function that tells them.

The function changed its arguments: up to Spark 4.1 times are UTC unless one says no, afterwards they have no time zone
unless one names it.

Seen in Spark 4.1.4 and 4.3.0.
"""

from __future__ import annotations

import inspect
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import DataType, StructType

_UTC: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_type).parameters else {"timestamp_utc": True}
)


def arrow_schema_of(struct: StructType) -> pa.Schema:
    return to_arrow_schema(struct, prefers_large_types=False, **_UTC)


def arrow_type_of(kind: DataType) -> pa.DataType:
    return to_arrow_type(kind, **_UTC)
