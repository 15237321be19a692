"""Starting a query: everything that can be refused is refused before anything is changed, then the driver takes
over the checkpoint, asks the tables what they hold, and begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial

from penstock.engine.active import remember
from penstock.engine.agreement import agree, require_same_table
from penstock.engine.attempts import AttemptFiles
from penstock.engine.background import Spawn, StepThread
from penstock.engine.breaker import Breaker
from penstock.engine.checkpoints import Checkpoints
from penstock.engine.cluster import Cluster
from penstock.engine.commitevents import CommitEvents
from penstock.engine.commits import CommitCoordinator, SinkCommits
from penstock.engine.commituser import commit_user
from penstock.engine.drivertime import DriverTime
from penstock.engine.epochs import EpochRunner
from penstock.engine.feed import Feed
from penstock.engine.fork import require_other_tables
from penstock.engine.greeting import Greeting
from penstock.engine.heartbeat import Heartbeat
from penstock.engine.history import History, Listener, takeover_event, utc_now
from penstock.engine.migrating import RunMigration, migrate, no_migrations, with_migrated, without_migrated
from penstock.engine.options import Config
from penstock.engine.origin import ORIGIN_TRIES, OriginWentOn, bring, gave_up
from penstock.engine.query import Query
from penstock.engine.sigterm import stop_on_sigterm
from penstock.engine.sourcelog import rewrite_source
from penstock.engine.sparkorigin import bring_folders
from penstock.engine.startpoint import StartPoint, find_start, holder
from penstock.engine.supervisor import Makers, Supervisor
from penstock.engine.takeover import Owned, Survey, take_over
from penstock.engine.upkeep import TableUpkeep, Upkeeping
from penstock.errors import (
    PenstockError,
    SourceMismatch,
    SparkSetupError,
)
from penstock.graph.leftovers import with_leftovers, with_relays
from penstock.graph.pipeline import Pipeline
from penstock.observe.events import Event, InFlightDropped, QueryStarted, StartRefused, StateMigrated
from penstock.observe.metrics_installed import open_metrics
from penstock.observe.process import this_process
from penstock.protocol.commit import marked
from penstock.protocol.layout import SOURCE
from penstock.protocol.manifest import Manifest, SinkState
from penstock.protocol.takeover import Wish
from penstock.sinks.base import Committer, Sink
from penstock.sinks.upkeep import KeptSink, RunTasks, TaskedKeeper
from penstock.store import open_store
from penstock.store.base import Store
from penstock.store.local import LocalStore
from penstock.version import VERSION


@dataclass(frozen=True, slots=True)
class Surroundings:
    """How to make what the engine works with, once the store is open. The simulator replaces all of it."""

    cluster: Callable[[Store, str], Cluster]
    feed: Callable[[Store], Feed]
    store: Callable[[str], Store] = open_store
    spawn: Spawn = StepThread
    clock: Callable[[], float] = time.monotonic
    now_us: Callable[[], int] = lambda: time.time_ns() // 1000
    """The wall clock."""
    migrate: RunMigration = no_migrations
    run_tasks: RunTasks | None = None
    """Where upkeep gives large work to; None: it does all by itself."""


def start_query(
    pipeline: Pipeline, config: Config, surroundings: Surroundings, listeners: tuple[Listener, ...] = ()
) -> Query:
    """Starts a query that ends with the program, if not before.

    Raises: as `start_supervisor`.
    """
    stop_on_sigterm()  # from now on: to take over a checkpoint takes time
    server = None if config.metrics is None else open_metrics(*config.metrics)
    greeting = Greeting(config.checkpoint)
    told: tuple[Listener, ...] = (*listeners, greeting) if server is None else (*listeners, greeting, server)
    try:
        supervisor = start_supervisor(pipeline, config, surroundings, told, signs_of_life=True)
    except PenstockError as error:
        if server is not None:
            server.close()
        _note_refusal(surroundings, config, error)
        raise
    if server is not None:
        supervisor.at_end(server.close)
    query = Query(supervisor)
    remember(query)
    supervisor.end_with_program()
    return query


def _note_refusal(surroundings: Surroundings, config: Config, error: PenstockError) -> None:
    """For people who look at the folder later; a folder that is no checkpoint stays as it is.

    A machine on which Spark cannot run says nothing about the query, and leaves the storage alone.
    """
    if isinstance(error, SparkSetupError):
        return
    with suppress(Exception):
        store = surroundings.store(config.checkpoint)
        if Checkpoints(store).ids():
            History(store).record(StartRefused(at=utc_now(), error=error.to_report()))


def start_supervisor(
    pipeline: Pipeline,
    config: Config,
    surroundings: Surroundings,
    listeners: tuple[Listener, ...] = (),
    *,
    signs_of_life: bool = False,
) -> Supervisor:
    """Raises: any `PenstockError`; the checkpoint is then as it was, and at most an empty table was made."""
    parallelism = config.subtasks(pipeline.stage_of())
    store = surroundings.store(config.checkpoint)
    if isinstance(store, LocalStore):
        store.require_plain(SOURCE)  # Spark follows links in it
    checkpoints = Checkpoints(store)
    feed = surroundings.feed(store)
    wish = Wish(pipeline.shape(), parallelism, VERSION, config.autoscale, config.restore)
    survey = partial(_survey, checkpoints, pipeline, config, surroundings, feed)
    owned = take_over(checkpoints, wish, survey)
    manifest, generation = owned.manifest, owned.generation
    history = History(store, listeners)
    name = config.query_name(store.url)
    for event in _first_events(name, owned, pipeline.links()):
        history.record(event)
    pipeline = with_leftovers(pipeline.with_sinks(_taken_over(pipeline, manifest)), manifest.shape)
    if manifest.source.rewind:
        _rewind(feed, checkpoints, owned)
    runner = EpochRunner(
        pipeline=pipeline,
        cluster=surroundings.cluster(store, name),
        checkpoints=checkpoints,
        generation=generation,
        manifest=manifest,
        parallelism=with_relays(pipeline, manifest.parallelism),
        epoch_s=config.epoch,
        now=utc_now,
        now_us=DriverTime(manifest.now, surroundings.now_us, surroundings.clock),
        clock=surroundings.clock,
        breaker=Breaker(config.max_error_rate),
    )
    supervisor = Supervisor(
        name=name,
        config=config,
        runner=runner,
        feed=feed,
        history=history,
        makers=Makers(
            coordinator=partial(_coordinator, pipeline, checkpoints, owned, surroundings),
            upkeep=partial(_upkeep, pipeline, manifest, history, surroundings),
            open_target=surroundings.store,
        ),
        spawn=surroundings.spawn,
    )
    signs = Heartbeat(supervisor, surroundings.spawn) if signs_of_life else None
    supervisor.start()
    if signs is not None:
        signs.start()
    return supervisor


def _survey(
    checkpoints: Checkpoints, pipeline: Pipeline, config: Config, surroundings: Surroundings, feed: Feed
) -> Survey:
    """Refuses what does not fit. Files of another folder are brought here, state is migrated; nothing else changes."""
    for left in reversed(range(ORIGIN_TRIES)):
        try:
            return _looked(checkpoints, pipeline, config, surroundings, feed)
        except OriginWentOn as went_on:
            if not left:
                raise gave_up(went_on) from went_on
    raise AssertionError("the last try returns or raises")


def _looked(
    checkpoints: Checkpoints, pipeline: Pipeline, config: Config, surroundings: Surroundings, feed: Feed
) -> Survey:
    start = find_start(checkpoints, pipeline, config, surroundings.store, naming=feed.naming)
    if config.fork and start.origin is not None:
        require_other_tables(start.origin, pipeline)
    committers, told = _committers(pipeline, start.manifest, restored=config.restore is not None)
    if isinstance(config.restore, int):
        _require_remembered(start.read or start.manifest, feed)
    content = start.manifest
    if start.evolution is not None and start.evolution.migrated:
        content = without_migrated(content, start.evolution)
        start = _migrated(start, checkpoints, pipeline, config, surroundings.migrate)
    if start.origin is not None:
        bring(start.origin, content, checkpoints.store)
    for taken in start.taken:
        bring_folders(taken, checkpoints.store)
    return Survey(start, committers, told)


def _migrated(
    start: StartPoint, checkpoints: Checkpoints, pipeline: Pipeline, config: Config, run: RunMigration
) -> StartPoint:
    """Raises: `MigrationFailed`."""
    assert start.evolution is not None
    assert start.read is not None
    stores = holder(checkpoints, start).store, checkpoints.store
    with nullcontext() if start.origin is None else start.origin.watched():
        done = migrate(start.read, start.evolution, pipeline, dict(config.migrate), stores, run)
    return replace(start, manifest=with_migrated(start.manifest, done), migrated=done)


def _require_remembered(manifest: Manifest, feed: Feed) -> None:
    """Before anything is changed: the source must be able to go on where an older checkpoint ends.

    Raises: `SourceMismatch`.
    """
    position = manifest.source
    if position.batch_id is not None and not feed.remembers(position.batch_id, position.offsets_digest):
        raise SourceMismatch(
            f"checkpoint {manifest.checkpoint} ends with micro-batch {position.batch_id},"
            " which is not in source/offsets as it was",
            cause="an older checkpoint was restored after this one was made, and the source was set back for that; or"
            " Spark has removed the entry (spark.sql.streaming.minBatchesToRetain)",
            next_step="restore a checkpoint that was made after that, or leave restore out to go on from the newest",
            ingested=position.batch_id,
        )


def _rewind(feed: Feed, checkpoints: Checkpoints, owned: Owned) -> None:
    """Raises: `Fenced`: what a newer driver has read since is not this one's to forget."""
    checkpoints.require_leader(owned.generation)
    feed.rewind(owned.manifest.source.batch_id)
    rewrite_source(checkpoints.store, owned.manifest.source)


