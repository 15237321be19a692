"""What a fork takes from its original, and which tables it must leave alone."""

from __future__ import annotations

import msgspec
import pytest

from penstock.protocol.fork import SameTable, fork_tables, forked, judge_fork_table, source_query_id
from penstock.protocol.ids import BatchId, CheckpointId
from penstock.protocol.manifest import (
    Committable,
    Manifest,
    PendingCommit,
    PipelineShape,
    SinkState,
    SourcePosition,
    TableMark,
)
from tests.support.evolving import checkpoint_of

MARK = TableMark(name="shop.totals", made_at_ms=1_000)
IDENTITY = "0123456789abcdef0123456789abcdef"


def original() -> Manifest:
    pending = PendingCommit(checkpoint=CheckpointId(7), committables=(Committable(b"x", 3, 4),))
    return msgspec.structs.replace(
        checkpoint_of(PipelineShape(sources={}, operators={}, edges={}, sinks=("out",))),
        source=SourcePosition(batch_id=BatchId(9), offsets_digest="d", query_id="spark's", names={"orders": ("a",)}),
        sinks={"out": SinkState(committed=CheckpointId(6), snapshot=5, pending=(pending,), table=MARK)},
    )


def test_a_fork_has_everything_but_the_identity_and_the_commits() -> None:
    """F7."""
    before = original()
    after = forked(before, IDENTITY)
    assert after.identity == IDENTITY
    assert after.sinks == {"out": SinkState()}
    assert after.source == SourcePosition(
        batch_id=BatchId(9), offsets_digest="d", rewind=True, names={"orders": ("a",)}
    )
    same = {"identity": "", "sinks": {}, "source": SourcePosition()}
    assert msgspec.structs.replace(after, **same) == msgspec.structs.replace(before, **same)


def test_the_id_of_a_forks_streaming_query_is_a_uuid_of_its_identity() -> None:
    assert source_query_id(IDENTITY).replace("-", "") == IDENTITY


@pytest.mark.parametrize(
    ("there", "wrote", "verdict"),
    [
        (None, MARK, SameTable.NO),
        (MARK, MARK, SameTable.YES),
        (TableMark(name="shop.totals", made_at_ms=2_000), MARK, SameTable.NO),
        (TableMark(name="shop.renamed", made_at_ms=1_000), MARK, SameTable.ASK),
        (TableMark(name="Discard"), TableMark(name="Discard"), SameTable.ASK),
        (MARK, msgspec.UNSET, SameTable.ASK),
    ],
)
def test_the_marks_of_tables_tell_whether_a_fork_would_write_to_the_originals(
    there: TableMark | None, wrote: TableMark | msgspec.UnsetType, verdict: SameTable
) -> None:
    assert judge_fork_table(SinkState(table=wrote), there) is verdict


def test_every_sink_of_the_fork_is_held_against_every_sink_of_the_original() -> None:
    assert fork_tables(original(), {"a": None, "b": MARK}) == {("b", "out"): SameTable.YES}
