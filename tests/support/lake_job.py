"""A query into a lake, as a program that tests kill: ``python -m tests.support.lake_job FORMAT FOLDER``.

A format ending in ``-keyed`` is written by the primary key `part`: of each part the newest id stays.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import penstock as pen

FILES = 12
ROWS = 500


def generate(folder: Path) -> None:
    (folder / "in").mkdir(parents=True)
    for number in range(FILES):
        ids = range(number * ROWS, (number + 1) * ROWS)
        file = folder / "in" / f"{number:04d}.csv"
        file.write_text("".join(f"{i},{i % 3}\n" for i in ids))
        os.utime(file, (number, number))  # the source takes files by their age


def sink_of(kind: str, folder: Path) -> Any:
    upkeep = pen.Upkeep(every="1 s", small_files=4)
    key: dict[str, Any] = {"primary_key": ["part"]} if kind.endswith("-keyed") else {}
    if kind.startswith("iceberg"):
        catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/lake"}
        return pen.Iceberg(catalog, "shop.t", partition_by=["bucket(2, part)"], upkeep=upkeep, **key)
    return pen.Delta(str(folder / "table"), partition_by=[] if key else ["part"], upkeep=upkeep, **key)


def main() -> None:
    kind, folder = sys.argv[1], Path(sys.argv[2])
    spark = pen.session("local[2,4]")
    frame = spark.readStream.schema("id bigint, part int").option("maxFilesPerTrigger", 1).csv(str(folder / "in"))

    def show(event: object) -> None:
        if isinstance(event, pen.events.EpochPublished) and event.kind == "ingest":
            print("epoch", flush=True)

    query = (
        pen.read(frame, name="numbers")
        .write(sink_of(kind, folder))
        .start(str(folder / "checkpoint"), trigger="available_now", on_event=show, parallelism=2)
    )
    query.await_termination()


if __name__ == "__main__":
    main()
