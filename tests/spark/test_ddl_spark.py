"""Schemas read without a session are what Spark reads."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType

from penstock.spark.ddl import parse

KNOWN = [
    "bigint", "LONG", "int", "integer", "smallint", "tinyint", "byte", "short", "float", "real", "double", "string",
    "boolean", "binary", "date", "timestamp", "timestamp_ntz", "timestamp_ltz", "decimal", "dec(9)", "numeric(9, 3)",
    "array<bigint>", "map<string,array<int>>", "struct<a:int,b:string>", "struct<a int, `b c`: map<int,int>>",
    "user bigint", "user BIGINT, name string", "a: int, b: double", "`odd ``name` array<struct<x:decimal(38,18)>>",
    "n bigint NOT NULL", "a int not null, b struct<c: int Not Null, d: int>",
    "int int", "date date, decimal decimal(5,5)", "  n   bigint ,m int ", "_x int, x1 string",
]  # fmt: skip
UNKNOWN = [
    "n bigint NOT",
    "s string COLLATE UNICODE",
    "interval day",
    "variant",
    "varchar(9)",
    "nonsense",
    "a b c",
]
WRONG = ["", "n", "array<", "decimal(3,9)", "n bigint,", "n-m int", "map<int>"]


@pytest.mark.parametrize("text", KNOWN)
def test_known_text_means_the_same(spark: SparkSession, text: str) -> None:
    """E5."""
    assert parse(text) == DataType.fromDDL(text)


@pytest.mark.parametrize("text", [*UNKNOWN, *WRONG])
def test_the_rest_is_left_to_spark(text: str) -> None:
    """E5."""
    assert parse(text) is None
