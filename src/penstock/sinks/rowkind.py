"""Row kinds: whether a row of a stream adds, changes or takes away a row of a table with a primary key."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.display import value_of
from penstock.errors import SubtaskFailed

INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = range(4)

# Paimon's and Flink's own words, then Debezium's, then those of Delta's change feed.
_WORDS: Final = {
    "+i": INSERT, "-u": UPDATE_BEFORE, "+u": UPDATE_AFTER, "-d": DELETE,
    "c": INSERT, "r": INSERT, "u": UPDATE_AFTER, "d": DELETE,
    "insert": INSERT, "update_preimage": UPDATE_BEFORE, "update_postimage": UPDATE_AFTER, "delete": DELETE,
}  # fmt: skip

Kinds = npt.NDArray[np.int8]


def row_kinds(column: pa.Array) -> Kinds:
    """The kind of each row, from a column of words.

    Raises: `SubtaskFailed` for an unknown word, or none.

    >>> row_kinds(pa.array(["+I", "u", "-D"])).tolist()
    [0, 2, 3]
    """
    encoded = pc.dictionary_encode(column, null_encoding="encode")
    kinds = [_kind(value_of(word)) for word in encoded.dictionary]
    return np.array(kinds, dtype=np.int8)[np.asarray(encoded.indices)]


def takes_back(kinds: Kinds) -> npt.NDArray[np.bool_]:
    """Whether a row is the old version of one that changes or goes away."""
    return (kinds == UPDATE_BEFORE) | (kinds == DELETE)


def _kind(word: str | None) -> int:
    kind = None if word is None else _WORDS.get(word.lower())
    if kind is None:
        raise SubtaskFailed(
            f"{word!r} is no row kind",
            cause="the column named by row_kind holds something else",
            next_step="use '+I', '-U', '+U', '-D', or 'c', 'r', 'u', 'd', or 'insert', 'update_postimage', 'delete'",
            value=word,
        )
    return kind
