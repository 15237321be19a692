"""Starting a query: everything that can be refused is refused before anything is changed, then the driver takes
over the checkpoint, settles what the tables already hold, and begins."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath

import penstock
from penstock.config import Config
from penstock.engine.background import Spawn, StepThread
from penstock.engine.checkpoints import Checkpoints, Driver, manifest_path
from penstock.engine.cluster import Cluster
from penstock.engine.collect import Collector
from penstock.engine.commits import Commit, CommitCoordinator, SinkCommits, agree
from penstock.engine.epochs import EpochRunner
from penstock.engine.feed import Feed
from penstock.engine.history import History, Listener, commit_event, retry_event, takeover_event, utc_now
from penstock.engine.query import Query
from penstock.errors import CheckpointMismatch, ConfigError, Fenced, MissingFile, TablePositionMismatch
from penstock.graph import Pipeline
from penstock.observe.events import QueryStarted
from penstock.protocol.ids import CheckpointId, Generation, StageName
from penstock.protocol.manifest import Manifest
from penstock.protocol.recover import Comparison, compare_shapes, first_manifest, takeover
from penstock.sinks.base import Committer
from penstock.store import open_store
from penstock.store.base import Store


@dataclass(frozen=True, slots=True)
class Surroundings:
    """How to make what the engine works with, once the store is open. The simulator replaces all of it."""

    cluster: Callable[[Store, str], Cluster]
    feed: Callable[[Store], Feed]
    store: Callable[[str], Store] = open_store
    spawn: Spawn = StepThread
    clock: Callable[[], float] = time.monotonic
    now_us: Callable[[], int] = lambda: time.time_ns() // 1000


def start_query(
    pipeline: Pipeline, config: Config, surroundings: Surroundings, listeners: tuple[Listener, ...] = ()
) -> Query:
    """Raises: any `PenstockError`; the checkpoint is then as it was, and at most an empty table was made."""
    parallelism = resolve_parallelism(pipeline, config.parallelism, config)
    store = surroundings.store(config.checkpoint)
    checkpoints = Checkpoints(store)
    while (owned := _own(checkpoints, pipeline, config, parallelism)) is None:
        pass
    manifest, generation = owned.manifest, owned.generation
    history = History(store, listeners)
    name = config.name or PurePosixPath(store.url).name
    history.record(
        QueryStarted(
            at=utc_now(),
            name=name,
            generation=generation,
            restored=CheckpointId(manifest.parent) if manifest.parent is not None else None,
            parallelism={StageName(stage): count for stage, count in parallelism.items()},
            max_parallelism=manifest.max_parallelism,
            version=penstock.__version__,
        )
    )
    history.record(takeover_event(manifest))
    feed = surroundings.feed(store)
    if manifest.source.rewind:
        feed.rewind(manifest.source.batch_id)
    runner = EpochRunner(
        pipeline=pipeline,
        cluster=surroundings.cluster(store, name),
        checkpoints=checkpoints,
        generation=generation,
        manifest=manifest,
        parallelism=parallelism,
        epoch_s=config.epoch,
        now=utc_now,
        now_us=surroundings.now_us,
        clock=surroundings.clock,
    )
    query = Query(name=name, pipeline=pipeline, config=config, runner=runner, feed=feed, history=history)
    try:
        coordinator = _coordinator(query, checkpoints, owned, history, surroundings)
    except TablePositionMismatch:
        checkpoints.require_leader(generation)  # a newer driver commits already: that is the reason, then
        raise
    collector = Collector(checkpoints, generation, config.retain, query.on_collector_failure, surroundings.spawn)
    query.begin(coordinator, collector, surroundings.spawn)
    return query


@dataclass(frozen=True, slots=True)
class _Owned:
    """A checkpoint folder that this driver has taken over."""

    manifest: Manifest
    generation: Generation
    committers: dict[str, Committer]


def _own(checkpoints: Checkpoints, pipeline: Pipeline, config: Config, parallelism: dict[str, int]) -> _Owned | None:
    """Refuses what does not fit, then takes over. None when another driver was faster: look at everything again."""
    base = _base(checkpoints, pipeline, config)
    try:
        committers = _committers(pipeline, base)
        checkpoints.verify_files(base)
    except (TablePositionMismatch, MissingFile):
        newest = checkpoints.newest()
        if config.restore is None and newest is not None and newest.checkpoint > base.checkpoint:
            return None
        raise
    driver = Driver(socket.gethostname(), os.getpid(), utc_now(), penstock.__version__)
    generation = checkpoints.claim_generation(driver)
    manifest = _take_over(checkpoints, base, config, generation, parallelism)
    return None if manifest is None else _Owned(manifest, generation, committers)


def _committers(pipeline: Pipeline, base: Manifest) -> dict[str, Committer]:
    """One per sink, on tables that fit the stream and agree with the checkpoint."""
    committers = {}
    for binding in pipeline.sinks():
        binding.sink.check(binding.schema)
        committer = binding.sink.open_committer(commit_user(base.identity, binding.name))
        agree(binding.name, base.sinks[binding.name], committer)
        committers[binding.name] = committer
    return committers


def commit_user(identity: str, sink: str) -> str:
    """Belongs to the checkpoint, not to the run: a restarted or copied query is the same committer."""
    return f"penstock-{identity}-{sink}"


def resolve_parallelism(pipeline: Pipeline, wanted: object, config: Config) -> dict[str, int]:
    """Subtasks per stage; a mapping may name any operator of a stage."""
    stage_of = pipeline.stage_of()
    if not isinstance(wanted, int) and wanted is not None:
        assert isinstance(wanted, dict)
        unknown = sorted(set(wanted) - set(stage_of))
        if unknown:
            raise ConfigError(
                f"parallelism names {', '.join(map(repr, unknown))}; operators are {', '.join(stage_of)}",
                cause="a typing error, or an operator without a name= of its own",
                next_step="use the names of operators as above",
            )
        by_stage = {stage_of[operator]: count for operator, count in wanted.items()}
        return {stage.name: by_stage.get(stage.name, config.parallelism_of(stage.name)) for stage in pipeline.stages}
    return {stage.name: config.parallelism_of(stage.name) for stage in pipeline.stages}


def _base(checkpoints: Checkpoints, pipeline: Pipeline, config: Config) -> Manifest:
    """The checkpoint to go on from, known to fit."""
    if config.restore is not None and not isinstance(config.restore, int):
        raise ConfigError(
            f"restore={config.restore!r}",
            cause="restore takes the id of a checkpoint in the same folder",
            next_step="to start from a copy, set checkpoint= to the copied folder",
            option="restore",
        )
    stored = checkpoints.newest() if config.restore is None else checkpoints.restorable(CheckpointId(config.restore))
    shape = pipeline.shape()
    if stored is None:
        return first_manifest(
            identity=uuid.uuid4().hex,
            library=penstock.__version__,
            max_parallelism=config.max_parallelism,
            shape=shape,
            created_at=utc_now(),
        )
    rows = compare_shapes(stored.shape, shape)
    if not all(row.fits for row in rows):
        raise _misfit(stored, checkpoints.store.url, rows)
    if stored.max_parallelism != config.max_parallelism:
        raise CheckpointMismatch(
            f"checkpoint {stored.checkpoint} has max_parallelism {stored.max_parallelism}, "
            f"{config.max_parallelism} was asked for",
            cause="max_parallelism is fixed for the life of a checkpoint",
            next_step=f"start with max_parallelism={stored.max_parallelism}",
        )
    return stored


def _misfit(stored: Manifest, url: str, rows: tuple[Comparison, ...]) -> CheckpointMismatch:
    width = max(len(row.what) for row in rows)
    table = "\n".join(f"    {row.what:<{width}}  {row.verdict:<12}  {row.detail}".rstrip() for row in rows)
    return CheckpointMismatch(
        f"checkpoint {stored.checkpoint} in {url} against this pipeline:\n{table}",
        cause="the folder belongs to another pipeline, or the pipeline was changed since",
        next_step="start the pipeline that wrote it, or use a new checkpoint folder (and table) for this one",
    )


def _take_over(
    checkpoints: Checkpoints, base: Manifest, config: Config, generation: Generation, parallelism: dict[str, int]
) -> Manifest | None:
    """Publishes the first manifest of this generation; an older driver may get one more in before.

    None when another driver made the folder its own in the meantime: then everything has to be looked at again.
    """
    while True:
        newest = checkpoints.newest()
        if newest is not None and newest.identity != base.identity:
            return None
        if newest is not None and newest.generation > generation:
            raise checkpoints.fenced_by(newest, generation)
        if newest is not None and config.restore is None:
            base = newest
        manifest = takeover(
            base,
            newest=CheckpointId(newest.checkpoint if newest is not None else 0),
            generation=generation,
            parallelism=parallelism,
            library=penstock.__version__,
            created_at=utc_now(),
        )
        try:
            checkpoints.publish(manifest)
        except Fenced:
            continue  # whoever was faster: look again
        newest = checkpoints.newest()
        assert newest is not None
        if newest.checkpoint == manifest.checkpoint:
            return manifest
        if newest.generation < generation:
            # The older driver published that id and more, and its retention freed the name while we looked.
            checkpoints.store.delete([manifest_path(manifest.checkpoint)])


def _coordinator(
    query: Query,
    checkpoints: Checkpoints,
    owned: _Owned,
    history: History,
    surroundings: Surroundings,
) -> CommitCoordinator:
    """Asks each table again, now that no older driver can publish, and leaves the rest to the background."""

    def committed(commit: Commit) -> None:
        history.record(commit_event(commit))
        query.wake()

    return CommitCoordinator(
        {
            name: SinkCommits(
                name,
                agree(name, owned.manifest.sinks[name], committer),
                committer,
                generation=owned.generation,
                still_leader=lambda: not checkpoints.superseded(owned.generation),
                on_commit=committed,
                on_retry=lambda retry: history.record(retry_event(retry)),
                on_failure=query.fail,
                spawn=surroundings.spawn,
                clock=surroundings.clock,
            )
            for name, committer in owned.committers.items()
        }
    )
