"""Writes the golden checkpoint in tests/support/golden-optional: ``python -m tests.support.golden_optional``.

It is a manifest with the fields that are left out of most: a source position by name, with a source that was parked and
a rewrite that is to come, a watermark for each part of a source, timers with and without `last`, a rescaled stage. It
names no files. As with `golden_checkpoint`: run it only when the format changes on purpose.
"""

from __future__ import annotations

from pathlib import Path

from penstock.protocol.codec import encode_manifest
from penstock.protocol.keygroups import KeyGroupRange
from penstock.protocol.layout import manifest_path
from penstock.protocol.manifest import (
    EdgeShape,
    EdgeState,
    Manifest,
    OperatorShape,
    PartClock,
    PipelineShape,
    SinkState,
    SourceClock,
    SourcePosition,
    SourceRewrite,
    StageClock,
    Timer,
)
from penstock.store.local import LocalStore

GOLDEN = Path(__file__).parent / "golden-optional"
CHECKPOINT, GENERATION, BATCH = 7, 3, 4
EDGE, OPERATOR, SINK = "clicks-to-per_minute", "per_minute", "table"
NOON = 1_767_268_800_000_000
MINUTE = 60_000_000

NAMES = {"clicks": ("clicks-0", "clicks-1")}
PARKED = {"orders": {"orders-0": '{"logOffset":12}', "orders-1": None}}
REWRITE = {
    str(batch): "\n".join(
        (
            "v2",
            '{"conf":{"spark.sql.streaming.queryEvolution.enableSourceEvolution":"true"}}',
            f'clicks-0:{{"logOffset":{batch}}}',
            "clicks-1:-",
        )
    )
    for batch in (BATCH - 1, BATCH)
}
TIMERS = (
    Timer(groups=KeyGroupRange(0, 4), event_time=NOON, last=NOON + 5 * MINUTE),
    Timer(groups=KeyGroupRange(4, 8), processing_time=NOON + MINUTE, last=None),
    Timer(groups=KeyGroupRange(8, 12), event_time=NOON + 2 * MINUTE),
)
"""Everything has come out five minutes after noon; nothing waits for event time; nobody has said."""


def write() -> None:
    store = LocalStore(GOLDEN)
    store.delete(entry.path for entry in store.list(""))
    store.create(manifest_path(CHECKPOINT), encode_manifest(manifest()))


def manifest() -> Manifest:
    clicks = (("user", "int64"), ("ts", "timestamp[us, tz=UTC]"))
    counts = (("user", "int64"), ("n", "int64"))
    return Manifest(
        format=1,
        library="0.1.0",
        identity="fedcba9876543210fedcba9876543210",
        checkpoint=CHECKPOINT,
        parent=CHECKPOINT - 1,
        generation=GENERATION,
        created_at="2026-11-18T15:00:00.000+00:00",
        max_parallelism=12,
        parallelism={OPERATOR: 3},
        shape=PipelineShape(
            sources={"clicks": clicks},
            operators={OPERATOR: OperatorShape(kind="window", stage=OPERATOR, output=counts, state={"": counts})},
            edges={EDGE: EdgeShape(producer="clicks", consumer=OPERATOR, keys=("user",), columns=clicks)},
            sinks=(SINK,),
        ),
        source=SourcePosition(
            batch_id=BATCH,
            offsets_digest="1" * 32,
            query_id="5f0c6f1e-0000-4000-8000-000000000001",
            names=NAMES,
            parked=PARKED,
            rewrite=SourceRewrite(entries=REWRITE),
        ),
        edges={EDGE: EdgeState(accepted=500, consumed=490, dropped=10, segments=())},
        state={},
        sinks={SINK: SinkState(committed=CHECKPOINT - 1, snapshot=6, watermark=NOON // 1000)},
        now=NOON + 10 * MINUTE,
        sources={
            "clicks": SourceClock(
                max_event_time=NOON + MINUTE,
                watermark=NOON,
                active_at=NOON + 10 * MINUTE,
                parts={"clicks/3": PartClock(max_event_time=NOON + MINUTE, active_at=NOON + 10 * MINUTE)},
            )
        },
        stages={OPERATOR: StageClock(watermark=NOON, timers={OPERATOR: TIMERS}, rescaled=CHECKPOINT - 2)},
        counters={f"{OPERATOR}.late": 10},
    )


if __name__ == "__main__":
    write()
