"""What a subtask that does not get on says about itself, while it cannot answer: small files in the checkpoint folder.

A thread beside the subtask writes them and the driver reads and deletes them. They decide nothing about records: an
attempt that is given up is a loser like any other.
"""

from __future__ import annotations

import re

import msgspec

from penstock.protocol.ids import CheckpointId, Generation

FOLDER = "hung"
SAMPLE_BYTES_MAX = 1 << 20
_NAME = re.compile(rf"{FOLDER}/(?P<checkpoint>\d{{10}})-g(?P<generation>\d+)-s\d+-a[^/]+-(?P<sign>\w+)\.json")
STUCK = "stuck"


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


def sign_path(*, checkpoint: CheckpointId, generation: Generation, subtask: int, attempt: str, sign: str) -> str:
    """Where an attempt leaves a sign: ``stuck``, or the number of times that it was found to be slow but alive."""
    return f"{FOLDER}/{checkpoint:010d}-g{generation}-s{subtask}-a{attempt}-{sign}.json"


def belongs_to(path: str, checkpoint: CheckpointId, generation: Generation) -> bool:
    """Whether a sign is of an attempt at this checkpoint by this driver."""
    match = _NAME.fullmatch(path)
    return match is not None and (int(match["checkpoint"]), int(match["generation"])) == (checkpoint, generation)


def is_over(path: str, checkpoint: CheckpointId, generation: Generation) -> bool:
    """Whether nobody waits for a sign any more: of an older driver, or of a checkpoint that is published."""
    match = _NAME.fullmatch(path)
    if match is None:
        return False
    by = int(match["generation"])
    return by < generation or (by == generation and int(match["checkpoint"]) < checkpoint)


def tells_why(path: str) -> bool:
    """Whether it holds a `Stuck`."""
    match = _NAME.fullmatch(path)
    return match is not None and match["sign"] == STUCK


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
