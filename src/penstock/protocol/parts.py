"""The plan of a stage on its way to its tasks: a *head* that all of them get, and a *part* for each.

So what a task gets does not grow with the number of subtasks. Where parts cannot be handed out one by one, they travel
together with an index in front: `part_at` finds one of them without the others.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

import msgspec

from penstock.protocol.plan import StagePlan, SubtaskPlan

_INDEX = struct.Struct("<QQ")
"""Of each subtask, where its part begins and ends; both are 0 for a subtask that is not launched."""
INDEX_BYTES = _INDEX.size

_head_decoder = msgspec.json.Decoder(StagePlan)
_part_decoder = msgspec.json.Decoder(SubtaskPlan)


def head_of(plan: StagePlan) -> bytes:
    """What all tasks of a stage need to know."""
    return msgspec.json.encode(msgspec.structs.replace(plan, subtasks=()))


def parts_of(subtasks: Iterable[SubtaskPlan]) -> list[bytes]:
    """What each task needs to know besides."""
    encoder, buffer = msgspec.json.Encoder(), bytearray()
    parts = []
    for subtask in subtasks:
        encoder.encode_into(subtask, buffer)  # which grows once, and not for each of thousands
        parts.append(bytes(buffer))
    return parts


def joined(head: bytes, part: bytes) -> StagePlan:
    """The plan as one task sees it: it has no other subtask."""
    return msgspec.structs.replace(_head_decoder.decode(head), subtasks=(_part_decoder.decode(part),))


def packed(subtasks: Iterable[SubtaskPlan], parallelism: int) -> bytes:
    """The parts of some subtasks of a stage, with an index in front."""
    places = [(0, 0)] * parallelism
    launched = list(subtasks)
    parts = parts_of(launched)
    begin = INDEX_BYTES * parallelism
    for subtask, part in zip(launched, parts, strict=True):
        places[subtask.subtask] = (begin, begin + len(part))
        begin += len(part)
    return b"".join((*(_INDEX.pack(*place) for place in places), *parts))


def part_at(read: Callable[[int, int], bytes], subtask: int) -> bytes:
    """One part; `read` gives the bytes of `packed` from a place on, so and so many."""
    begin, end = _INDEX.unpack(read(INDEX_BYTES * subtask, INDEX_BYTES))
    assert begin < end, f"subtask {subtask} is not launched"
    return read(begin, end - begin)
