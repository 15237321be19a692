"""What a world of drivers is made of: a driver, its committers and listeners, a point for faults around each call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from penstock.engine.background import Step
from penstock.engine.commits import CommitCoordinator, SinkCommits
from penstock.protocol.commit import CommitPermit, CommitReceipt, TableHistory
from penstock.protocol.ids import Generation
from penstock.protocol.manifest import Committable, Manifest
from penstock.sinks.base import Committer
from penstock.sinks.listeners import CommitInfo, CommitListener

if TYPE_CHECKING:
    import random

    from penstock.testing.sinks.world import World


class Crash(BaseException):
    """The driver's process is gone; nothing of it runs on."""


class Others(Protocol):
    """Other engines on one table; each call is one thing that one of them does, complete."""

    def act(self, choose: random.Random) -> str | None:
        """Does something and says what; None when there was nothing to do."""
        ...


class Listed(CommitListener):
    """Keeps the checkpoints that it was told of in its state, and every call in `calls`."""

    name = "listed"

    def __init__(self, world: World) -> None:
        self._world = world

    def on_commit(self, commit: CommitInfo, state: bytes) -> bytes:
        self._world.point("listener")
        return state + f"{commit.first}-{commit.last};".encode()


class Steps:
    """A background without a thread."""

    def __init__(self, name: str, step: Step, on_death: Callable[[BaseException], None]) -> None:
        del name, on_death
        self._step = step

    def start(self) -> None:
        """The world makes the steps."""

    def wake(self) -> None:
        """The world looks anyway."""

    def join(self, timeout_s: float | None = None) -> bool:
        del timeout_s
        return True


class Faulty:
    """A committer between two points at which anything may happen."""

    def __init__(self, inner: Committer, world: World) -> None:
        self._inner, self._world = inner, world
        self.fence, self.holds, self.missing_files = inner.fence, inner.holds, inner.missing_files
        self.partitions, self.abort = inner.partitions, inner.abort
        self.remove, self.close = inner.remove, inner.close

    def commit(
        self,
        permit: CommitPermit,
        committables: Sequence[Committable],
        *,
        watermark: int | None,
        properties: Mapping[str, str],
        still_leader: Callable[[], bool],
    ) -> CommitReceipt:
        def leads() -> bool:
            # Not a pause: a sink may hold a lock here, and the driver that runs meanwhile would wait for it for ever.
            self._world.point("inside commit", pauses=False)
            return still_leader()

        self._world.point("before commit")
        receipt = self._inner.commit(
            permit,
            committables,
            watermark=watermark,
            properties=properties,
            still_leader=leads if self._world.probe else still_leader,
        )
        self._world.point("after commit")
        return receipt

    def commits(self, oldest_snapshot: int | None, limit: int, floor: int = 0) -> TableHistory:
        self._world.point("ask")
        return self._inner.commits(oldest_snapshot, limit, floor)


@dataclass
class Instance:
    """One driver: what `start_query` would hold."""

    generation: Generation
    manifest: Manifest
    sinks: dict[str, SinkCommits]
    coordinator: CommitCoordinator
    dead: bool = False
    crashed: bool = False
    attempts: int = 0
    busy: set[str] = field(default_factory=set)
    """What of it is in the middle of a call: its epochs, or the commits of a sink."""
