"""Checkpoint folders of invented queries, written as a driver writes them: what the page is looked at with."""

from __future__ import annotations

import math
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from penstock.observe.events import (
    Alive,
    Committed,
    DriverProcess,
    EpochFailed,
    EpochPublished,
    Event,
    QueryStarted,
    QueryStopped,
    Rescaled,
    SavepointTaken,
    SourceProgress,
    TableKept,
    encode_event,
)
from penstock.observe.figures import BytesWritten, EdgeFigures, StageFigures, SubtaskFigures
from penstock.observe.process import this_process
from penstock.protocol.codec import encode_manifest
from penstock.protocol.ids import CheckpointId, Generation
from penstock.protocol.keygroups import KeyGroupRange, range_of
from penstock.protocol.layout import EVENTS, generation_path, manifest_path
from penstock.protocol.manifest import (
    Committable,
    EdgeShape,
    EdgeState,
    Manifest,
    OperatorShape,
    PendingCommit,
    PipelineShape,
    Segment,
    SinkState,
    SourcePosition,
    Span,
    StageClock,
    StateFile,
    TableMark,
)
from penstock.protocol.report import ErrorReport
from penstock.store import LocalStore

ORDERS = (("user", "int64"), ("amount", "decimal128(10, 2)"), ("ts", "timestamp[us, tz=UTC]"))
GROUPS = 128
EDGES = ("orders-to-clean", "clean-to-enrich", "enrich-to-per_minute", "enrich-to-matched", "payments-to-matched")
STAGES = {"clean": 2, "enrich": 4, "per_minute": 4, "matched": 4}


def _edge(rows: int, name: str, consumed: int, watermark: int | None) -> EdgeState:
    part = rows // 4
    segments = tuple(
        Segment(
            path=f"segments/{name}/0000000001-g1-s{number}-a{number}-0.arrow",
            epoch=CheckpointId(1),
            producer=number,
            sequence=0,
            rows=part,
            bytes=part * 40,
            checksum="0" * 16,
            watermark=watermark,
            spans=(Span(ranges=(range_of(number, 4, GROUPS),), cursor=0, rows_left=part),),
        )
        for number in range(4)
        if part
    )
    left = sum(segment.rows_left for segment in segments)
    return EdgeState(accepted=consumed + left, consumed=consumed, segments=segments, watermark=watermark)


def manifest_of(checkpoint: int, at: datetime, rows: dict[str, int], names: dict[str, str], pending: int) -> Manifest:
    """`names` replaces names of the pipeline by others."""

    def n(name: str) -> str:
        return names.get(name, name)

    now = int(at.timestamp() * 1e6)
    edges = {
        "orders-to-clean": EdgeShape(producer=n("orders"), consumer=n("clean"), keys=(), columns=ORDERS),
        "clean-to-enrich": EdgeShape(producer=n("clean"), consumer=n("enrich"), keys=("user",), columns=ORDERS),
        "enrich-to-per_minute": EdgeShape(
            producer=n("enrich"), consumer=n("per_minute"), keys=("user",), columns=ORDERS
        ),
        "enrich-to-matched": EdgeShape(producer=n("enrich"), consumer=n("matched"), keys=("user",), columns=ORDERS),
        "payments-to-matched": EdgeShape(producer="payments", consumer=n("matched"), keys=("user",), columns=ORDERS),
    }
    state = {"per_minute": 412_000, "matched/left": 91_000, "matched/right": 88_000, "enrich": 1_204_331}
    return Manifest(
        format=1,
        library="0.1.0",
        identity="0123456789abcdef0123456789abcdef",
        checkpoint=CheckpointId(checkpoint),
        parent=CheckpointId(checkpoint - 1) if checkpoint > 1 else None,
        generation=Generation(3),
        created_at=at.isoformat(timespec="milliseconds"),
        max_parallelism=GROUPS,
        parallelism={n(stage): count for stage, count in STAGES.items()},
        shape=PipelineShape(
            sources={n("orders"): ORDERS, "payments": ORDERS},
            operators={
                n("clean"): OperatorShape(kind="map_batches", stage=n("clean"), output=ORDERS),
                "valid": OperatorShape(kind="filter", stage=n("clean"), output=ORDERS),
                n("enrich"): OperatorShape(kind="process", stage=n("enrich"), output=ORDERS, state={"": ORDERS}),
                n("per_minute"): OperatorShape(
                    kind="tumbling_window/60000000/60000000/0", stage=n("per_minute"), output=ORDERS, state={"": ORDERS}
                ),
                n("matched"): OperatorShape(
                    kind="join/22", stage=n("matched"), output=ORDERS, state={"left": ORDERS, "right": ORDERS}
                ),
            },
            edges=edges,
            sinks=("minutes", "pairs"),
        ),
        source=SourcePosition(batch_id=None),
        edges={
            name: _edge(rows.get(name, 0), name, 1_000_000, None if name == "orders-to-clean" else now - 42_000_000)
            for name in edges
        },
        state={
            (n(table) if "/" not in table else f"{n('matched')}/{table.partition('/')[2]}"): (
                StateFile(
                    path=f"state/{table}/0000000001-g1-s0-a0-0.arrow",
                    rows=count,
                    bytes=count * 48,
                    checksum="0" * 16,
                    ranges=(KeyGroupRange(0, GROUPS),),
                ),
            )
            for table, count in state.items()
        },
        sinks={
            name: SinkState(
                committed=CheckpointId(checkpoint - pending),
                snapshot=checkpoint - pending,
                pending=tuple(
                    PendingCommit(
                        checkpoint=CheckpointId(number), committables=(Committable(b"x", rows=4100, bytes=90_000),)
                    )
                    for number in range(checkpoint - pending + 1, checkpoint + 1)
                ),
                table=TableMark(name=f"shop.{name}"),
            )
            for name in ("minutes", "pairs")
        },
        now=now,
        stages={n(stage): StageClock(watermark=now - 47_000_000) for stage in ("enrich", "per_minute", "matched")},
        counters={"per_minute.late": 1240},
    )


