"""What a subtask that does not get on says about itself, while it cannot answer: small files in the checkpoint folder.

A thread beside the subtask writes them and the driver reads and deletes them. They decide nothing about records: an
attempt that is given up is a loser like any other.
"""

from __future__ import annotations

import msgspec

from penstock.protocol.ids import CheckpointId, Generation
from penstock.protocol.layout import STUCK, read_hung_sign

SAMPLE_BYTES_MAX = 1 << 20


class Stuck(msgspec.Struct, frozen=True, kw_only=True):
    """A sample of a subtask that has not finished a step for `silent_s`; the stack has its innermost call last."""

    stage: str
    subtask: int
    attempt: str
    host: str
    pid: int
    silent_s: float
    operator: str | None = None
    function: str | None = None
    """The user's function that does not return, with the place in it."""
    values: dict[str, str] = {}
    """Plain values in that function: its record, its key."""
    stack: list[str] = []


def belongs_to(path: str, checkpoint: CheckpointId, generation: Generation) -> bool:
    """Whether a sign is of an attempt at this checkpoint by this driver."""
    sign = read_hung_sign(path)
    return sign is not None and (sign.by.checkpoint, sign.by.generation) == (checkpoint, generation)


def is_over(path: str, checkpoint: CheckpointId, generation: Generation) -> bool:
    """Whether a sign is out of date: of an older driver, or of a checkpoint that is published."""
    sign = read_hung_sign(path)
    if sign is None:
        return False
    by = sign.by
    return by.generation < generation or (by.generation == generation and by.checkpoint < checkpoint)


def tells_why(path: str) -> bool:
    """Whether it holds a `Stuck`."""
    sign = read_hung_sign(path)
    return sign is not None and sign.sign == STUCK


def encode_stuck(stuck: Stuck) -> bytes:
    return msgspec.json.encode(stuck)


def decode_stuck(data: bytes) -> Stuck | None:
    """None for bytes that are no sample."""
    if len(data) > SAMPLE_BYTES_MAX:
        return None
    try:
        return msgspec.json.decode(data, type=Stuck)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
