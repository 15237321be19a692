"""Arguments of aggregates, windows, joins, top_n and key_by: what is taken, and what is refused by its name (E5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock as pen
from penstock.errors import PenstockError
from penstock.testing import Harness, stream_of

TS = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("ts", TS)])


def stream(name: str = "source") -> Any:
    return stream_of(SCHEMA, name, event_time="ts")


def joined(**options: Any) -> object:
    return stream("a").key_by("k").join(stream("b").key_by("k"), **{"within": "1 s", **options})


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: joined(within=("1 s",)), "an interval has two ends"),
        (lambda: joined(within=("-1 s", "0 s", "1 s")), "an interval has two ends"),
        (lambda: joined(within=(None, "1 s")), "within=None"),
        (lambda: joined(suffixes=None), "suffixes are None"),
        (lambda: joined(suffixes="_r"), "suffixes are '_r'"),
        (lambda: stream().key_by("k").top_n("3", by="v"), "top_n('3', by='v')"),
        (lambda: stream().key_by("k").top_n(2.5, by="v"), "top_n(2.5, by='v')"),
        (lambda: stream().key_by("k").top_n(3, by=None), "by=None"),
        (lambda: stream().key_by("k").top_n(3, by=["v"]), "by=['v']"),
        (lambda: stream().key_by(pc.field("k")), "key column"),
        (lambda: stream().key_by(5), "key column 5 does not exist"),
        (lambda: pen.sum(5), "column=5"),
        (lambda: pen.sum(None), "column=None"),
        (lambda: pen.approx_count_distinct("v", "a"), "rsd='a'"),
        (lambda: pen.quantiles("v", 0.5), "shares=0.5"),
        (lambda: stream().key_by("k").aggregate([pen.count()]), "got the aggregates"),
        (lambda: stream().key_by("k").aggregate({5: pen.count()}), "got the aggregates"),
        (lambda: pen.tumbling_window(1e300), "size=1e+300"),
    ],
)
def test_an_argument_that_makes_no_sense_is_named(build: Callable[[], object], words: str) -> None:
    with pytest.raises(PenstockError) as caught:
        build()
    assert words in str(caught.value)
    assert caught.value.next_step


def test_columns_and_intervals_may_be_given_as_lists() -> None:
    assert stream().key_by(["k", "v"]).keys == stream().key_by("k", "v").keys
    assert joined(within=["-1 s", "2 s"])
    assert stream().key_by("k").deduplicate(columns="v").schema == SCHEMA


def test_a_star_counts_rows() -> None:
    harness = Harness(stream().key_by("k").aggregate(n=pen.count("*")))
    assert harness.feed([{"k": 1, "v": None, "ts": None}]) == [{"k": 1, "n": 1}]


def test_shares_may_be_a_numpy_array() -> None:
    harness = Harness(stream().key_by("k").aggregate(q=pen.quantiles("v", np.array([0.0, 1.0]))))
    assert harness.feed([{"k": 1, "v": v, "ts": None} for v in (4, 8)]) == [{"k": 1, "q": [4.0, 8.0]}]


@pytest.mark.parametrize(("offset", "same"), [("-2 h", "22 h"), ("-24 h", "0 h")])
def test_an_offset_may_be_negative(offset: str, same: str) -> None:
    """D2: days that begin two hours before those of UTC."""
    assert pen.tumbling_window("24 h", offset=offset) == pen.tumbling_window("24 h", offset=same)


class Pair(pen.UserAggregate):
    """Its state is a struct, given as a list of dicts."""

    state = {"pair": pa.struct([("a", pa.int64()), ("b", pa.decimal128(20, 0))])}  # noqa: RUF012 - as users write it
    output = pa.int64()
    field = "b"

    def update(self, rows, groups):
        return {"pair": [{"a": 1, self.field: 10**15}] * groups.count}

    def merge(self, states, groups):
        return {"pair": [{"a": 2, self.field: 10**15}] * groups.count}

    def result(self, states):
        return states["pair"].field("a")


def test_a_user_s_list_is_read_as_the_declared_type() -> None:
    """D2: ten to the fifteenth fits a decimal, which a guess of its type would not say."""
    harness = Harness(stream().key_by("k").aggregate(x=Pair()))
    assert harness.feed([{"k": 1, "v": 1, "ts": None}]) == [{"k": 1, "x": 1}]


def test_a_struct_with_other_fields_is_refused() -> None:
    """D2: Arrow would make null of it without a word."""
    wrong = Pair()
    wrong.field = "B"
    with pytest.raises(PenstockError, match="fields"):
        Harness(stream().key_by("k").aggregate(x=wrong)).feed([{"k": 1, "v": 1, "ts": None}])
