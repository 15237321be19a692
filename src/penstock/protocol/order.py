"""Order per key across micro-batches.

Rows of a key may take different ways to the operator that wants them in order: other lanes of a stage without a key,
other inputs of a union. A slow way must not be overtaken by a quick one. So each segment knows its *arrival*, the epoch
in which the source delivered its rows, and stages that only answer rows hand it on. A consumer that wants order reads
by arrival, and *holds* rows while rows that arrived earlier are still on their way to it.

Rows of one arrival stay in order because a source partition keeps its lane. A rescale changes the lanes that a stage
writes to. So a rescaled stage holds the rest of what arrived before, until the lanes behind it are free of such rows.

That never stops everything. What waits for lanes waits for stages downstream that do not wait for anything upstream. Of
all other rows in flight take those that arrived first, and of these the ones on the edge that is furthest upstream:
nothing upstream arrived earlier, so they are not held back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from penstock.protocol.ids import CheckpointId
from penstock.protocol.manifest import EdgeState, Manifest, StageClock


def held_after(edges: Mapping[str, EdgeState], upstream: Iterable[str]) -> CheckpointId | None:
    """The earliest arrival of rows in flight on the edges `upstream`: a consumer behind them holds whatever arrived
    later. None: nothing is on its way."""
    return min((segment.arrived for name in upstream for segment in edges[name].segments), default=None)


def held_before(edges: Mapping[str, EdgeState], lanes: Iterable[str], clock: StageClock) -> CheckpointId | None:
    """A stage holds rows that arrived before this, as `lanes`, the edges behind it, have rows of its old lanes. None:
    they have none."""
    rescaled = clock.rescaled
    if isinstance(rescaled, msgspec.UnsetType):
        return None
    older = any(segment.arrived < rescaled for name in lanes for segment in edges[name].segments)
    return rescaled if older else None


def with_rescaled(parent: Manifest, parallelism: Mapping[str, int], checkpoint: CheckpointId) -> dict[str, StageClock]:
    """The clocks of `parent`, with the stages noted whose parallelism is another one from `checkpoint` on."""
    clocks = dict(parent.stages)
    if parent.rows_in_flight:
        for stage, subtasks in parallelism.items():
            if parent.parallelism.get(stage, subtasks) != subtasks:
                clocks[stage] = msgspec.structs.replace(clocks.get(stage, StageClock()), rescaled=checkpoint)
    return clocks