def _first_events(name: str, owned: Owned, links: tuple[tuple[str, str], ...]) -> Iterator[Event]:
    manifest, origin = owned.manifest, owned.start.origin
    yield QueryStarted(
        at=utc_now(),
        name=name,
        generation=owned.generation,
        restored=manifest.parent,
        parallelism=dict(manifest.parallelism),
        max_parallelism=manifest.max_parallelism,
        version=VERSION,
        origin=None if origin is None else origin.checkpoints.store.url,
        process=this_process(),
        links=links,
    )
    for dropped in owned.start.dropped:
        yield InFlightDropped(
            at=utc_now(),
            edge=dropped.edge,
            checkpoint=owned.start.manifest.checkpoint,
            rows=dropped.rows,
            bytes=dropped.bytes,
        )
    for table in owned.start.migrated:
        yield StateMigrated(
            at=utc_now(),
            table=table.table,
            checkpoint=owned.start.manifest.checkpoint,
            rows=table.rows,
            bytes=table.bytes,
            duration_s=round(table.duration_s, 3),
        )
    yield takeover_event(manifest)


def _committers(
    pipeline: Pipeline, parent: Manifest, *, restored: bool
) -> tuple[dict[str, Committer], dict[str, SinkState]]:
    """One per sink, on tables that fit the stream and agree with the checkpoint, nothing missing.

    Also returns what the tables told about the sinks; the takeover stores that before anything is committed. No table
    is made before every sink is known to point to the table that it wrote to.
    """
    committers, told = {}, {}
    for binding in pipeline.sinks():
        there = binding.sink.mark()
        require_same_table(binding.name, parent.sinks[binding.name], there, binding.sink.description)
    for binding in pipeline.sinks():
        binding.sink.check(binding.schema)
        committer = binding.sink.open_committer(commit_user(parent.identity, binding.name))
        standing = agree(binding.name, parent.sinks[binding.name], committer, restored=restored)
        committers[binding.name] = committer
        told[binding.name] = marked(standing.sink, binding.sink.mark())
    return committers, told


