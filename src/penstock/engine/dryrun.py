"""A dry run: what would become of every part of a checkpoint if a pipeline were started on it. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from penstock.engine.checkpoints import Checkpoints
from penstock.engine.options import Config
from penstock.engine.sourcelog import knows_names
from penstock.engine.startpoint import look_for_start, table_of
from penstock.graph.pipeline import Pipeline
from penstock.protocol.fates import New, PartFate
from penstock.protocol.ids import CheckpointId
from penstock.store import open_store
from penstock.store.base import Store


@dataclass(frozen=True, slots=True)
class Plan:
    """What a start would do with a checkpoint, part by part. Printed, it is a table."""

    url: str
    checkpoint: CheckpointId | None
    """The checkpoint that the start would go on from; None: there is none yet."""
    lines: tuple[PartFate, ...]

    @property
    def fits(self) -> bool:
        """Whether the query would start."""
        return not any(line.refused for line in self.lines)

    def __str__(self) -> str:
        if self.checkpoint is None:
            return f"{self.url} holds no checkpoint: everything begins empty"
        verdict = "the query can start" if self.fits else "the query would not start"
        back = (
            f"\nto go back: start the old program with restore={self.checkpoint}, as long as that checkpoint is kept"
            f" (retain=…) and its tables fit it; a savepoint of it stays"
        )
        return (
            f"checkpoint {self.checkpoint} in {self.url}: {verdict}\n{table_of(self.lines)}{back if self.fits else ''}"
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
        document = {"checkpoint": self.checkpoint, "folder": self.url, "fits": self.fits, "parts": parts}
        return msgspec.json.format(msgspec.json.encode(document)).decode()


def plan_start(pipeline: Pipeline, config: Config, store_of: Callable[[str], Store] = open_store) -> Plan:
    """Raises: as a start, but nothing for parts that do not fit: the plan tells them."""
    checkpoints = Checkpoints(store_of(config.checkpoint))
    by_name = knows_names(checkpoints.store)
    start = look_for_start(checkpoints, pipeline, config, store_of, sources_by_name=by_name)
    if start.evolution is None:
        names = (
            *(PartFate("source", source.name, New()) for source in pipeline.sources),
            *(PartFate("operator", node.spec.name, New()) for stage in pipeline.stages for node in stage.nodes),
            *(PartFate("sink", binding.name, New()) for binding in pipeline.sinks()),
        )
        return Plan(checkpoints.store.url, None, names)
    return Plan(checkpoints.store.url, start.manifest.checkpoint, start.evolution.lines)
