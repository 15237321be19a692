"""Converts schemas that users write to Arrow."""

from __future__ import annotations

from typing import TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, StringType, StructType

from penstock.errors import PipelineError
from penstock.hashing import COLLATION
from penstock.spark.ddl import parse
from penstock.spark.quirks.arrowtypes import arrow_schema_of, arrow_type_of

SchemaLike: TypeAlias = str | pa.Schema | StructType


def arrow_schema(schema: SchemaLike) -> pa.Schema:
    """An Arrow schema from DDL text (``"user bigint, total double"``), a Spark `StructType` or an Arrow schema.

    Raises: `PipelineError` when the text cannot be parsed.
    """
    if isinstance(schema, pa.Schema):
        return schema
    struct = _parse(schema) if isinstance(schema, str) else schema
    if not isinstance(struct, StructType):
        raise PipelineError(
            f"{schema!r} is one type, not a list of columns",
            cause="a column needs a name and a type",
            next_step='write a schema such as "user bigint, total double"',
        )
    return _to_arrow(struct)


def arrow_type(text: str | pa.DataType | DataType) -> pa.DataType:
    """An Arrow type from a Spark type name such as ``"bigint"``."""
    if isinstance(text, pa.DataType):
        return text
    return arrow_type_of(_parse(text) if isinstance(text, str) else text)


def frame_schema(frame: DataFrame) -> pa.Schema:
    """The columns of a DataFrame as they will arrive in a subtask."""
    return _to_arrow(frame.schema)


def _to_arrow(struct: StructType) -> pa.Schema:
    schema = arrow_schema_of(struct)
    for index, column in enumerate(struct):
        if isinstance(column.dataType, StringType) and column.dataType != StringType():
            collation = {COLLATION: column.dataType.collation}
            schema = schema.set(index, schema.field(index).with_metadata(collation))
    return schema


def _parse(text: str) -> DataType:
    known = parse(text)
    if known is not None:
        return known
    try:
        return DataType.fromDDL(text)
    except Exception as error:
        if "SESSION_OR_CONTEXT_NOT_EXISTS" in str(error):
            first, cause = (
                "it needs a SparkSession",
                "a typo, or a part of Spark's DDL that only Spark can read",
            )
        else:
            first, cause = str(error).strip().partition("\n")[0], "it is not a list of columns in Spark's DDL form"
        raise PipelineError(
            f"cannot read the schema {text!r}: {first}",
            cause=cause,
            next_step='write it like "user bigint, name string, ts timestamp"',
        ) from None
