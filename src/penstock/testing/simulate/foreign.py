"""Other engines that work on the tables of a query: they commit, compact, tag, expire snapshots, and roll back.

After a rollback, or when a snapshot is gone that would prove what was committed, a query may refuse to go on; then
the engine brings back what it took away. Whatever it does, the table is right in the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.testing.simulate.table import SimTable
    from penstock.testing.simulate.world import World

FOREIGN = "somebody else"
REFUSALS = frozenset({"TablePositionMismatch", "CommitFailed"})
"""How a query may end when history was taken away."""


class OtherEngines:
    """What happens to the tables of one world from outside; `acts` are what a seed draws of."""

    def __init__(self, world: World, acts: tuple[str, ...]) -> None:
        self._world, self._acts = world, acts
        self._expired = False
        self._rolled_back = False

    def act(self) -> None:
        """One engine does one thing to one table."""
        rng = self._world.rng
        table = rng.choice([table for table in self._world.tables.values() if _may_change(table)] or [None])
        if table is None or not self._acts:
            return
        match rng.choice(self._acts):
            case "commit":
                table.publish(FOREIGN)
            case "compact" if len(table.listed) > 1:
                first = rng.randrange(len(table.listed) - 1)
                table.compact(FOREIGN, first, rng.randint(first + 2, len(table.listed)))
            case "expire":
                self._expire(table, keep=rng.choice((1, 1, 2, 3)))
            case "roll back":
                self._roll_back(table, rng.randint(1, 2))

    def _expire(self, table: SimTable, keep: int) -> None:
        expired = max(table.expired, len(table.history) - keep)
        if expired > table.expired:
            self._world.log(f"{FOREIGN} expires {table.name} up to snapshot {expired}")
            table.expired, self._expired = expired, True

    def _roll_back(self, table: SimTable, count: int) -> None:
        """To a snapshot that is there; not while an older checkpoint is being restored, which would then fit."""
        kept = max(table.expired + 1, len(table.history) - count)
        if kept < len(table.history) and not table.rolled_back and not self._world.going_back():
            self._world.log(f"{FOREIGN} rolls {table.name} back to snapshot {kept}")
            table.rolled_back, table.history = table.history[kept:], table.history[:kept]
            self._rolled_back = True

    def explains(self, kind: str) -> bool:
        """Whether a query may have ended like this because of what was done."""
        return kind in REFUSALS and (self._expired or self._rolled_back)

    @property
    def only_expired(self) -> bool:
        return self._expired and not self._rolled_back

    def bring_back(self) -> None:
        """The engine restores what it took away."""
        for table in self._world.tables.values():
            table.expired = 0
            table.history, table.rolled_back = [*table.history, *table.rolled_back], []


def _may_change(table: SimTable) -> bool:
    """Not where commits of ours were rolled back: the engine that did that may still undo it."""
    return bool(table.history) and not any(snapshot.checkpoint for snapshot in table.rolled_back)
