"""Starts a compiled pipeline on the Spark session its sources belong to."""

from __future__ import annotations

from functools import cache

from pyspark.sql import DataFrame

from penstock.engine.history import Listener
from penstock.engine.options import Config
from penstock.engine.query import Query
from penstock.engine.start import Surroundings, start_query
from penstock.graph.pipeline import Pipeline
from penstock.spark.cluster import SparkCluster
from penstock.spark.feed import SparkFeed
from penstock.spark.packing import require_packable
from penstock.spark.quirks.hadoop import require_connector
from penstock.spark.stage_job.jobs import StageJobs
from penstock.store.base import Store
from penstock.subtask.attempt import Limits


def launch(pipeline: Pipeline, config: Config, listeners: tuple[Listener, ...]) -> Query:
    """Raises: `PenstockError`."""
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

    def feed(store: Store) -> SparkFeed:
        require_connector(spark, store.url)
        return SparkFeed(jobs(store.url), frames, store, config.trigger, config.query_name(store.url))

    return start_query(pipeline, config, Surroundings(cluster, feed), listeners)
