"""The lines of a query's history: ``events.jsonl``, behind it a bounded number of older pieces in ``events/``, and one
file that has the sums of what is older still.

Nothing here is needed for recovery. A crash while a piece is put away may leave lines twice.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from penstock.errors import MissingFile
from penstock.protocol.layout import (
    EVENTS,
    OLDER_EVENTS,
    older_events_path,
    read_older_events_path,
    read_summed_events_path,
    summed_events_path,
)
from penstock.store.base import AlreadyExists, Store

OLDER_MAX = 7
_TRIES = 5
"""A piece is put away now and then; a second look is nearly always enough."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """The files behind ``events.jsonl``: the sums, and pieces that are not in them, oldest first."""

    summed: str | None
    pieces: tuple[str, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        return self.pieces if self.summed is None else (self.summed, *self.pieces)


def append_line(store: Store, line: bytes, piece_bytes: int | None = None) -> None:
    """Raises: what the store raises when a piece cannot be put away; that is tried again a piece later."""
    piece_bytes = piece_bytes or store.log_bytes_max
    length = store.append(EVENTS, line)
    if length // piece_bytes > (length - len(line)) // piece_bytes:
        _put_away(store)


def read_journal(store: Store) -> bytes:
    """All lines that are left, oldest first. A piece that is put away meanwhile is neither missed nor missing."""
    for last_try in (*[False] * (_TRIES - 1), True):
        pieces = list_pieces(store)
        try:
            current = store.read(EVENTS) if store.exists(EVENTS) else b""
            if list_pieces(store) == pieces or last_try:
                return b"".join([*map(store.read, pieces.paths), current])
        except MissingFile:  # put away, or too old, since we looked; look again
            if last_try:
                raise
    raise AssertionError("the last try returns or raises")


def list_pieces(store: Store) -> Pieces:
    paths = [entry.path for entry in store.list(OLDER_EVENTS)]
    summed = max((path for path in paths if read_summed_events_path(path) is not None), default=None)
    covered = -1 if summed is None else read_summed_events_path(summed) or 0
    numbered = [(number, path) for path in paths if (number := read_older_events_path(path)) is not None]
    return Pieces(summed, tuple(path for number, path in numbered[-OLDER_MAX:] if number > covered))


def sum_up(store: Store, condense: Callable[[bytes, int], bytes]) -> bool:
    """Puts the oldest piece into the sums, once there are as many pieces as there may be; False: there are fewer.

    `condense` gets the sums so far with the piece behind them, and how long its answer may be.
    """
    pieces = list_pieces(store)
    if len(pieces.pieces) < OLDER_MAX:
        return False
    oldest = pieces.pieces[0]
    so_far = b"" if pieces.summed is None else store.read(pieces.summed)
    lines = condense(so_far + store.read(oldest), store.log_bytes_max // 4)
    with suppress(AlreadyExists):  # another driver was faster
        store.create(summed_events_path(read_older_events_path(oldest) or 0), lines)
    store.delete([oldest, *([] if pieces.summed is None else [pieces.summed])])
    return True


def _put_away(store: Store) -> None:
    pieces = [entry.path for entry in store.list(OLDER_EVENTS) if read_older_events_path(entry.path) is not None]
    summed = read_summed_events_path(list_pieces(store).summed or "") or 0
    newest = (read_older_events_path(pieces[-1]) or 0) if pieces else 0
    name = older_events_path(max(newest, summed) + 1)
    with suppress(AlreadyExists):  # a driver that was replaced is still there, and was faster
        store.create(name, store.read(EVENTS))
    store.delete([EVENTS, *[*pieces, name][:-OLDER_MAX]])
