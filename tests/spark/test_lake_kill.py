"""SIGKILL of a driver that writes to a lake, twice at random moments; then every row is in the table once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from deltalake import DeltaTable

from penstock.sinks.iceberg.catalog import open_table
from tests.support.lake_job import FILES, ROWS, generate, sink_of

GIVE_UP_S = 240


def ids_in(kind: str, folder: Path) -> Counter[int]:
    if kind.startswith("iceberg"):
        sink = sink_of(kind, folder)
        return Counter(open_table(sink.catalog, sink.table).scan().to_arrow()["id"].to_pylist())
    return Counter(DeltaTable(str(folder / "table")).to_pyarrow_table()["id"].to_pylist())


def live(kind: str, folder: Path, epochs: int | None) -> int:
    """Runs the job until it has published so many epochs, then kills all of it; to its end without a number."""
    command = [sys.executable, "-m", "tests.support.lake_job", kind, str(folder)]
    job = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    assert job.stdout is not None
    try:
        for seen, _ in enumerate(job.stdout, 1):
            if seen == epochs:
                break
        return job.wait(GIVE_UP_S) if epochs is None else 0
    finally:
        with suppress(ProcessLookupError):  # it ended by itself
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()
        job.stdout.close()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta-keyed", "iceberg-keyed"])
def test_a_driver_that_is_killed_leaves_the_newest_row_of_each_key(kind: str, tmp_path: Path) -> None:
    generate(tmp_path)
    choose = random.Random()
    for _ in range(2):
        live(kind, tmp_path, choose.randint(1, 4))
    assert live(kind, tmp_path, None) == 0
    assert ids_in(kind, tmp_path) == Counter(range(FILES * ROWS - 3, FILES * ROWS))


@pytest.mark.spark
@pytest.mark.drawn
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_driver_that_is_killed_leaves_every_row_in_its_table_once(kind: str, tmp_path: Path) -> None:
    generate(tmp_path)
    choose = random.Random()
    for _ in range(2):
        live(kind, tmp_path, choose.randint(1, 4))
    assert live(kind, tmp_path, None) == 0
    assert ids_in(kind, tmp_path) == Counter(range(FILES * ROWS))
