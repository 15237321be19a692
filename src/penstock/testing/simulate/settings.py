"""The options of simulated queries, drawn from the seed."""

from __future__ import annotations

import random

from penstock.engine.options import Options


def draw_options(
    rng: random.Random, *, max_parallelism: int, epoch_s: float | None, retain: int, crowded: bool
) -> Options:
    """All but parallelism, which each start draws anew. `crowded`: much has to be in flight at the same time."""
    options: Options = {
        "max_parallelism": max_parallelism,
        "epoch": epoch_s,
        "retain": retain,
        "max_in_flight": rng.choice((2_000, 1_000_000)),
        "max_in_flight_segments": rng.choice((4, 1_000, 1_000)),
        "max_uncommitted": rng.choice((1, 2, 4, 16)),
        "epoch_retries": rng.choice((0, 1, 2)),
        "epoch_timeout": None,
        "commit_timeout": None,
        "source_timeout": None,
    }
    if epoch_s is not None and retain > 2:  # nothing more is drawn: seeds keep their meaning
        options |= {"max_backlog": epoch_s}
    if crowded:
        options |= {"max_in_flight": 1_000_000, "max_in_flight_segments": 1_000, "max_backlog": None}
    return options
