"""A sink that drops everything still takes part in checkpoints."""

from __future__ import annotations

import pyarrow as pa

from penstock.protocol.ids import CheckpointId, Generation
from penstock.sinks.base import CommitPermit, Committer, Sink, Writer, WriterContext
from penstock.sinks.discard import Discard

SCHEMA = pa.schema([("id", pa.int64())])


def test_a_discarding_writer_hands_over_nothing() -> None:
    sink: Sink = Discard()
    sink.check(SCHEMA)
    writer: Writer = sink.open_writer(WriterContext(CheckpointId(1), Generation(1), 0, 1, "0"), SCHEMA)
    writer.write(pa.record_batch([[1, 2]], schema=SCHEMA))
    assert writer.prepare() == []


def test_a_discarding_committer_answers_without_a_snapshot() -> None:
    committer: Committer = Discard().open_committer("me")
    permit = CommitPermit(Generation(1), CheckpointId(7))
    receipt = committer.commit(permit, [], watermark=None, properties={}, still_leader=lambda: True)
    assert (receipt.checkpoint, receipt.snapshot) == (7, None)
    assert committer.commits(None, 1).commits == ()
