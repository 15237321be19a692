"""The program of the cases: numbers each user's records, counts them in windows, keeps the late ones.

    python -m tests.kafka.job FOLDER PARALLELISM [--finish]

`FOLDER/job.json` says what to read. Each event is printed as one line of JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec

import penstock as pen
from penstock.errors import PenstockError
from penstock.observe.events import Event

COLUMNS = ["topic", "partition", "offset", "split(cast(value AS STRING), ',') AS fields"]
PARSED = [
    "topic",
    "partition",
    "offset",
    "cast(fields[0] AS BIGINT) AS user",
    "cast(fields[1] AS BIGINT) AS number",
    "timestamp_millis(cast(fields[2] AS BIGINT)) AS ts",
]
WINDOW_MS = 10_000


class Numbered(pen.KeyedProcess):
    """Numbers the records of each user."""

    output = "user bigint, number bigint, partition int, offset bigint, nth bigint"
    seen = pen.value_state("bigint")

    def process(self, key, rows, state, out):
        nth = state.seen or 0
        for row in rows:
            nth += 1
            out.emit(user=row["user"], number=row["number"], partition=row["partition"], offset=row["offset"], nth=nth)
        state.seen = nth


def tell(event: Event) -> None:
    print(msgspec.json.encode(event).decode(), flush=True)


def main(folder: Path, parallelism: int, *, finish: bool) -> int:
    settings = json.loads((folder / "job.json").read_text())
    spark = pen.session("local[2]", "kafka", spark_jars=settings["jars"], spark_ui_enabled="false")
    reader = spark.readStream.format("kafka")
    for name, value in settings["options"].items():
        reader = reader.option(name, value)
    frame = reader.load().selectExpr(*COLUMNS).selectExpr(*PARSED)
    by = {} if settings["by_partition"] else {"watermark_by": ()}
    events = pen.read(frame, name="events", event_time="ts", watermark="0 s", **by)
    by_user = events.key_by("user")
    windows = by_user.window(pen.tumbling_window(f"{WINDOW_MS // 1000} s")).aggregate(
        n=pen.count(), total=pen.sum("number"), name="windows"
    )
    lake = str(folder / "lake")
    outputs = [
        by_user.process(Numbered, name="number").write(pen.Paimon(lake, "shop.rows")),
        windows.write(pen.Paimon(lake, "shop.windows")),
        windows.side("late").write(pen.Paimon(lake, "shop.late")),
    ]
    try:
        query = pen.start(
            *outputs,
            checkpoint=folder / "checkpoint",
            parallelism=parallelism,
            epoch="500 ms",
            trigger="available_now" if finish else 0.1,
            source_timeout=settings["source_timeout"],
            on_event=tell,
        )
        query.await_termination()
    except PenstockError as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), finish="--finish" in sys.argv))
