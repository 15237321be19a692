"""An operator with state, written by CONTRIBUTING.md alone: it touches no file that was there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from penstock.operators.base import KeyedSpec, Operator, OperatorContext, OperatorDefaults
from penstock.records import MAIN_STATE, Emitted, Records, StateSchema
from penstock.state.keyed import KeyedState
from penstock.testing import Harness, stream_of

VISITS = pa.schema([("page", pa.string())])


@dataclass(frozen=True)
class Seen(KeyedSpec):
    """Hands on the first row of each key that it ever sees."""

    name: str
    output_schema: pa.Schema
    keys: tuple[str, ...]

    @property
    def kind(self) -> str:
        return "seen"

    @property
    def hands_on(self) -> bool:
        return True

    @property
    def state_tables(self) -> Mapping[str, StateSchema]:
        keys = pa.schema([self.output_schema.field(key) for key in self.keys])
        return {MAIN_STATE: StateSchema(keys, pa.schema([("seen", pa.bool_())]))}

    def build(self, context: OperatorContext) -> Operator:
        return SeenOperator(self.keys, context.state)


class SeenOperator(OperatorDefaults):
    def __init__(self, keys: tuple[str, ...], state: KeyedState) -> None:
        self._keys, self._state = keys, state

    def process(self, records: Records) -> Iterator[Emitted]:
        for row in range(records.rows):
            one = records.slice(row, 1)
            key = one.batch.select(list(self._keys))
            if not self._state.lookup(one.hashes, key).found.any():
                self._state.update(one.hashes, key, pa.RecordBatch.from_pydict({"seen": [True]}))
                yield one.batch


def test_it_keeps_its_state_over_a_crash_and_a_rescale() -> None:
    stream = stream_of(VISITS)
    first = stream.key_by("page").then(Seen("seen", VISITS, ("page",)), "seen")
    harness = Harness(first, parallelism=2)
    once = harness.feed([{"page": "a"}, {"page": "b"}, {"page": "a"}])
    assert sorted(row["page"] for row in once) == ["a", "b"]
    harness.crash()
    harness.rescale(3)
    assert harness.feed([{"page": "b"}, {"page": "c"}]) == [{"page": "c"}]