def epoch_of(number: int, at: datetime, random: Random, load: float, names: dict[str, str]) -> EpochPublished:
    flight = int(max(0.0, load - 1) * 120_000)
    took = 0.55 + 0.35 * min(1.6, load) + random.random() * 0.12
    stages = {}
    for stage, count in STAGES.items():
        share = took * {"clean": 0.15, "enrich": 0.45, "per_minute": 0.2, "matched": 0.2}[stage]
        weights = [1 + (2.2 if k == 1 and stage == "enrich" else random.random() * 0.3) for k in range(count)]
        longest = max(weights)
        step = [int(share * 0.62e6 * w / longest) for w in weights]
        rows = [int(9000 * load * w / sum(weights)) for w in weights]
        stages[names.get(stage, stage)] = StageFigures(
            job_s=share,
            outside_s=share * 0.18,
            opening_s=share * 0.05,
            waiting_s=share * 0.07,
            stepping_s=share * 0.62,
            writing_s=share * 0.08,
            launched=count,
            rows=sum(rows),
            rows_max=max(rows),
            rows_out=sum(rows) // 2,
            row_cost_s=41e-6,
            memory_bytes=380 << 20,
            subtasks=SubtaskFigures(
                subtask=tuple(range(count)),
                rows=tuple(rows),
                rows_out=tuple(r // 2 for r in rows),
                elapsed_us=tuple(int(s + share * 0.2e6) for s in step),
                opening_us=(int(share * 0.05e6),) * count,
                waiting_us=(int(share * 0.07e6),) * count,
                stepping_us=tuple(step),
                writing_us=(int(share * 0.08e6),) * count,
                barrier_us=(8000,) * count,
            ),
        )
    return EpochPublished(
        at=at.isoformat(timespec="milliseconds"),
        checkpoint=CheckpointId(number),
        kind="drain" if flight and number % 3 else "ingest",
        batch_id=None,
        rows_in=int(9000 * load),
        rows_processed=int(9000 * min(load, 1.2)),
        rows_out=int(4100 * min(load, 1.2)),
        rows_in_flight=flight,
        bytes_in_flight=flight * 40,
        segments_in_flight=min(40, flight // 4000),
        duration_s=took + 0.05,
        job_s=took,
        publish_s=0.05,
        barrier_fired=load > 1,
        barrier_delay_s=0.02 if load > 1 else 0.0,
        bytes_written=BytesWritten(segments=flight // 20, state=90_000, manifest=4_000),
        parallelism={names.get(stage, stage): count for stage, count in STAGES.items()},
        committed=CheckpointId(max(1, number - 2)),
        watermarks={names.get("per_minute", "per_minute"): (at - timedelta(seconds=47)).isoformat()},
        counters={"per_minute.late": number * 4},
        waited_s=0.25 / load,
        state_rows=1_795_000,
        state_bytes=86_000_000,
        stages=stages,
        edges={
            edge: EdgeFigures(
                rows_in=int(9000 * load),
                rows_processed=8000,
                rows_in_flight=flight if edge == "clean-to-enrich" else 0,
                bytes_in_flight=flight * 40 if edge == "clean-to-enrich" else 0,
            )
            for edge in EDGES
        },
    )


def write_folder(
    root: Path,
    *,
    epochs: int = 600,
    name: str = "orders",
    end: str = "running",
    names: dict[str, str] | None = None,
    busy: bool = True,
    now: datetime | None = None,
) -> str:
    """`end`: running, killed, failed, stopped."""
    names, random = names or {}, Random(7)
    store = LocalStore(root)
    now = now or datetime.now(UTC)
    loads = [_load(number / epochs, number, busy=busy) for number in range(1, epochs + 1)]
    begin = now - timedelta(seconds=sum(0.66 + 0.35 * min(1.6, load) + 0.25 / load for load in loads))
    dead = 2**22 + 7 if end == "killed" else os.getpid()
    process = msgspec.structs.replace(this_process(), pid=dead)
    events: list[Event] = []
    cuts = {1: 1, epochs // 3: 2, 2 * epochs // 3: 3}
    generation = 1
    at = begin
    for number in range(1, epochs + 1):
        if number in cuts:
            generation = cuts[number]
            at_text = at.isoformat(timespec="milliseconds")
            claim = f'{{"host":"worker-{generation}","pid":{dead},"started_at":"{at_text}","library":"0.1.0"}}'
            store.create(generation_path(Generation(generation)), claim.encode())
            events.append(_started(name, at, generation, number, process))
        epoch = epoch_of(number, at, random, loads[number - 1], names)
        events.append(epoch)
        if number % 3 == 0:
            events.append(_commit(number, at))
        if number == epochs // 2:
            events += _incidents(number, at, names)
        at += timedelta(seconds=epoch.duration_s + epoch.waited_s)
    events += _ending(end, now, generation, epochs)
    for event in events:
        store.append(EVENTS, encode_event(event))
    waiting = {"clean-to-enrich": 90_000, "enrich-to-matched": 2_400, "orders-to-clean": 300} if busy else {}
    for number in range(max(1, epochs - 2), epochs + 1):
        moment = now - timedelta(seconds=epochs - number)
        store.create(
            manifest_path(CheckpointId(number)), encode_manifest(manifest_of(number, moment, waiting, names, 2))
        )
    return str(root)


def _load(share: float, number: int, *, busy: bool) -> float:
    """Calm, a rush in the middle, and one at the end."""
    load = 0.7 + 0.15 * math.sin(number / 40)
    if busy and 0.42 < share < 0.6:
        load += 1.7 * math.sin((share - 0.42) / 0.18 * math.pi)
    return load + (0.75 if busy and share > 0.93 else 0.0)


def _started(name: str, at: datetime, generation: int, number: int, process: DriverProcess) -> QueryStarted:
    return QueryStarted(
        at=at.isoformat(timespec="milliseconds"),
        name=name,
        generation=Generation(generation),
        restored=None if generation == 1 else CheckpointId(number - 1),
        parallelism=dict(STAGES),
        max_parallelism=GROUPS,
        version="0.1.0",
        process=process,
    )


def _commit(number: int, at: datetime) -> Committed:
    return Committed(
        at=at.isoformat(timespec="milliseconds"),
        sink="minutes" if number % 2 else "pairs",
        first=CheckpointId(number - 2),
        last=CheckpointId(number),
        snapshot=number,
        rows=12_300,
        files=4,
        duration_s=0.08 + 0.05 * math.sin(number),
    )


def _incidents(number: int, at: datetime, names: dict[str, str]) -> list[Event]:
    text = at.isoformat(timespec="milliseconds")
    return [
        EpochFailed(
            at=text,
            checkpoint=CheckpointId(number),
            attempt=1,
            code="PEN-033",
            message="an executor was lost: exit 137",
        ),
        Rescaled(at=text, stage=names.get("enrich", "enrich"), old=2, new=4, reason="busy for 30 s"),
        SavepointTaken(
            at=text,
            path="s3://backups/orders-before-release",
            checkpoint=CheckpointId(number),
            rows_in_flight=0,
            files=44,
            bytes=88_000_000,
            duration_s=1.9,
        ),
        TableKept(
            at=text,
            sink="minutes",
            manifests_merged=12,
            files_compacted=40,
            files_written=4,
            snapshots_expired=100,
            orphans_removed=2,
            bytes_removed=14_000_000,
            held_by=None,
            notes=[],
            duration_s=2.1,
        ),
    ]


def _ending(end: str, now: datetime, generation: int, epochs: int) -> list[Event]:
    text = now.isoformat(timespec="milliseconds")
    alive: dict[str, Any] = {"generation": Generation(generation), "every_s": 5.0, "memory_bytes": 512 << 20}
    match end:
        case "failed":
            error = ErrorReport(
                "PEN-030",
                "operator enrich: KeyError: 'country' on the record {'user': 4711, 'amount': 12.50}",
                "the function looks up a key that the record does not have",
                'handle the missing key, or let such records leave with on_error="dead_letter"; then start again',
                {"operator": "enrich"},
            )
            return [QueryStopped(at=text, reason="failed", error=error, generation=Generation(generation))]
        case "stopped":
            return [QueryStopped(at=text, reason="stopped", generation=Generation(generation))]
    sources = (
        SourceProgress(
            source="orders",
            rows_per_s=10_240.0,
            end='{"orders":{"0":1893021,"1":1892977}}',
            latest='{"orders":{"0":1897141,"1":1896002}}',
            behind=4120,
        ),
        SourceProgress(source="payments", rows_per_s=1_940.5, end='{"logOffset":418}', latest='{"logOffset":418}'),
    )
    return [Alive(at=text, stage="enrich", running_s=0.4, sources=sources, **alive)]
