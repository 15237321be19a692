"""map_async and dead letters on Spark, with a worker that is killed in the middle."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock as pen
from tests.support.spark_streams import epochs, finish, numbered, paimon, rows_in, stream, write_files

pytestmark = pytest.mark.spark


class Ask(pen.AsyncFunction):
    """Answers after 5 ms; kills its worker once, and cannot answer about every hundredth number."""

    def __init__(self, folder: Path) -> None:
        self.killed = folder / "killed"

    async def open(self) -> None:
        self.pool = "open"

    async def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        assert self.pool == "open"
        await asyncio.sleep(0.005)
        if row["number"] == 500 and not self.killed.exists():
            self.killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if row["number"] % 100 == 99:
            raise LookupError(row["number"])
        return {**row, "answer": row["number"] * 2}


@pytest.mark.parametrize("ordered", [True, False])
def test_a_killed_worker_loses_no_call_and_dead_letters_are_there_once(
    spark: SparkSession, tmp_path: Path, ordered: bool
) -> None:
    """D5, D8, C11: barriers in the middle, too."""
    write_files(tmp_path / "in", numbered(600, 2))
    answers = pen.read(stream(spark, tmp_path / "in")).map_async(
        Ask(tmp_path),
        "user bigint, number bigint, answer bigint",
        concurrency=10,
        retries=0,
        ordered=ordered,
        on_error="dead_letter",
        name="ask",
    )
    events = finish(
        answers.write(paimon(tmp_path)),
        checkpoint=tmp_path / "checkpoint",
        epoch="200 ms",
        parallelism=2,
        dead_letters=paimon(tmp_path, "shop.letters"),
    )
    assert (tmp_path / "killed").exists()
    found = rows_in(tmp_path)
    assert Counter(row["number"] for row in found) == Counter(n for n in range(1200) if n % 100 != 99)
    assert all(row["answer"] == 2 * row["number"] for row in found)
    letters = rows_in(tmp_path, "shop.letters")
    assert Counter(json.loads(letter["record"])["number"] for letter in letters) == Counter(range(99, 1200, 100))
    assert {letter["error"] for letter in letters} == {"LookupError"}
    assert any(event.rows_in_flight for event in epochs(events)), "no barrier fell, so the test shows less"
