"""The history of a query stays bounded, and what is left of it can be read in order."""

from __future__ import annotations

import pytest

from penstock.observe.journal import OLDER_MAX, append_line, read_journal
from penstock.protocol.layout import EVENTS, OLDER_EVENTS
from penstock.store import open_store
from penstock.store.base import Store

PIECE = 100


@pytest.fixture
def store(tmp_path) -> Store:
    return open_store(str(tmp_path))


def line(number: int) -> bytes:
    return b"%09d\n" % number


def numbers(store: Store) -> list[int]:
    return [int(part) for part in read_journal(store).split()]


def test_a_folder_without_history_has_no_lines(store):
    assert read_journal(store) == b""


def test_a_short_history_is_one_file(store):
    for number in range(9):
        append_line(store, line(number), PIECE)
    assert numbers(store) == list(range(9))
    assert store.list(OLDER_EVENTS) == []


@pytest.mark.parametrize("lines", [10, 15, 30, 10 * OLDER_MAX])
def test_a_longer_history_is_read_across_its_pieces(store, lines):
    for number in range(lines):
        append_line(store, line(number), PIECE)
    assert numbers(store) == list(range(lines))
    assert len(store.list(OLDER_EVENTS)) == lines // 10


def test_the_oldest_pieces_go(store):
    for number in range(1005):
        append_line(store, line(number), PIECE)
    kept = numbers(store)
    assert kept == list(range(1005 - len(kept), 1005))
    assert len(store.list(OLDER_EVENTS)) == OLDER_MAX
    assert len(kept) == 10 * OLDER_MAX + 5


def test_a_crash_while_a_piece_is_put_away_loses_nothing(store, monkeypatch):
    for number in range(9):
        append_line(store, line(number), PIECE)
    with monkeypatch.context() as patched:
        patched.setattr(store, "delete", lambda paths: (_ for _ in ()).throw(OSError("crash")))
        with pytest.raises(OSError, match="crash"):
            append_line(store, line(9), PIECE)
    for number in range(10, 25):
        append_line(store, line(number), PIECE)
    assert sorted(set(numbers(store))) == list(range(25))
    assert len(store.read(EVENTS)) < PIECE


@pytest.mark.parametrize("lines", [9, 10 * OLDER_MAX + 9])
@pytest.mark.parametrize("more", [1, 2])
@pytest.mark.parametrize("moment", range(1, 5))
def test_a_piece_that_is_put_away_while_the_history_is_read_is_neither_missed_nor_missing(
    store, monkeypatch, lines, more, moment
):
    """With the most pieces that there may be, the oldest one goes at the same time."""
    for number in range(lines):
        append_line(store, line(number), PIECE)
    calls = iter(range(1, 100))

    def then(original):
        def call(*arguments):
            if next(calls) == moment:
                for number in range(lines, lines + more):
                    append_line(store, line(number), PIECE)
            return original(*arguments)

        return call

    for name in ("list", "exists", "read"):
        monkeypatch.setattr(store, name, then(getattr(store, name)))
    read = numbers(store)
    assert read in (list(range(read[0], lines + more)), list(range(read[0], lines)))
    assert read[0] in ((0,) if lines == 9 else (0, 10))
