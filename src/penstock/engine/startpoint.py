"""The checkpoint that a query starts from: the newest, a named one, one from elsewhere, none yet. Changes nothing."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from penstock.engine.checkpoints import Checkpoints
from penstock.engine.foreign import require_own_folder
from penstock.engine.history import utc_now
from penstock.engine.options import Config
from penstock.engine.origin import Origin, find_origin, require_finished, require_new
from penstock.errors import CheckpointMismatch, ConfigError, RestoreRefused
from penstock.graph.pipeline import Pipeline
from penstock.protocol.manifest import Manifest
from penstock.protocol.recover import (
    Comparison,
    Dropped,
    compare_shapes,
    drop_in_flight,
    edges_named,
    first_manifest,
)
from penstock.store.base import Store
from penstock.version import VERSION

_log = logging.getLogger("penstock")


@dataclass(frozen=True, slots=True)
class StartPoint:
    """What to go on from; `origin` is set when it still has to be brought here."""

    manifest: Manifest
    origin: Origin | None = None
    dropped: tuple[Dropped, ...] = ()


def find_start(
    checkpoints: Checkpoints, pipeline: Pipeline, config: Config, open_store: Callable[[str], Store]
) -> StartPoint:
    """The checkpoint to go on from, known to fit the pipeline, its files known to be there.

    Raises: `CheckpointMismatch`, `RestoreRefused`, `NoSuchCheckpoint`, `CorruptFile`, `MissingFile`, `FormatTooNew`;
    `NotACheckpoint`; `PipelineError` for names that a new checkpoint should not have.
    """
    start = _stored(checkpoints, config, open_store)
    if start is None or start.origin is not None:
        require_own_folder(checkpoints.store)
    if start is None:
        _refuse_drop(checkpoints, config)
        require_finished(checkpoints.store)
        pipeline.require_portable_names()
        return StartPoint(
            first_manifest(
                identity=uuid.uuid4().hex,
                library=VERSION,
                max_parallelism=config.max_parallelism,
                shape=pipeline.shape(),
                created_at=utc_now(),
            )
        )
    holder = checkpoints if start.origin is None else start.origin.checkpoints
    _require_fit(start.manifest, holder.store.url, pipeline, config)
    start = _without_dropped(start, checkpoints, config)
    holder.verify_files(start.manifest)
    return start


def _stored(checkpoints: Checkpoints, config: Config, open_store: Callable[[str], Store]) -> StartPoint | None:
    match config.restore:
        case None:
            newest = checkpoints.newest()
            return None if newest is None else StartPoint(newest)
        case int(number):
            return StartPoint(checkpoints.restorable(number))
        case place:
            origin = find_origin(place, open_store)
            require_new(checkpoints, origin)
            # The copy's source folder ends with this checkpoint's micro-batch; another kind of feed has to go back.
            source = msgspec.structs.replace(origin.manifest.source, rewind=True)
            return StartPoint(msgspec.structs.replace(origin.manifest, source=source), origin)


def _without_dropped(start: StartPoint, checkpoints: Checkpoints, config: Config) -> StartPoint:
    if not config.drop_in_flight:
        return start
    _refuse_drop(checkpoints, config)
    shape = start.manifest.shape
    names = tuple(shape.edges) if config.drop_in_flight == "all" else config.drop_in_flight
    edges, unknown = edges_named(shape, names)
    if unknown:
        raise ConfigError(
            f"drop_in_flight names {', '.join(map(repr, unknown))}; edges are {', '.join(shape.edges)}",
            cause="a typo, or the operator has no name=",
            next_step="name edges as above, or the operators behind them",
            option="drop_in_flight",
        )
    manifest, dropped = drop_in_flight(start.manifest, edges)
    return StartPoint(manifest, start.origin, dropped)


def _refuse_drop(checkpoints: Checkpoints, config: Config) -> None:
    """Refuses `drop_in_flight` without a named checkpoint: the program would drop rows again at every restart."""
    if config.drop_in_flight and config.restore is None:
        ids = checkpoints.ids()
        raise RestoreRefused(
            f"drop_in_flight={config.drop_in_flight!r} without restore",
            cause="records are dropped from one named checkpoint only, never from whatever the newest happens to be",
            next_step=f"add restore={ids[-1]} for this one start" if ids else "leave it out: nothing is in flight",
        )


def _require_fit(stored: Manifest, url: str, pipeline: Pipeline, config: Config) -> None:
    rows = compare_shapes(stored.shape, pipeline.shape(), pipeline.growing_state())
    if not all(row.fits for row in rows):
        raise _misfit(stored, url, rows)
    for row in rows:
        if row.verdict == "extended":
            _log.info("checkpoint %s has less state than the pipeline: %s, %s", stored.checkpoint, row.what, row.detail)
    if stored.max_parallelism != config.max_parallelism:
        raise CheckpointMismatch(
            f"checkpoint {stored.checkpoint} has max_parallelism {stored.max_parallelism}, "
            f"{config.max_parallelism} was asked for",
            cause="max_parallelism is fixed for the life of a checkpoint",
            next_step=f"start with max_parallelism={stored.max_parallelism}",
        )


def _misfit(stored: Manifest, url: str, rows: tuple[Comparison, ...]) -> CheckpointMismatch:
    width = max(len(row.what) for row in rows)
    lines = "\n".join(f"    {row.what:<{width}}  {row.verdict:<12}  {row.detail}".rstrip() for row in rows)
    return CheckpointMismatch(
        f"checkpoint {stored.checkpoint} in {url} against this pipeline:\n{lines}",
        cause="the folder belongs to another pipeline, or the pipeline was changed since",
        next_step="start the pipeline that wrote it, or use a new checkpoint folder (and table) for this one",
    )
