"""Savepoints of stopped queries, also for another number of key groups."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.engine.savepoint import Savepoint


def savepoint(
    folder: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    checkpoint: int | None = None,
    max_parallelism: int | None = None,
) -> Savepoint:
    """Copies a checkpoint of a stopped query, the newest unless `checkpoint` names one, with all that it needs.

    With `max_parallelism` the copy has so many key groups: state and rows in flight are written again, on Spark. Start
    it with ``restore=path`` and the same `max_parallelism` in a new folder.

    Raises: `NoSuchCheckpoint`, `SavepointRefused`, `ConfigError`.
    """
    # Here, not above: Spark's workers import the public names, and need nothing of the driver.
    from penstock.engine.options import Config
    from penstock.engine.origin import find_origin
    from penstock.engine.regrouping import regrouped_savepoint
    from penstock.engine.savepoint import take_savepoint
    from penstock.store import open_store

    place, target = os.fspath(folder), os.fspath(path)
    origin = find_origin(place if checkpoint is None else f"{place}@{checkpoint}", open_store)
    manifest, store = origin.manifest, origin.checkpoints.store
    if max_parallelism is None or max_parallelism == manifest.max_parallelism:
        return take_savepoint(manifest, store, open_store(target), target)
    Config.of(place, max_parallelism=max_parallelism, parallelism=1)
    from penstock.spark.regrouping import regroup_on_spark
    from penstock.spark.session import session

    run = partial(regroup_on_spark, session())
    return regrouped_savepoint(manifest, store, open_store(target), target, max_parallelism, run)
