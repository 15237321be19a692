"""What other engines do to a table that a query writes to: commit, expire, compact, tag, roll back."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pyarrow as pa

from penstock.protocol.ids import Generation
from penstock.sinks.paimon.open import open_table
from penstock.sinks.paimon.sink import Paimon
from penstock.sinks.paimon.upkeep.expire import expire
from penstock.sinks.paimon.upkeep.files import KeptTable
from penstock.sinks.paimon.upkeep.keeper import PaimonKeeper
from penstock.sinks.upkeep import Upkeep
from penstock.testing.sinks.world import plain_rows
from penstock.testing.tables import MemoryTable
from tests.support.tables import commit, context

FOREIGN_ID = -1
"""The value of every row that somebody else writes."""


class MemoryOthers:
    """On a table in memory."""

    def __init__(self, table: MemoryTable, lost: Callable[[], None]) -> None:
        self._table, self._lost = table, lost

    def act(self, choose: random.Random) -> str | None:
        table = self._table
        what = choose.choices(("commit", "expire", "compact", "roll back"), (45, 35, 15, 5))[0]
        latest = len(table.snapshots)
        if what == "commit" or not latest:
            for _ in range(choose.randint(1, 3)):
                table.add_foreign()
            return f"others commit up to snapshot {len(table.snapshots)}"
        if what == "expire":
            table.expire(choose.randint(1, latest))
            return f"others expire up to snapshot {table.expired}"
        if what == "compact":
            table.compact()
            return f"others compact in snapshot {len(table.snapshots)}"
        number = choose.randint(max(table.expired + 1, latest - 3), latest)
        if any(snapshot.payloads for snapshot in table.snapshots[number:]):
            self._lost()
        table.roll_back(number)
        return f"others roll back to snapshot {number}"


class PaimonOthers:
    """On a real table, by the library's own code and by pypaimon's; nothing is spared for Penstock's sake."""

    def __init__(
        self,
        sink: Paimon,
        lost: Callable[[], None],
        rows: Callable[[Sequence[int]], pa.RecordBatch] = plain_rows,
    ) -> None:
        self._sink, self._lost, self._rows = sink, lost, rows
        self._made = 0
        self._tags = 0

    def act(self, choose: random.Random) -> str | None:
        what = choose.choices(("commit", "expire", "compact", "upkeep", "tag", "roll back"), (35, 30, 10, 10, 10, 5))[0]
        numbers = KeptTable(self._sink.warehouse, self._sink.table).snapshot_ids()
        if what == "commit" or not numbers:
            return self._commit()
        match what:
            case "expire":
                first = choose.choice(numbers)
                expire(KeptTable(self._sink.warehouse, self._sink.table), first, lambda: False)
                return f"others expire below snapshot {first}"
            case "compact":
                self._keep(Upkeep(small_files=2, manifests=2, expire=False))
                return "others compact"
            case "upkeep":
                self._keep(Upkeep(small_files=2, manifests=2, snapshots=2, snapshots_for=0.0))
                return "upkeep keeps the table"
            case "tag":
                self._tags += 1
                open_table(self._sink.warehouse, self._sink.table).create_tag(f"t{self._tags}")
                return f"others tag snapshot {numbers[-1]}"
        number = choose.choice(numbers[-3:])
        return self._roll_back(number, numbers)

    def _keep(self, policy: Upkeep) -> None:
        report = PaimonKeeper(self._sink.warehouse, self._sink.table, policy).step()
        assert not report.failures, report.failures

    def _commit(self) -> str:
        self._made += 1
        rows = self._rows([FOREIGN_ID])
        writer = self._sink.open_writer(context(self._made), rows.schema)
        writer.write(rows)
        stranger = self._sink.open_committer(f"stranger {self._made}")
        stranger.fence(Generation(1))
        receipt = commit(stranger, 1, writer.prepare())
        return f"others commit snapshot {receipt.snapshot}"

    def _roll_back(self, number: int, numbers: list[int]) -> str:
        table = open_table(self._sink.warehouse, self._sink.table)
        manager = table.snapshot_manager()
        later = [manager.get_snapshot_by_id(later) for later in numbers if later > number]
        if any(snapshot is not None and snapshot.commit_user.startswith("world") for snapshot in later):
            self._lost()
        table.rollback_to(number)
        return f"others roll back to snapshot {number}"
