"""What user code over whole slices gets: the keys of a slice, and their state as columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.state.keys import Rows


@dataclass(frozen=True, slots=True)
class Keys:
    """The distinct keys of a slice."""

    batch: pa.RecordBatch
    """One row per key."""
    numbers: Rows
    """For each row of the slice the number of its key."""

    @property
    def count(self) -> int:
        return self.batch.num_rows


class Columns:
    """State of the keys of a slice as columns."""

    def __init__(self, columns: Mapping[str, pa.Array]) -> None:
        object.__setattr__(self, "_columns", dict(columns))
        object.__setattr__(self, "_written", set())

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_columns"][name]
        except KeyError:
            raise AttributeError(f"there is no state {name!r}; declare {name} = pen.value_state(type)") from None

    def __setattr__(self, name: str, column: object) -> None:
        getattr(self, name)
        self.__dict__["_columns"][name] = column
        self.__dict__["_written"].add(name)

    def written(self) -> Mapping[str, object]:
        return {name: self.__dict__["_columns"][name] for name in self.__dict__["_written"]}
