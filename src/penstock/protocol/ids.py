"""The numbers by which a query's past is told apart, each with a type of its own: none can be passed for another.

Values carry the type from where they are made or decoded (a file's name, a manifest, a plan, an event) to where they
are used. Names of stages, edges, operators and sinks are plain text: they are keys of what they name.
"""

from __future__ import annotations

from typing import NewType

CheckpointId = NewType("CheckpointId", int)
"""Of a checkpoint, and of the epoch that becomes it: 1, 2, 3 … without gaps."""
Generation = NewType("Generation", int)
"""Of a driver: each start of a query on a folder claims the next one."""
BatchId = NewType("BatchId", int)
"""Of a micro-batch, given by Spark."""

NO_CHECKPOINT = CheckpointId(0)
"""Before the first one."""
NO_GENERATION = Generation(0)


def next_checkpoint(checkpoint: CheckpointId) -> CheckpointId:
    """
    >>> next_checkpoint(CheckpointId(41))
    42
    """
    return CheckpointId(checkpoint + 1)


def next_generation(generation: Generation) -> Generation:
    return Generation(generation + 1)
