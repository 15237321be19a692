"""Whether a folder without a checkpoint is free to become one: told by the names of the files in it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.protocol.layout import SPARK_COMMITS, SPARK_METADATA, SPARK_OFFSETS, TOP_NAMES, top_of

_SPARKS = frozenset({SPARK_OFFSETS, SPARK_COMMITS, SPARK_METADATA})
_HARMLESS = frozenset({"thumbs.db", "desktop.ini", "lost+found", "__macosx"})
"""What desktops and file systems leave in any folder; so do names that begin with a dot."""


@dataclass(frozen=True, slots=True)
class Free:
    """It has no foreign files."""


@dataclass(frozen=True, slots=True)
class SparkCheckpoint:
    """A plain Spark query keeps its offsets there."""


@dataclass(frozen=True, slots=True)
class OtherFiles:
    """Files that neither Penstock nor Spark puts there, by the first parts of their paths."""

    names: tuple[str, ...]


def judge_folder(paths: Iterable[str]) -> Free | SparkCheckpoint | OtherFiles:
    """For a folder that holds no checkpoint yet; `paths` are those of all files below it.

    >>> judge_folder([".DS_Store", "generations/0000000001.json"])
    Free()
    >>> judge_folder(["metadata", "offsets/0", "state/0/0/1.delta"])
    SparkCheckpoint()
    >>> judge_folder(["report.csv", "photos/1.jpg", "photos/2.jpg"])
    OtherFiles(names=('photos', 'report.csv'))
    """
    tops = set(map(top_of, paths))
    strange = {top for top in tops - TOP_NAMES if not top.startswith(".") and top.lower() not in _HARMLESS}
    if SPARK_OFFSETS in strange or len(strange & _SPARKS) > 1:
        return SparkCheckpoint()
    return OtherFiles(tuple(sorted(strange))) if strange else Free()
