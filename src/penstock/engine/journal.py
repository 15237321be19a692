"""The lines of a query's history: ``events.jsonl``, and behind it a bounded number of older pieces in ``events/``.

Nothing here is needed for recovery. A crash while a piece is put away may leave lines twice.
"""

from __future__ import annotations

from contextlib import suppress

from penstock.errors import MissingFile
from penstock.protocol.layout import EVENTS, OLDER_EVENTS, older_events_path, read_older_events_path
from penstock.store.base import AlreadyExists, Store

OLDER_MAX = 7
_TRIES = 5
"""A piece is put away now and then; a second look is nearly always enough."""


def append_line(store: Store, line: bytes, piece_bytes: int | None = None) -> None:
    """Raises: what the store raises when a piece cannot be put away; that is tried again a piece later."""
    piece_bytes = piece_bytes or store.log_bytes_max
    length = store.append(EVENTS, line)
    if length // piece_bytes > (length - len(line)) // piece_bytes:
        _put_away(store)


def read_journal(store: Store) -> bytes:
    """All lines that are left, oldest first. A piece that is put away meanwhile is neither missed nor missing."""
    for last_try in (*[False] * (_TRIES - 1), True):
        pieces = _pieces(store)
        try:
            current = store.read(EVENTS) if store.exists(EVENTS) else b""
            if _pieces(store) == pieces or last_try:
                return b"".join([*map(store.read, pieces[-OLDER_MAX:]), current])
        except MissingFile:  # put away, or too old, since we looked; look again
            if last_try:
                raise
    raise AssertionError("the last try returns or raises")


def _put_away(store: Store) -> None:
    pieces = _pieces(store)
    name = older_events_path((read_older_events_path(pieces[-1]) or 0) + 1 if pieces else 1)
    with suppress(AlreadyExists):  # a driver that was replaced is still there, and was faster
        store.create(name, store.read(EVENTS))
    store.delete([EVENTS, *[*pieces, name][:-OLDER_MAX]])


def _pieces(store: Store) -> list[str]:
    return [entry.path for entry in store.list(OLDER_EVENTS) if read_older_events_path(entry.path) is not None]