def _taken_over(pipeline: Pipeline, manifest: Manifest) -> dict[str, Sink]:
    """The sinks for this driver's writers, with what was written before."""
    checkpoint = manifest.checkpoint
    return {
        binding.name: binding.sink.taken_over(
            checkpoint, [made for commit in manifest.sinks[binding.name].pending for made in commit.committables]
        )
        for binding in pipeline.sinks()
    }


def _upkeep(
    pipeline: Pipeline,
    manifest: Manifest,
    history: History,
    surroundings: Surroundings,
    coordinator: CommitCoordinator,
) -> Upkeeping:
    """One keeper per table that wants one."""
    tables = []
    for binding in pipeline.sinks():
        if isinstance(binding.sink, KeptSink):
            user = commit_user(manifest.identity, binding.name)
            keeper = binding.sink.open_keeper(user, partial(coordinator.waiting, binding.name))
            if isinstance(keeper, TaskedKeeper) and surroundings.run_tasks is not None:
                keeper.use_tasks(surroundings.run_tasks)
            if keeper is not None:
                spawn, clock = surroundings.spawn, surroundings.clock
                tables.append(TableUpkeep(binding.name, keeper, history.record, spawn=spawn, clock=clock))
    return Upkeeping(tables)


def _coordinator(
    pipeline: Pipeline,
    checkpoints: Checkpoints,
    owned: Owned,
    surroundings: Surroundings,
    events: CommitEvents,
) -> CommitCoordinator:
    """Keeps older drivers away from each table, asks it again, and leaves the rest to the background."""
    manifest, generation = owned.manifest, owned.generation
    owners = checkpoints.owners()

    def commits(name: str, committer: Committer) -> SinkCommits:
        committer.fence(generation)
        try:
            standing = agree(name, manifest.sinks[name], committer)
        except PenstockError:
            checkpoints.require_leader(generation)  # a newer driver has every right to go ahead of this one
            raise
        return SinkCommits(
            name,
            standing,
            committer,
            generation=generation,
            still_leader=lambda: not checkpoints.superseded(generation),
            events=events,
            spawn=surroundings.spawn,
            clock=surroundings.clock,
            listeners=pipeline.listeners(name),
            attempts=AttemptFiles(
                checkpoints.store,
                name,
                generation=generation,
                taken_over=manifest.checkpoint,
                owners=owners,
            ),
        )

    return CommitCoordinator({name: commits(name, committer) for name, committer in owned.committers.items()})
