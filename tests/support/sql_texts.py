"""SQL that Arrow computes behind operators, and rows to compute it of."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa

SQL_TEXTS = (
    "a * 2", "a / 2", "a % 3", "-a", "a DIV 2", "a + 1.5e0", "i + 1", "i * a", "a - i", "1 + 2 * 3 - 4",
    "a > 0 AND d < 2", "b OR a > 0", "NOT b", "b IS NULL OR NOT b", "b IS NOT TRUE", "b IS FALSE",
    "a IN (1, 2, NULL)", "a NOT IN (1, 2)", "a BETWEEN -10 AND 0", "a NOT BETWEEN 0 AND 5", "a <=> NULL", "a == 1",
    "s LIKE 't%'", "s NOT LIKE '_e%'", "s RLIKE '^[a-t]'", "s = \"tea\"", "s IS NULL", "s > 'm'",
    "CASE WHEN a > 0 THEN 'p' WHEN a < 0 THEN 'n' ELSE 'z' END", "CASE a WHEN 1 THEN 10 END",
    "CAST(a AS STRING)", "CAST(d AS INT)", "CAST(a AS DECIMAL(10, 2))", "CAST(ts AS DATE)", "CAST('7' AS BIGINT) + a",
    "CAST(b AS INT)", "CAST(i AS DOUBLE) / 3",
    "round(d)", "round(d, 1)", "ceil(d)", "floor(d)", "abs(a)", "sqrt(abs(d))", "power(d, 2)", "sign(d)", "mod(a, 3)",
    "greatest(a, 0)", "least(a, i)", "coalesce(a, 0)", "ifnull(s, 'none')", "nullif(a, 1)", "if(a > 0, a, -1)",
    "s || '!'", "concat(s, '-', s)", "upper(trim(s))", "lower(s)", "length(s)", "substring(s, 2, 2)", "substr(s, 2)",
    "replace(s, 'e', 'E')", "contains(s, 'e')", "startswith(s, 't')", "endswith(s, 'a')", "reverse(s)", "ltrim(s)",
    "ts > '2024-01-01'", "ts >= TIMESTAMP '2024-01-02 00:00:00'", "ts + INTERVAL 5 MINUTES", "ts - INTERVAL '2' DAY",
    "date_trunc('hour', ts)", "date_trunc('month', ts)", "year(ts)", "month(ts)", "day(ts)", "hour(ts)", "minute(ts)",
    "second(ts)", "quarter(ts)", "dayofyear(ts)", "to_date(ts) = DATE '2024-01-02'",
    "p.x + 1", "size(l)", "m > 1", "A + 1", "`a` + 1", "isnull(a)", "isnotnull(s)", "true AND b", "NULL IS NULL",
)  # fmt: skip


def sql_table() -> pa.Table:
    """Numbers of both signs, ties, nulls, spaces, and letters beyond ASCII."""
    moment = datetime(2024, 1, 2, 3, 4, 5, 678901, UTC)
    return pa.table(
        {
            "a": pa.array([1, -7, None, 5], pa.int64()),
            "i": pa.array([3, None, -3, 2_000_000], pa.int32()),
            "d": pa.array([1.5, -2.5, None, 0.25], pa.float64()),
            "s": pa.array(["tea", " x ", None, "été"], pa.string()),
            "b": pa.array([True, None, False, True], pa.bool_()),
            "ts": pa.array([moment, moment.replace(year=2023, month=12), None, moment], pa.timestamp("us", "UTC")),
            "p": pa.array([{"x": 1}, {"x": 2}, None, {"x": None}], pa.struct([("x", pa.int64())])),
            "l": pa.array([[1], [], [1, 2], [3]], pa.list_(pa.int64())),
            "m": pa.array([Decimal("1.50"), Decimal("-1.00"), None, Decimal("0.25")], pa.decimal128(10, 2)),
        }
    )
