"""A dry run: what would become of every part of a checkpoint if a pipeline were started on it. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import msgspec

from penstock.engine.agreement import require_same_table
from penstock.engine.checkpoints import Checkpoints
from penstock.engine.fork import require_other_tables
from penstock.engine.naming import Naming
from penstock.engine.options import Config
from penstock.engine.startpoint import look_for_start, table_of
from penstock.errors import TableMismatch
from penstock.graph.pipeline import Pipeline
from penstock.observe.progress import human_seconds
from penstock.protocol.fates import New, PartFate, Refused
from penstock.protocol.garbage import kept_until
from penstock.protocol.ids import CheckpointId
from penstock.protocol.manifest import Manifest
from penstock.store import open_store
from penstock.store.base import Store


@dataclass(frozen=True, slots=True)
class Plan:
    """What a start would do with a checkpoint, part by part. Printed, it is a table."""

    url: str
    checkpoint: CheckpointId | None
    """The checkpoint that the start would go on from; None: there is none yet."""
    lines: tuple[PartFate, ...]
    kept_until: CheckpointId | None = None
    """When this one is published, the checkpoint before the change is not kept any more. None: it is in another folder,
    which keeps it."""
    retain: int = 0
    epoch_s: float | None = None

    @property
    def fits(self) -> bool:
        """Whether the query would start."""
        return not any(line.refused for line in self.lines)

    def __str__(self) -> str:
        if self.checkpoint is None:
            return f"{self.url} holds no checkpoint: everything begins empty"
        verdict = "the query can start" if self.fits else "the query would not start"
        back = f"\n{self._way_back()}" if self.fits else ""
        return f"checkpoint {self.checkpoint} in {self.url}: {verdict}\n{table_of(self.lines)}{back}"

    def _way_back(self) -> str:
        if self.kept_until is None:
            return "to go back: the other folder stays as it is, start the old program there"
        assert self.checkpoint is not None
        soon = self.kept_until - self.checkpoint
        when = "" if self.epoch_s is None else f", after about {human_seconds(soon * self.epoch_s)} of epochs"
        return (
            f"to go back: start the old program with restore={self.checkpoint} while its tables fit it. retain="
            f"{self.retain} keeps that checkpoint until checkpoint {self.kept_until} is published{when}; a larger"
            " retain keeps it longer, a savepoint for good"
        )

    def to_json(self) -> str:
        """One document, for programs."""
        parts = [
            {
                "kind": line.kind,
                "name": line.name,
                "fate": line.word,
                "detail": line.detail,
                "rows": line.rows,
                "bytes": line.bytes,
            }
            for line in self.lines
        ]
        document = {
            "checkpoint": self.checkpoint,
            "folder": self.url,
            "fits": self.fits,
            "kept_until": self.kept_until,
            "parts": parts,
        }
        return msgspec.json.format(msgspec.json.encode(document)).decode()


def plan_start(
    pipeline: Pipeline,
    config: Config,
    store_of: Callable[[str], Store] = open_store,
    naming: Naming | None = None,
) -> Plan:
    """Raises: as a start, but nothing for parts that do not fit: the plan tells them."""
    checkpoints = Checkpoints(store_of(config.checkpoint))
    start = look_for_start(checkpoints, pipeline, config, store_of, naming=naming)
    if config.fork and start.origin is not None:
        require_other_tables(start.origin, pipeline)
    if start.evolution is None:
        told = {taken.source: taken.seed.told for taken in start.taken}
        names = (
            *(PartFate("source", source.name, New(told.get(source.name, ""))) for source in pipeline.sources),
            *(PartFate("operator", node.spec.name, New()) for stage in pipeline.stages for node in stage.nodes),
            *(PartFate("sink", binding.name, New()) for binding in pipeline.sinks()),
        )
        return Plan(checkpoints.store.url, None, names)
    lines = start.evolution.lines
    if start.read is not None:
        other = dict(_other_tables(start.read, start.evolution.sinks, pipeline))
        lines = tuple(
            replace(line, fate=other.get(line.name, line.fate)) if line.kind == "sink" else line for line in lines
        )
    checkpoint, ids = start.manifest.checkpoint, tuple(checkpoints.ids())
    kept = kept_until(checkpoint, ids, config.retain) if start.origin is None else None
    return Plan(checkpoints.store.url, checkpoint, lines, kept, config.retain, config.epoch)


def _other_tables(stored: Manifest, kept: Mapping[str, str], pipeline: Pipeline) -> Iterator[tuple[str, Refused]]:
    """Sinks that go on, and point to another table than the one they wrote to."""
    for binding in pipeline.sinks():
        before = kept.get(binding.name)
        if before is None:
            continue
        try:
            require_same_table(binding.name, stored.sinks[before], binding.sink.mark(), binding.sink.description)
        except TableMismatch as error:
            yield binding.name, Refused(error.seen, error.next_step)
