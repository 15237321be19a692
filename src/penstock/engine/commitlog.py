"""The commit log of a checkpoint folder: what its driver told of commits, and what a copy of a checkpoint must know."""

from __future__ import annotations

from penstock.observe.commit_log import commit_log
from penstock.observe.events import Committed, decode_events, encode_event
from penstock.observe.journal import read_journal
from penstock.protocol.layout import EVENTS
from penstock.protocol.manifest import Manifest
from penstock.store.base import Store


def read_commits(store: Store) -> list[Committed]:
    """Every commit that the history still has."""
    return commit_log(decode_events(read_journal(store)))


def in_tables(store: Store, manifest: Manifest) -> dict[str, int]:
    """By sink, the last checkpoint that a commit put into the table after the manifest was written."""
    found: dict[str, int] = {}
    for commit in _later_commits(store, manifest):
        found[commit.sink] = max(commit.last, found.get(commit.sink, -1))
    return found


def bring_commits(origin: Store, target: Store, manifest: Manifest) -> None:
    """Writes into another folder which pending results of the checkpoint are in their tables already."""
    lines = b"".join(map(encode_event, _later_commits(origin, manifest)))
    if lines:
        target.create(EVENTS, lines)


def _later_commits(store: Store, manifest: Manifest) -> list[Committed]:
    waiting = {name: sink.pending[0].checkpoint for name, sink in manifest.sinks.items() if sink.pending}
    if not waiting:
        return []
    return [commit for commit in read_commits(store) if commit.last >= waiting.get(commit.sink, commit.last + 1)]
