"""Makes the events: of every 50 one is a person, three are auctions, the rest are bids, as in Nexmark.

Events come a little out of order, by less than `DELAY_S`, and are cut into files by the order in which they arrive.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

DELAY_S = 2
"""How far behind the newest an event may be; the watermark of all sources."""
EVENTS_PER_S = 100
FIRST_SECOND = 1_767_225_600  # 2026-01-01 UTC
CATEGORIES = 10
STATES = ("OR", "ID", "CA", "WA", "NY", "TX")
CITIES = ("Portland", "Boise", "Los Angeles", "Seattle", "New York", "Austin")

_MOMENT = pa.timestamp("us", "UTC")
SCHEMAS = {
    "persons": "id bigint, name string, city string, state string, ts timestamp",
    "auctions": "id bigint, seller bigint, category bigint, initial bigint, ts timestamp",
    "bids": "auction bigint, bidder bigint, price bigint, ts timestamp",
}


def generate(folder: Path, events: int, files: int, seed: int) -> None:
    """Writes `files` files of each kind of event, each with its share of the time."""
    rng = np.random.default_rng(seed)
    numbers = np.arange(events)
    kind = numbers % 50
    times = _times(rng, numbers)
    order = np.argsort(numbers + rng.uniform(0, DELAY_S * EVENTS_PER_S * 0.9, events), kind="stable")
    for name, chosen in (("persons", kind == 0), ("auctions", (kind > 0) & (kind < 4)), ("bids", kind > 3)):
        rows = order[chosen[order]]
        table = _TABLES[name](rng, numbers[rows], times[rows])
        for number, part in enumerate(np.array_split(np.arange(table.num_rows), files)):
            _write(folder / name, number, table.slice(part[0], len(part)))


def _times(rng: np.random.Generator, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Microseconds, with a pause now and then, so that sessions end."""
    pauses = np.cumsum(rng.random(len(numbers)) < 0.0005) * 30
    return (FIRST_SECOND + pauses) * 1_000_000 + numbers * 1_000_000 // EVENTS_PER_S


def _persons(rng: np.random.Generator, numbers: npt.NDArray[np.int64], times: npt.NDArray[np.int64]) -> pa.Table:
    home = rng.integers(0, len(STATES), len(numbers))
    ids = numbers // 50
    return pa.table(
        {
            "id": ids,
            "name": [f"person {id_}" for id_ in ids],
            "city": np.array(CITIES)[home],
            "state": np.array(STATES)[home],
            "ts": pa.array(times, _MOMENT),
        }
    )


def _auctions(rng: np.random.Generator, numbers: npt.NDArray[np.int64], times: npt.NDArray[np.int64]) -> pa.Table:
    return pa.table(
        {
            "id": _auction_id(numbers),
            # Mostly of those who registered last.
            "seller": np.maximum(0, numbers // 50 - rng.geometric(0.2, len(numbers)) + 1),
            "category": 10 + rng.integers(0, CATEGORIES, len(numbers)),
            "initial": rng.integers(1, 100, len(numbers)),
            "ts": pa.array(times, _MOMENT),
        }
    )


def _bids(rng: np.random.Generator, numbers: npt.NDArray[np.int64], times: npt.NDArray[np.int64]) -> pa.Table:
    newest = numbers // 50 * 3 + 2
    return pa.table(
        {
            # A few auctions are hot.
            "auction": np.maximum(0, newest - rng.geometric(0.1, len(numbers)) + 1),
            "bidder": np.maximum(0, numbers // 50 - rng.geometric(0.3, len(numbers)) + 1),
            "price": rng.integers(100, 10_000, len(numbers)),
            "ts": pa.array(times, _MOMENT),
        }
    )


def _auction_id(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return numbers // 50 * 3 + numbers % 50 - 1


_TABLES = {"persons": _persons, "auctions": _auctions, "bids": _bids}


def _write(folder: Path, number: int, table: pa.Table) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{number:04d}.parquet"
    pq.write_table(table, path)
    os.utime(path, (number + 1, number + 1))  # Spark takes files in the order of their time
