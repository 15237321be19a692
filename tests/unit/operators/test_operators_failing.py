"""Who is to blame when user code fails (D8)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.display import RECORD_CHARS_MAX, as_json
from penstock.operators.failures.failing import batch_failed, find_culprit


class Fragile:
    """Fails if a batch holds one of some numbers; counts its runs."""

    def __init__(self, bad: set[int], together: int = 1) -> None:
        self.bad, self.together, self.runs = bad, together, 0

    def __call__(self, batch: pa.RecordBatch) -> None:
        self.runs += 1
        if len(self.bad & set(batch["n"].to_pylist())) >= self.together:
            raise ValueError("bad number")


def batch_of(rows: int) -> pa.RecordBatch:
    return pa.record_batch({"n": np.arange(rows)})


@settings(deadline=None)
@given(rows=st.integers(1, 200), data=st.data())
def test_the_first_failing_row_is_found_in_a_logarithm_of_runs(rows: int, data: st.DataObject) -> None:
    bad = data.draw(st.sets(st.integers(0, rows - 1), min_size=1))
    fragile = Fragile(bad)
    culprit = find_culprit(batch_of(rows), fragile, ValueError())
    assert (culprit.row, culprit.exact) == (min(bad), True)
    assert fragile.runs <= math.ceil(math.log2(rows)) + 1


def test_rows_that_fail_only_together_are_said_to() -> None:
    fragile = Fragile({3, 6}, together=2)
    error = batch_failed("op", batch_of(8), fragile, ValueError("bad number"))
    assert error.fields["record"] == '{"n": 0}'
    assert "the smallest slice that fails has 8 rows" in error.fields["note"]


def test_an_error_of_another_kind_is_another_error() -> None:
    def needs_two(batch: pa.RecordBatch) -> None:
        if batch.num_rows < 2:
            raise IndexError
        if 1 in batch["n"].to_pylist():
            raise ValueError

    culprit = find_culprit(batch_of(4), needs_two, ValueError())
    assert (culprit.row, culprit.rows, culprit.exact) == (0, 2, False)


def test_an_error_that_does_not_come_again_is_still_reported() -> None:
    error = batch_failed("op", batch_of(4), lambda _: None, OSError("timeout"))
    assert "OSError: timeout" in error.seen
    assert "no row fails alone" in error.fields["note"]


def test_user_code_is_run_again_on_copies() -> None:
    batch = batch_of(4)
    seen: list[int] = []

    def nosy(part: pa.RecordBatch) -> None:
        seen.append(part["n"].buffers()[1].address)
        raise ValueError

    find_culprit(batch, nosy, ValueError())
    start = batch["n"].buffers()[1].address
    assert not set(range(start, start + 32)) & set(seen)


@pytest.mark.parametrize(
    ("record", "text"),
    [
        ({"a": None, "b": 1.5, "c": "ü"}, '{"a": null, "b": 1.5, "c": "ü"}'),
        ({"a": b"\xff", "l": [b"\x01", {"x": 1}]}, '{"a": "ff", "l": ["01", {"x": 1}]}'),
        ({"a": math.nan}, '{"a": "NaN"}'),
    ],
)
def test_a_record_is_shown_as_json(record: dict[str, Any], text: str) -> None:
    assert as_json(record) == text


@pytest.mark.parametrize("huge", ["x" * 10_000_000, b"x" * 10_000_000, list(range(10_000_000)), {"a": ["y" * 5000]}])
def test_a_huge_record_is_cut(huge: Any) -> None:
    """B5: a record may be larger than anything else."""
    text = as_json({"id": 1, "huge": huge})
    assert text.startswith('{"id": 1, "huge": ')
    assert "…" in text
    assert len(text) <= RECORD_CHARS_MAX
