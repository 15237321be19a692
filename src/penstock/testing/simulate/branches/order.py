"""The order of a key's records: by micro-batch, and within one micro-batch and partition as the source has them."""

from __future__ import annotations

from collections import defaultdict
from itertools import groupby

from penstock.testing.simulate.arrivals import Arrival
from penstock.testing.simulate.branches.base import Fail


def in_order(came: list[Arrival], numbers: dict[int, int], fail: Fail) -> None:
    """Compares what an operator's numbers say with how the records of one source came."""
    by_key: dict[int, list[Arrival]] = defaultdict(list)
    for arrival in came:
        by_key[arrival.key].append(arrival)
    for key, mine in by_key.items():
        before = 0
        for batch, group in groupby(mine, key=lambda arrival: arrival.batch):
            found = list(group)
            if min(numbers[arrival.id] for arrival in found) <= before:
                fail(
                    "order",
                    f"key {key}: {_numbered(found, numbers)} of micro-batch {batch} come before number {before}",
                )
            before = max(numbers[arrival.id] for arrival in found)
            for partition in {arrival.partition for arrival in found}:
                together = [arrival for arrival in found if arrival.partition == partition]
                if together != sorted(together, key=lambda arrival: numbers[arrival.id]):
                    fail("order", f"key {key}: {_numbered(together, numbers)} of micro-batch {batch} are out of order")


def _numbered(arrivals: list[Arrival], numbers: dict[int, int]) -> list[tuple[int, int]]:
    """Ids and numbers."""
    return [(arrival.id, numbers[arrival.id]) for arrival in arrivals]
