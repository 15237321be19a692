"""The interface between aggregate functions and the operators that compute them."""

from __future__ import annotations

from abc import ABC, abstractmethod

import pyarrow as pa

from penstock.operators.aggregate.accumulators import Accumulator


class Aggregate(ABC):
    """An aggregate as the user wrote it; `bind` gives it types."""

    __slots__ = ()

    @property
    def meaning(self) -> str:
        """What its state means. A restart with another meaning must not use the state.

        Penstock does not compare the code of a user's own aggregate, as of any function.
        """
        return "of a user"

    @abstractmethod
    def bind(self, operator: str, schema: pa.Schema) -> Accumulator:
        """The accumulator for an input of this schema.

        Raises: `PipelineError` for a column that is not there or has a type the function cannot take.
        """
