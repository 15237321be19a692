"""The checkpoint that a query starts from: the newest, a named one, one from elsewhere, none yet. Changes nothing."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import msgspec

from penstock.engine.checkpoints import Checkpoints
from penstock.engine.commitlog import in_tables
from penstock.engine.foreign import require_own_folder
from penstock.engine.history import utc_now
from penstock.engine.migrating import Migrated
from penstock.engine.naming import ByName, Naming, SourceFacts, first_position, look_at_sources, position_after
from penstock.engine.options import Config
from penstock.engine.origin import Origin, find_origin, fork_identity, require_finished, require_new
from penstock.engine.sparkorigin import Begin, TakenOffsets
from penstock.errors import CheckpointMismatch, ConfigError, RestoreRefused
from penstock.graph.pipeline import Pipeline
from penstock.protocol.evolve import Allowed, BadName, Changed, Evolution, evolve
from penstock.protocol.evolved import dropped_rows, evolved
from penstock.protocol.fates import Fate, PartFate, Refused
from penstock.protocol.fork import forked
from penstock.protocol.manifest import Manifest
from penstock.protocol.recover import Dropped, edges_named, first_manifest
from penstock.store.base import Store
from penstock.version import VERSION

_log = logging.getLogger("penstock")


@dataclass(frozen=True, slots=True)
class StartPoint:
    """What to go on from; `origin` is set when it still has to be brought here."""

    manifest: Manifest
    """As the pipeline goes on from it."""
    origin: Origin | None = None
    dropped: tuple[Dropped, ...] = ()
    read: Manifest | None = None
    """As it lies in the folder, where the pipeline makes something else of it."""
    evolution: Evolution | None = None
    migrated: tuple[Migrated, ...] = ()
    taken: tuple[TakenOffsets, ...] = ()
    """What sources that begin here take from queries of Spark."""

    @property
    def changed(self) -> Manifest | None:
        """As it lies in the folder, if the pipeline goes on from it under any other name or shape."""
        return None if self.read == self.manifest else self.read


def find_start(
    checkpoints: Checkpoints,
    pipeline: Pipeline,
    config: Config,
    open_store: Callable[[str], Store],
    *,
    naming: Naming | None = None,
) -> StartPoint:
    """The checkpoint to go on from, as the pipeline has a place for it, its files known to be there.

    Raises: `CheckpointMismatch`, `RestoreRefused`, `NoSuchCheckpoint`, `CorruptFile`, `MissingFile`, `FormatTooNew`;
    `NotACheckpoint`; `PipelineError` for names that a new checkpoint should not have.
    """
    start = look_for_start(checkpoints, pipeline, config, open_store, naming=naming)
    refused = () if start.evolution is None else start.evolution.refused
    if refused and start.evolution is not None:
        raise _misfit(start.read or start.manifest, holder(checkpoints, start).store.url, start.evolution.lines)
    _tell(start)
    if start.evolution is not None:
        with nullcontext() if start.origin is None else start.origin.watched():
            holder(checkpoints, start).verify_files(start.manifest)
    return start


def look_for_start(
    checkpoints: Checkpoints,
    pipeline: Pipeline,
    config: Config,
    open_store: Callable[[str], Store],
    *,
    naming: Naming | None = None,
) -> StartPoint:
    """The same, also where something of it is refused: the manifest is then the checkpoint's own. Changes nothing.

    Raises: as `find_start`, but `CheckpointMismatch` only for another `max_parallelism`.
    """
    naming = naming or ByName()
    start = _stored(checkpoints, config, open_store)
    if start is None or start.origin is not None:
        require_own_folder(checkpoints.store)
    if start is None:
        _refuse_named(checkpoints, config)
        require_finished(checkpoints.store)
        pipeline.require_portable_names()
        first = first_manifest(
            identity=uuid.uuid4().hex,
            library=VERSION,
            max_parallelism=config.max_parallelism,
            shape=pipeline.shape(),
            created_at=utc_now(),
        )
        source, taken = first_position(naming, checkpoints.store, _begins(pipeline), open_store)
        return StartPoint(msgspec.structs.replace(first, source=source), taken=taken)
    _require_groups(start.manifest, config)
    holding = holder(checkpoints, start).store
    facts = look_at_sources(start.manifest, naming, holding, _begins(pipeline), open_store)
    return _evolved(start, checkpoints, pipeline, config, facts)


def _begins(pipeline: Pipeline) -> list[Begin]:
    return [
        Begin(source.name, source.begin.place, source.begin.without_state)
        for source in pipeline.sources
        if source.begin is not None
    ]


def holder(checkpoints: Checkpoints, start: StartPoint) -> Checkpoints:
    """The folder in which the checkpoint lies."""
    return checkpoints if start.origin is None else start.origin.checkpoints


def _stored(checkpoints: Checkpoints, config: Config, open_store: Callable[[str], Store]) -> StartPoint | None:
    match config.restore:
        case None:
            newest = checkpoints.newest()
            return None if newest is None else StartPoint(newest)
        case int(number):
            return StartPoint(checkpoints.restorable(number))
        case place:
            origin = find_origin(place, open_store)
            if config.fork:
                origin = replace(origin, fork=fork_identity(checkpoints.store, origin))
            require_new(checkpoints, origin)
            if origin.fork is not None:
                return StartPoint(forked(origin.manifest, origin.fork), origin)
            # The copy's source folder ends with this checkpoint's micro-batch; another kind of feed has to go back.
            source = msgspec.structs.replace(origin.manifest.source, rewind=True)
            return StartPoint(msgspec.structs.replace(origin.manifest, source=source), origin)


def _evolved(
    start: StartPoint, checkpoints: Checkpoints, pipeline: Pipeline, config: Config, facts: SourceFacts
) -> StartPoint:
    stored, shape = start.manifest, pipeline.shape()
    _refuse_unknown_drop(stored, config)
    in_table = in_tables(holder(checkpoints, start).store, stored)
    new = Changed(
        shape,
        pipeline.state_rules(),
        pipeline.outputs(),
        facts.by_name,
        in_table,
        config.fork,
        facts.fixed,
        facts.readers,
        _seen(stored),
    )
    allowed = Allowed(
        dict(config.renamed),
        frozenset(config.forget),
        frozenset(config.reset),
        frozenset(name for name, _ in config.migrate),
        # A folder is named by every restore into a new one, and what was migrated must not be once more.
        isinstance(config.restore, int) or (start.origin is not None and start.origin.named),
        config.drop_in_flight,
    )
    evolution = evolve(stored, new, allowed)
    if isinstance(evolution, BadName):
        raise ConfigError(
            f"{evolution.option}: {evolution.why}",
            cause="a typo, or the option is of an earlier start",
            next_step=evolution.next_step,
            option=evolution.option,
        )
    if evolution.refused:
        return replace(start, read=stored, evolution=evolution)
    if config.restore is None:
        _refuse_named(checkpoints, config, drops=_drops_more(stored, new, allowed, evolution))
    source = position_after(stored, evolution, facts, allowed.reset)
    manifest = msgspec.structs.replace(evolved(stored, shape, evolution), source=source)
    dropped = dropped_rows(stored, evolution)
    return replace(start, manifest=manifest, dropped=dropped, read=stored, evolution=evolution, taken=facts.taken)


def _seen(stored: Manifest) -> str:
    """The largest event time that sources have delivered."""
    times = [clock.max_event_time for clock in stored.sources.values() if clock.max_event_time is not None]
    if not times:
        return ""
    return f"{datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=max(times)):%Y-%m-%d %H:%M:%S} UTC"


def _refuse_unknown_drop(stored: Manifest, config: Config) -> None:
    if config.drop_in_flight == "all" or config.restore is None:
        return
    shape = stored.shape
    _, unknown = edges_named(shape, config.drop_in_flight)
    if unknown:
        raise ConfigError(
            f"drop_in_flight names {', '.join(map(repr, unknown))}; edges are {', '.join(shape.edges)}",
            cause="a typo, or the operator has no name=",
            next_step="name edges as above, or the operators behind them",
            option="drop_in_flight",
        )


def _drops_more(stored: Manifest, new: Changed, allowed: Allowed, evolution: Evolution) -> bool:
    """Whether rows are dropped that the pipeline has a place for."""
    if allowed.drop_in_flight == "all":
        return True
    without = evolve(stored, new, replace(allowed, drop_in_flight=()))
    assert isinstance(without, Evolution)
    homeless = {line.name for line in without.refused if line.kind == "rows in flight"}
    return any(flow.dropped and flow.edge not in homeless for flow in evolution.flows)


def _refuse_named(checkpoints: Checkpoints, config: Config, *, drops: bool = True) -> None:
    """Without a named checkpoint the same program would drop or reset again at every restart, whatever is there then.

    Rows that nobody reads any more are no such case: after the first start there are none.
    """
    if config.restore is not None:
        return
    ids = checkpoints.ids()
    for option, value in (("drop_in_flight", config.drop_in_flight if drops else ()), ("reset", config.reset)):
        if value:
            raise RestoreRefused(
                f"{option}={value!r} without restore",
                cause="records are dropped from one named checkpoint only, never from whatever the newest happens to be"
                if option == "drop_in_flight"
                else "state is reset from one named checkpoint only, or every restart would reset it again",
                next_step=f"add restore={ids[-1]} for this one start" if ids else "leave it out: nothing is in flight",
            )


def _tell(start: StartPoint) -> None:
    for line in () if start.evolution is None else start.evolution.lines:
        if line.word not in {"carried", "new"}:
            _log.info(
                "checkpoint %s: %s %s %s: %s", start.manifest.checkpoint, line.kind, line.name, line.word, line.detail
            )


def _require_groups(stored: Manifest, config: Config) -> None:
    if stored.max_parallelism != config.max_parallelism:
        raise CheckpointMismatch(
            f"checkpoint {stored.checkpoint} has max_parallelism {stored.max_parallelism}, "
            f"{config.max_parallelism} was asked for",
            cause="max_parallelism is fixed for the life of a checkpoint folder",
            next_step=f"start with max_parallelism={stored.max_parallelism}; or rewrite it: penstock savepoint FOLDER"
            f" PATH --max-parallelism {config.max_parallelism}, then start with restore=PATH in a new folder",
        )


def table_of(lines: Sequence[PartFate]) -> str:
    """The decision, for people."""
    names = [f"{line.kind} {line.name}" for line in lines]
    width = max(map(len, names), default=0)
    return "\n".join(
        f"    {name:<{width}}  {line.word:<9}  {_size(line)}{line.detail}".rstrip()
        for name, line in zip(names, lines, strict=True)
    )


def _size(line: PartFate) -> str:
    if not line.rows:
        return ""
    return f"{line.rows:,} rows, {line.bytes:,} bytes  " if line.bytes else f"{line.rows:,} rows  "


def _misfit(stored: Manifest, url: str, lines: Sequence[PartFate]) -> CheckpointMismatch:
    refused = [line for line in lines if line.refused]
    return CheckpointMismatch(
        f"checkpoint {stored.checkpoint} in {url} against this pipeline:\n{table_of(lines)}",
        cause="the pipeline was changed in a way that would lose what the checkpoint holds, or the folder belongs to"
        " another pipeline",
        next_step=f"for {refused[0].kind} {refused[0].name}: {_option(refused[0].fate)};"
        " start(dry_run=True) shows this table without starting",
    )


def _option(fate: Fate) -> str:
    """What would allow a part that is refused: often one of several."""
    return fate.option if isinstance(fate, Refused) else ""
