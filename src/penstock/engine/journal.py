"""The lines of a query's history: ``events.jsonl``, and behind it a bounded number of older pieces in ``events/``.

Nothing here is needed for recovery. A crash while a piece is put away may leave lines twice.
"""

from __future__ import annotations

from contextlib import suppress

from penstock.store.base import AlreadyExists, Store

EVENTS = "events.jsonl"
OLDER = "events"
PIECE_BYTES = 32 << 20
OLDER_MAX = 7


class Journal:
    """Appends lines; whoever calls it does so from one thread at a time."""

    def __init__(self, store: Store, piece_bytes: int = PIECE_BYTES) -> None:
        self._store, self._piece_bytes = store, piece_bytes
        self._bytes: int | None = None

    def append(self, line: bytes) -> None:
        """Raises: what the store raises; the line may be missing then."""
        if self._bytes is None:
            self._bytes = _size(self._store)
        self._store.append(EVENTS, line)
        self._bytes += len(line)
        if self._bytes >= self._piece_bytes:
            self._put_away()

    def _put_away(self) -> None:
        self._bytes = 0  # also if this fails: the next try comes with the next piece
        pieces = _pieces(self._store)
        number = int(pieces[-1].rpartition("/")[2].partition(".")[0]) + 1 if pieces else 1
        name = f"{OLDER}/{number:010d}.jsonl"
        with suppress(AlreadyExists):  # a driver that was replaced is still there, and was faster
            self._store.create(name, self._store.read(EVENTS))
        self._store.delete([EVENTS, *[*pieces, name][:-OLDER_MAX]])


def read_journal(store: Store) -> bytes:
    """All lines that are left, oldest first."""
    current = [EVENTS] if store.exists(EVENTS) else []
    return b"".join(store.read(path) for path in [*_pieces(store), *current])


def _pieces(store: Store) -> list[str]:
    return [entry.path for entry in store.list(OLDER)]


def _size(store: Store) -> int:
    if not store.exists(EVENTS):
        return 0
    reader = store.open_reader(EVENTS)
    try:
        return reader.size
    finally:
        reader.close()
