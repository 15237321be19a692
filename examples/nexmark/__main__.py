"""``python -m examples.nexmark [q1 …]``: runs queries over generated events and compares them with Spark SQL.

Each query is stopped in the middle and goes on at another parallelism.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import penstock as pen
from examples.nexmark.generate import DELAY_S, SCHEMAS, generate
from examples.nexmark.queries import QUERIES, Query
from penstock.sinks.paimon.read import read_table

Row = tuple[Any, ...]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.nexmark", description=__doc__)
    parser.add_argument("queries", nargs="*", metavar="query", help=", ".join(QUERIES))
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--files", type=int, default=4, help="micro-batches")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.queries) - set(QUERIES))
    if unknown:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(QUERIES)}")
    spark = pen.session("local[2]", spark_ui_enabled="false")
    failed = 0
    with tempfile.TemporaryDirectory(prefix="penstock-nexmark-", ignore_cleanup_errors=True) as folder:
        generate(Path(folder), options.events, options.files, options.seed)
        for name in options.queries or QUERIES:
            wrong = check(spark, Path(folder), name, QUERIES[name])
            failed += bool(wrong)
            print(f"{'FAIL' if wrong else 'ok  '} {name} {QUERIES[name].title}{wrong}", flush=True)
    spark.stop()
    print(f"{len(options.queries or QUERIES) - failed} passed, {failed} failed")
    return 1 if failed else 0


def check(spark: SparkSession, folder: Path, name: str, query: Query) -> str:
    """What differs between the table and Spark SQL, in words; empty if nothing does."""
    run(spark, folder, name, query)
    found, wanted = found_rows(folder, name, query), wanted_rows(spark, folder, query)
    missing, extra = wanted - found, found - wanted
    if not missing and not extra and wanted:
        return ""
    return f"\n     {missing.total()} rows missing, {extra.total()} too many of {wanted.total()}: " + "; ".join(
        f"{sign}{row}" for sign, rows in (("-", missing), ("+", extra)) for row in list(rows)[:3]
    )


def run(spark: SparkSession, folder: Path, name: str, query: Query) -> None:
    """Up to the end of the input, once interrupted."""
    for parallelism, trigger in ((2, None), (3, "available_now")):
        sources = {
            kind: pen.read(
                spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder / kind)),
                name=kind,
                event_time="ts",
                watermark=f"{DELAY_S} s",
            )
            for kind, schema in SCHEMAS.items()
        }
        running = (
            query.build(sources)
            .write(pen.Paimon(str(folder / "lake"), f"nexmark.{name}"))
            .start(checkpoint=folder / "checkpoints" / name, epoch="1 s", parallelism=parallelism, trigger=trigger)
        )
        if trigger is None:
            while running.is_active and not running.progress():
                running.await_termination(0.1)
            running.stop()
        else:
            running.await_termination()


def found_rows(folder: Path, name: str, query: Query) -> Counter[Row]:
    rows = read_table(str(folder / "lake"), f"nexmark.{name}").to_pylist()
    if query.newest_by:
        newest: dict[Row, dict[str, Any]] = {}
        for row in sorted(rows, key=lambda row: row["n"]):
            newest[tuple(row[key] for key in query.newest_by)] = row
        rows = list(newest.values())
    return Counter(plain(row) for row in rows)


def wanted_rows(spark: SparkSession, folder: Path, query: Query) -> Counter[Row]:
    for kind, schema in SCHEMAS.items():
        spark.read.schema(schema).parquet(str(folder / kind)).createOrReplaceTempView(kind)
    rows = [row.asDict() for row in spark.sql(query.sql).collect()]
    if query.closed_by:
        newest = spark.sql(f"SELECT unix_micros(max(ts)) AS ts FROM {query.closed_by}").collect()[0].ts
        # Not in SQL: Spark would apply it to rows, before sessions have grown together.
        rows = [row for row in rows if _plain(row["window_end"]) <= newest - DELAY_S * 1_000_000]
    return Counter(plain(row) for row in rows)


def plain(row: dict[str, Any]) -> Row:
    """A row that equals itself, whoever made it: floats to nine digits, moments as microseconds."""
    return tuple(_plain(value) for _, value in sorted(row.items()))


def _plain(value: Any) -> Any:
    match value:
        case float():
            return f"{value:.9g}"
        case datetime():
            return round(value.timestamp() * 1_000_000)
    return value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
