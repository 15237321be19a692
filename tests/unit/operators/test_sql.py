"""SQL text as Arrow expressions; that values are Spark's is in tests/spark/test_sql_text.py."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock.operators.sql.parser import computed, expression_of
from penstock.operators.sql.tokens import SqlError
from penstock.spark.schemas import arrow_type
from tests.support.sql_texts import SQL_TEXTS, sql_table


def values(sql: str) -> list[Any]:
    table = sql_table()
    return computed(table, {"made": expression_of(sql, table.schema, arrow_type)}).column(0).to_pylist()


@pytest.mark.parametrize("sql", SQL_TEXTS)
def test_every_text_can_be_computed_row_by_row(sql: str) -> None:
    table = sql_table()
    made = expression_of(sql, table.schema, arrow_type)
    one_by_one = [computed(table.slice(row, 1), {"made": made}).column(0).to_pylist()[0] for row in range(4)]
    assert one_by_one == values(sql)


def test_unknown_is_neither_true_nor_false() -> None:
    assert values("b AND a > 100") == [False, False, False, False]
    assert values("b OR a > 0") == [True, None, None, True]
    assert values("a IN (1, NULL)") == [True, None, None, None]


def test_numbers_keep_their_width() -> None:
    schema = sql_table().schema
    types = {"a * 1.5": pa.float64(), "i + 1": pa.int32(), "a + 1": pa.int64(), "CASE WHEN b THEN 1 END": pa.int32()}
    for sql, kind in types.items():
        assert computed(schema.empty_table(), {"x": expression_of(sql, schema, arrow_type)}).schema.types == [kind]


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("a +", "wanted a column or a value, found the end"),
        ("(a", r"wanted \)"),
        ("a b", "wanted an operator or the end, found 'b' at character 3"),
        ("a @ 2", "'@ 2' at character 2 is not understood"),
        ("nope > 1", "no column 'nope'; columns are a, i"),
        ("uper(s)", r"did you mean upper\(\)"),
        ("sum(a)", r"several rows: write key_by\(…\).aggregate"),
        ("upper(s, s)", "takes 1 arguments, got 2"),
        ("s + 1", "cannot be computed"),
        ("a > 's'", "cannot be computed"),
        ("d % 2", "% takes whole numbers"),
        ("CAST(d AS STRING)", "CAST of double as string is not known"),
        ("CAST(a AS", "found the end"),
        ("substring(s, i)", "must be written out"),
        ("ts > 'soon'", "'soon' is no timestamp"),
        ("INTERVAL 3 MOONS", "write a number and one of DAY"),
        ("date_trunc('moon', ts)", "date_trunc\\(\\) knows year"),
        ("SELECT a", "found 'SELECT'"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(sql: str, said: str) -> None:
    with pytest.raises(SqlError, match=said):
        values(sql)


@pytest.mark.parametrize("sql", ["a / 0", "a * 9223372036854775807 * 3", "CAST(s AS INT)"])
def test_what_has_no_value_fails_as_it_does_in_spark(sql: str) -> None:
    with pytest.raises(pa.ArrowInvalid):
        values(sql)
