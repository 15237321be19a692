"""A fork: a second query that goes on from the same checkpoint, into other tables.

The fork has an identity of its own, so its commits are not those of the original. What the original still has to
commit stays with the original. State, rows in flight and the position in the source are the same for both.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import msgspec

from penstock.protocol.manifest import Manifest, SinkState, TableMark


class SameTable(Enum):
    """Whether a sink of a fork points to a table that the original writes to."""

    YES = "the same table"
    NO = "another table, or none yet"
    ASK = "the marks cannot tell: if the original's commits are in the table, it is the same one"


def source_query_id(identity: str) -> str:
    """The id of the fork's streaming query. Spark does not run two queries of one id at once.

    >>> source_query_id("0123456789abcdef0123456789abcdef")
    '01234567-89ab-cdef-0123-456789abcdef'
    """
    return "-".join(identity[start:end] for start, end in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)))


def forked(origin: Manifest, identity: str) -> Manifest:
    """The checkpoint as the fork goes on from it: the source's own folder is brought along, as it was then."""
    assert identity != origin.identity
    return msgspec.structs.replace(
        origin,
        identity=identity,
        source=msgspec.structs.replace(origin.source, query_id=None, rewind=True),
        sinks={name: SinkState() for name in origin.sinks},
    )


def judge_fork_table(origin: SinkState, there: TableMark | None) -> SameTable:
    """`there` is the table that a sink of the fork points to, None where there is none."""
    if there is None:
        return SameTable.NO
    mark = origin.table
    if isinstance(mark, msgspec.UnsetType) or None in {mark.made_at_ms, there.made_at_ms}:
        return SameTable.ASK
    if mark.made_at_ms != there.made_at_ms:
        return SameTable.NO
    # Made in the same millisecond under another name: renamed since, or another one.
    return SameTable.YES if mark.name == there.name else SameTable.ASK


def fork_tables(origin: Manifest, there: Mapping[str, TableMark | None]) -> dict[tuple[str, str], SameTable]:
    """By sink of the fork and sink of the original, what their tables' marks tell; pairs that differ are left out."""
    judged = {
        (name, other): judge_fork_table(state, mark)
        for name, mark in there.items()
        for other, state in origin.sinks.items()
    }
    return {pair: verdict for pair, verdict in judged.items() if verdict is not SameTable.NO}
