"""Starts a compiled pipeline on the Spark session its sources belong to."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from pyspark.sql import DataFrame

from penstock.engine.feed import Feed
from penstock.engine.history import Listener
from penstock.engine.naming import ByName, Logged, Naming, Placed
from penstock.engine.options import Config
from penstock.engine.query import Query
from penstock.engine.start import Surroundings, start_query
from penstock.graph.pipeline import Pipeline
from penstock.spark.cluster import SparkCluster
from penstock.spark.feed import SparkFeed
from penstock.spark.migrating import on_spark
from penstock.spark.packing import require_packable
from penstock.spark.quirks.hadoop import require_connector
from penstock.spark.quirks.sourcenames import NoNames, readers_of
from penstock.spark.stage_job.jobs import StageJobs
from penstock.spark.tasks import SparkTasks
from penstock.store.base import Store
from penstock.subtask.attempt import Limits


def launch(
    pipeline: Pipeline,
    config: Config,
    listeners: tuple[Listener, ...],
    around: Callable[[Feed, Store], Feed] = lambda feed, _: feed,
) -> Query:
    """`around` may put another feed around that of the sources.

    Raises: `PenstockError`.
    """
    frames = [source.frame for source in pipeline.sources if isinstance(source.frame, DataFrame)]
    assert len(frames) == len(pipeline.sources)
    require_packable(pipeline)
    spark = frames[0].sparkSession
    limits = Limits(config.segment_bytes, config.prefetch_bytes, config.epoch_timeout)

    @cache  # the feed plans the jobs that the cluster runs
    def jobs(store_url: str) -> StageJobs:
        return StageJobs(pipeline, store_url, limits)

    def cluster(store: Store, name: str) -> SparkCluster:
        return SparkCluster(spark, jobs(store.url), store, name)

    def feed(store: Store) -> Feed:
        require_connector(spark, store.url)
        name = config.query_name(store.url)
        reading = SparkFeed(jobs(store.url), frames, store, config.trigger, name, naming_of(pipeline))
        return around(reading, store)

    tasks = SparkTasks(spark, "upkeep")
    surroundings = Surroundings(cluster, feed, migrate=partial(on_spark, spark), run_tasks=tasks)
    return start_query(pipeline, config, surroundings, listeners)


def naming_of(pipeline: Pipeline) -> Naming:
    """How Spark knows the sources of a pipeline."""
    frames = {source.name: source.frame for source in pipeline.sources if isinstance(source.frame, DataFrame)}
    if len(frames) < len(pipeline.sources):
        return ByName()
    try:
        return Logged(dict(zip(frames, readers_of(list(frames.values())), strict=True)))
    except NoNames as error:
        return Placed(str(error))
