"""A query in hypothesis' hands: rows arrive, time passes, it is rescaled, stopped, killed and restarted, commits
stall, savepoints are taken; a dictionary says what the table must hold in the end."""

from __future__ import annotations

from collections import defaultdict

import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.testing.simulate.fibers import CheckFailed
from penstock.testing.simulate.jobs import Shape, pipeline_of
from penstock.testing.simulate.results import check_results
from penstock.testing.simulate.world import SimDriver, World

KEYS = 6
PARALLELISM_MAX = 4


class QueryMachine(RuleBasedStateMachine):
    """The model: for each key the ids in the order in which they arrived."""

    @initialize(seed=st.integers(0, 1000), two_keyed=st.booleans(), row_cost=st.sampled_from([0.0, 0.1, 0.3]))
    def begin(self, seed: int, two_keyed: bool, row_cost: float) -> None:
        self.world = world = World(seed)
        world.faults.on = False
        world.epoch_s = 0.3
        world._options["epoch"] = 0.3
        world.epochs_max *= PARALLELISM_MAX  # subtasks one after the other, all of them with more rows than expected
        shape = Shape(two_keyed=two_keyed, row_cost=row_cost)
        world.shape, world._pipeline = shape, pipeline_of(shape, world)
        world.records.tables[:] = [pa.RecordBatch.from_pylist([], schema=shape.schema)]
        world.records.hashes.update(_hashes())
        world.source.tables, world.source.ends = world.records.tables, False
        self.model: dict[int, list[int]] = defaultdict(list)
        self.driver: SimDriver = world.start_driver()
        self.stalled = False
        self.next_id = 1

    @rule(keys=st.lists(st.integers(0, KEYS - 1), min_size=1, max_size=12))
    def rows_arrive(self, keys: list[int]) -> None:
        ids = list(range(self.next_id, self.next_id + len(keys)))
        self.next_id += len(keys)
        for number, key in zip(ids, keys, strict=True):
            self.model[key].append(number)
        zeros = [0] * len(keys)
        columns = {"id": ids, "key": keys, "coarse": [key // 3 for key in keys], "pad": [""] * len(keys)}
        columns |= {"ts": [number * 1_000_000 for number in ids], "n1": zeros, "n2": zeros}
        tables, schema = self.world.records.tables, self.world.shape.schema
        new = pa.RecordBatch.from_pydict({name: columns[name] for name in schema.names}, schema=schema)
        tables[0] = pa.concat_batches([tables[0], new])

    @rule(seconds=st.sampled_from([0.01, 0.1, 0.5, 3.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.scheduler.pause(seconds)

    @precondition(lambda self: self.driver.supervisor is not None and not self.driver.over)
    @rule(parallelism=st.integers(1, PARALLELISM_MAX))
    def rescale(self, parallelism: int) -> None:
        assert self.driver.supervisor is not None
        self.driver.supervisor.rescale(parallelism)

    @precondition(lambda self: self.driver.supervisor is not None and not self.driver.over)
    @rule(drain=st.booleans())
    def stop(self, drain: bool) -> None:
        assert self.driver.supervisor is not None
        if not self.stalled:
            self.driver.supervisor.request_stop(drain=drain)
            self.world._await(self.driver)

    @precondition(lambda self: self.driver.supervisor is not None and not self.driver.over)
    @rule()
    def savepoint(self) -> None:
        assert self.driver.supervisor is not None
        self.world.savepoints.take(self.driver.supervisor, self.driver.process)

    @rule()
    def kill(self) -> None:
        if self.driver.process.alive:
            self.world.crash(self.driver.process)

    @rule()
    def replace(self) -> None:
        """Also while the older driver still runs."""
        self.driver = self.world.start_driver()

    @precondition(lambda self: self.driver.over)
    @rule()
    def restore_older(self) -> None:
        """Refused when the table is ahead; then the newest checkpoint counts."""
        restored = self.world.start_driver(restore=True)
        self.world.scheduler.pause(0.5)
        self.driver = restored if not restored.over else self.world.start_driver()

    @rule(stalled=st.booleans())
    def stall_commits(self, stalled: bool) -> None:
        self.stalled = stalled
        table = self.world.tables["records"]
        self.world.table_stalls = {table.name} if stalled else set()

    @invariant()
    def nothing_too_much(self) -> None:
        if hasattr(self, "world"):
            found = [row["id"] for row in self.world.tables["records"].rows()]
            assert len(found) == len(set(found))

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self._drain()
        except CheckFailed as failure:  # hypothesis makes examples of ordinary exceptions smaller only
            raise AssertionError("\n".join([*self.world.trace.last, str(failure)])) from None
        finally:
            self.world.scheduler.close()

    def _drain(self) -> None:
        self.world.table_stalls = set()
        self.world.source.ends = True
        if self.driver.over or self.driver.stopped:
            self.driver = self.world.start_driver()
        self.world._without_faults()
        self.world._await_zombies()
        check_results(self.world)
        self.world.savepoints.check()
        found: dict[int, list[int]] = defaultdict(list)
        for row in self.world.tables["records"].rows():
            found[row["key"]].append(row["id"])
        # `check_results` has looked at their order: rows of one micro-batch have none between partitions.
        assert {key: sorted(ids) for key, ids in found.items()} == self.model


def _hashes() -> dict[int, int]:
    from penstock.hashing import hash_columns

    return dict(zip(range(KEYS), hash_columns([pa.array(range(KEYS), pa.int64())]).tolist(), strict=True))


TestQuery = QueryMachine.TestCase
TestQuery.settings = settings(
    max_examples=15,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
"""C4, C9, B1, B2, B7, A8: whatever people do to a query."""
