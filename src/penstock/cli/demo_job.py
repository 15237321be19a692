"""The demo's job, as a user would write it: numbers each user's clicks, slowly, into a Paimon table."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import penstock as pen
from penstock.events import EpochPublished, Event, format_epoch
from penstock.spark.session import submitted

CLICK_COST_S = 0.0002
TABLE = "shop.clicks"


class NumberClicks(pen.KeyedProcess):
    """Gives each click its number within its user; stands for model inference, an enrichment call, a parser."""

    output = "click bigint, user bigint, number bigint"
    clicks = pen.value_state("bigint")

    def process(self, key, rows, state, out):  # type: ignore[no-untyped-def]
        number = state.clicks or 0
        for row in rows:
            until = time.perf_counter() + CLICK_COST_S
            while time.perf_counter() < until:
                pass
            number += 1
            out.emit(click=row["click"], user=key["user"], number=number)
        state.clicks = number


def main(folder: Path, parallelism: int) -> None:
    """Runs until everything in ``folder/input`` was processed and committed: here, or where spark-submit says."""
    spark = pen.session(None if submitted() else "local[2]", spark_ui_enabled="false")
    clicks = (
        spark.readStream.schema("click bigint, user bigint")
        .option("maxFilesPerTrigger", "1")
        .parquet(f"{folder}/input")
    )
    query = (
        pen.read(clicks, name="clicks")
        .key_by("user")
        .process(NumberClicks, name="number_clicks")
        .write(pen.Paimon(f"{folder}/warehouse", TABLE), name="table")
        .start(
            checkpoint=f"{folder}/checkpoint",
            parallelism=parallelism,
            epoch="1 s",
            trigger="available_now",
            on_event=_show,
        )
    )
    query.await_termination()
    spark.stop()


def _show(event: Event) -> None:
    if isinstance(event, EpochPublished):
        sys.stdout.write(format_epoch(event) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
