"""Compares what an operator gave with what Spark SQL gives."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from pyspark.sql import SparkSession

from tests.spark.oracle_cases import Case
from tests.spark.oracle_data import END, Row


def sql_session(spark: SparkSession) -> SparkSession:
    """A session for queries over a few rows, each run once: compiling them would take most of the time."""
    session = spark.newSession()
    for name, setting in (("codegen.wholeStage", "false"), ("codegen.factoryMode", "NO_CODEGEN"),
                          ("adaptive.enabled", "false"), ("shuffle.partitions", "1")):  # fmt: skip
        session.conf.set(f"spark.sql.{name}", setting)
    return session


def difference(spark: SparkSession, case: Case, emitted: Iterable[Row]) -> str:
    """What is missing and what is too much, in words; empty if nothing is. Results of the last rows do not count."""
    found = Counter(comparable(case.plain(row)) for row in newest(case, emitted) if not of_the_end(row))
    wanted = Counter(comparable(row) for row in spark.sql(case.sql).toArrow().to_pylist() if not of_the_end(row))
    return "\n".join(
        f"{sign} {count} × " + ", ".join(f"{name}={value}" for name, value in row)
        for sign, rows in (("missing", wanted - found), ("too much", found - wanted))
        for row, count in rows.items()
    )


def newest(case: Case, emitted: Iterable[Row]) -> list[Row]:
    if not case.key:
        return list(emitted)
    versions: dict[Any, Row] = {}
    for row in sorted(emitted, key=case.version):
        versions[tuple(plain(row[name]) for name in case.key)] = row
    return list(versions.values())


def of_the_end(row: Row) -> bool:
    return row.get("k") == END


def comparable(row: Row) -> tuple[Any, ...]:
    return tuple((name, plain(value)) for name, value in sorted(row.items()))


def plain(value: Any) -> Any:
    """Equal for what counts as equal: floats to nine digits, NaN with NaN, moments in UTC.

    Floats are moved a little, as many of these, such as 0.734375, end in the middle between two of nine digits.
    """
    match value:
        case float() if math.isnan(value):
            return "NaN"
        case float():
            return float(f"{value * (1 + 1e-12) + 0.0:.9g}")
        case datetime():
            return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
        case Decimal():
            return value.normalize()
        case list():
            return tuple(map(plain, value))
    return value
