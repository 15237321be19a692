"""Key hashes against Spark's own ``xxhash64``, on random rows full of edge cases, for every type a key may have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as st

from penstock.hashing import hash_columns, supported_key_type

ROWS = 6_000
RULES = "spark.sql.optimizer.excludedRules"
FOLDING = "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation"
DAY_US = 86_400_000_000

Make = Callable[[np.random.Generator], pa.Array]


def _mask(rng: np.random.Generator) -> np.ndarray:
    return rng.random(ROWS) < 0.1


def _integers(width: int, kind: pa.DataType) -> Make:
    def make(rng: np.random.Generator) -> pa.Array:
        lo, hi = -(2 ** (width - 1)), 2 ** (width - 1) - 1
        spread = rng.integers(lo, hi, ROWS, dtype=np.int64, endpoint=True)
        edges = rng.choice(np.array([lo, lo + 1, -1, 0, 1, hi - 1, hi], np.int64), ROWS)
        values = np.where(rng.random(ROWS) < 0.3, edges, spread).astype(f"i{width // 8}")
        return pa.array(values, mask=_mask(rng)).view(kind)

    return make


def _floats(bits: type[np.uint32 | np.uint64], floats: type[np.float32 | np.float64]) -> Make:
    """Any bits: NaNs with payloads, both zeros and infinities, subnormals."""

    def make(rng: np.random.Generator) -> pa.Array:
        top = np.iinfo(bits).max
        special = np.array([0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 1.5], floats).view(bits)
        values = np.where(rng.random(ROWS) < 0.3, rng.choice(special, ROWS), rng.integers(0, top, ROWS, dtype=bits))
        exponent = floats(np.inf).view(bits)
        values = np.where(rng.random(ROWS) < 0.1, values | exponent, values)
        kind = pa.from_numpy_dtype(np.dtype(floats))
        return pa.array(values, mask=_mask(rng)).view(kind)

    return make


def _decimals(precision: int, scale: int) -> Make:
    def make(rng: np.random.Generator) -> pa.Array:
        digits = rng.integers(1, precision, ROWS, endpoint=True).tolist()
        unscaled = [int.from_bytes(rng.bytes(17)) % 10**count * (-1) ** count for count in digits]
        largest = 10**precision - 1
        unscaled[:5] = [0, 1, -1, largest, -largest]
        data = b"".join(value.to_bytes(16, "little", signed=True) for value in unscaled)
        valid = pa.array(~_mask(rng)).buffers()[1]
        return pa.Array.from_buffers(pa.decimal128(precision, scale), ROWS, [valid, pa.py_buffer(data)])

    return make


def _lengths(rng: np.random.Generator) -> list[int]:
    """Some lengths often, so that they are hashed together; all others now and then; a few long ones."""
    often = rng.choice([0, 1, 4, 8, 13, 31, 32, 36, 63], ROWS)
    seldom = np.where(rng.random(ROWS) < 0.05, rng.integers(64, 3000, ROWS), rng.integers(0, 64, ROWS))
    return np.where(rng.random(ROWS) < 0.7, often, seldom).tolist()


def _strings(kind: pa.DataType) -> Make:
    def make(rng: np.random.Generator) -> pa.Array:
        letters = np.array(list("abcxyz019 -_/äöüßéñ中文字☃\0\n𝄞😀"))
        words = ["".join(rng.choice(letters, length).tolist()) for length in _lengths(rng)]
        return pa.array(words, kind, mask=_mask(rng))

    return make


def _binaries(kind: pa.DataType) -> Make:
    def make(rng: np.random.Generator) -> pa.Array:
        return pa.array([rng.bytes(length) for length in _lengths(rng)], kind, mask=_mask(rng))

    return make


def _within(kind: pa.DataType, lo: int, hi: int, step: int = 1) -> Make:
    """Values of a type with fewer values than bits: dates, times, timestamps."""

    def make(rng: np.random.Generator) -> pa.Array:
        values = rng.integers(lo, hi, ROWS, endpoint=True)
        values[:4] = [lo, hi, 0, 1]
        values = (values * step).astype(f"i{kind.bit_width // 8}")
        return pa.array(values, mask=_mask(rng)).view(kind)

    return make


YEAR_1_DAY, YEAR_9999_DAY = -719_162, 2_932_896
YEAR_1_US, YEAR_9999_US = YEAR_1_DAY * DAY_US, (YEAR_9999_DAY + 1) * DAY_US - 1

COLUMNS: dict[str, tuple[st.DataType, Make]] = {
    "flag": (st.BooleanType(), lambda rng: pa.array(rng.random(ROWS) < 0.5, mask=_mask(rng))),
    "i8": (st.ByteType(), _integers(8, pa.int8())),
    "i16": (st.ShortType(), _integers(16, pa.int16())),
    "i32": (st.IntegerType(), _integers(32, pa.int32())),
    "i64": (st.LongType(), _integers(64, pa.int64())),
    "f32": (st.FloatType(), _floats(np.uint32, np.float32)),
    "f64": (st.DoubleType(), _floats(np.uint64, np.float64)),
    "d1": (st.DecimalType(1, 0), _decimals(1, 0)),
    "d18": (st.DecimalType(18, 6), _decimals(18, 6)),
    "d19": (st.DecimalType(19, 0), _decimals(19, 0)),
    "d38": (st.DecimalType(38, 0), _decimals(38, 0)),
    "d38_18": (st.DecimalType(38, 18), _decimals(38, 18)),
    "text": (st.StringType(), _strings(pa.string())),
    "large_text": (st.StringType(), _strings(pa.large_string())),
    "data": (st.BinaryType(), _binaries(pa.binary())),
    "large_data": (st.BinaryType(), _binaries(pa.large_binary())),
    "day": (st.DateType(), _within(pa.date32(), YEAR_1_DAY, YEAR_9999_DAY)),
    "moment": (st.TimestampType(), _within(pa.timestamp("us", "UTC"), YEAR_1_US, YEAR_9999_US)),
    "moment_ntz": (st.TimestampNTZType(), _within(pa.timestamp("us"), YEAR_1_US, YEAR_9999_US)),
    "span": (st.DayTimeIntervalType(), _within(pa.duration("us"), -(10**9) * DAY_US // 100, 10**7 * DAY_US)),
    "clock": (st.TimeType(6), _within(pa.time64("ns"), 0, DAY_US - 1, step=1000)),
}

KEYS: list[tuple[str, ...]] = [
    *((name,) for name in COLUMNS),
    *pairwise(COLUMNS),
    ("text", "i64", "text"),
    ("i64", "data", "d38", "f64", "large_text"),
    tuple(COLUMNS),
    tuple(reversed(COLUMNS)),
]


@pytest.fixture(params=["generated", "interpreted"])
def evaluation(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    """Spark has two implementations of the hash: generated code, and an interpreter (which also folds constants)."""
    settings = {
        "generated": {RULES: FOLDING, "spark.sql.codegen.factoryMode": "CODEGEN_ONLY"},
        "interpreted": {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"},
    }[request.param]
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield request.param
    for name in settings:
        spark.conf.unset(name)


@pytest.fixture(scope="module", params=[1, 2])
def table(request: pytest.FixtureRequest) -> pa.Table:
    rng = np.random.default_rng(request.param)
    return pa.table({name: make(rng) for name, (_, make) in COLUMNS.items()})


def as_dataframe(spark: SparkSession, table: pa.Table) -> DataFrame:
    schema = st.StructType([st.StructField(name, COLUMNS[name][0]) for name in table.column_names])
    return spark.createDataFrame(table, schema)


def test_every_key_type_hashes_as_spark_does(spark: SparkSession, evaluation: str, table: pa.Table) -> None:
    hashed = as_dataframe(spark, table).selectExpr(*(f"xxhash64({', '.join(key)})" for key in KEYS))
    is_generated = "*(1) Project" in hashed._jdf.queryExecution().executedPlan().toString()
    assert is_generated == (evaluation == "generated")

    by_spark = hashed.toArrow()
    different = {}
    for position, key in enumerate(KEYS):
        ours = hash_columns([table[name].combine_chunks() for name in key])
        theirs = by_spark.column(position).to_numpy()
        rows = np.flatnonzero(ours != theirs)
        if len(rows):
            different[key] = [table[name][int(rows[0])] for name in key]
    assert different == {}


def test_hashes_agree_on_the_batches_that_spark_hands_to_python(spark: SparkSession, table: pa.Table) -> None:
    """The types are those of `mapInArrow`, so whatever Spark may send is a type that can be hashed."""
    arrived = as_dataframe(spark, table).selectExpr("*", f"xxhash64({', '.join(COLUMNS)}) AS hash")

    def compare(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            ours = hash_columns(batch.columns[:-1])
            wrong = int(np.count_nonzero(ours != batch.columns[-1].to_numpy()))
            yield pa.record_batch({"rows": pa.array([batch.num_rows]), "wrong": pa.array([wrong])})

    results = arrived.mapInArrow(compare, "rows long, wrong long").collect()
    assert (sum(row.rows for row in results), sum(row.wrong for row in results)) == (ROWS, 0)


def test_the_random_rows_hold_every_supported_type(table: pa.Table) -> None:
    assert all(supported_key_type(kind) for kind in table.schema.types)
    assert all(column.null_count > 0 for column in table.columns)
