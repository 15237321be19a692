"""Refuses a folder that is not Penstock's, before anything is written to it."""

from __future__ import annotations

from typing import assert_never

from penstock.errors import NotACheckpoint
from penstock.protocol.foreign import Free, OtherFiles, SparkCheckpoint, judge_folder
from penstock.store.base import Store

_SHOWN_MAX = 5


def require_own_folder(store: Store) -> None:
    """For a folder that holds no checkpoint. Raises: `NotACheckpoint` if it holds something else."""
    match judge_folder(entry.path for entry in store.list("")):
        case Free():
            return
        case SparkCheckpoint():
            raise NotACheckpoint(
                f"{store.url} is the checkpoint of a plain Spark query (offsets/, commits/, metadata)",
                cause="Penstock keeps offsets and state in files of its own and does not read Spark's: it would begin"
                " at the beginning of the source, and mix its files into that folder",
                next_step="give a new folder. To go on where the Spark query ended: stop it, then read its source with"
                f" pen.read(frame, from_checkpoint={store.url!r}). Its state cannot be taken over",
                path=store.url,
            )
        case OtherFiles(names):
            more = f" and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
            raise NotACheckpoint(
                f"{store.url} holds {', '.join(map(repr, names[:_SHOWN_MAX]))}{more}, and no checkpoint",
                cause="the path is that of a folder with other files, and a checkpoint needs a folder of its own",
                next_step="give a new or an empty folder, for example one below this",
                path=store.url,
            )
        case never:
            assert_never(never)
