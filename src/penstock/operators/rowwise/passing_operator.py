"""Hands records on as they are."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from penstock.operators.base import OperatorDefaults
from penstock.records import Records


class PassOperator(OperatorDefaults):
    """Costs nothing."""

    def process(self, records: Records) -> Iterator[pa.RecordBatch]:
        yield records.batch
