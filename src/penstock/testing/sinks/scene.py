"""One fresh table with the drivers of one check: they write, commit, crash and take over as the engine's would.

The folder that a sink is made in is watched: what a writer makes there, and when it says so.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pyarrow as pa

from penstock.protocol.commit import CommitPermit, CommitReceipt
from penstock.protocol.ids import CheckpointId, Generation
from penstock.protocol.manifest import Committable, PendingCommit
from penstock.sinks.base import Committer, Sink, WriterContext

MakeSink = Callable[[Path], Sink]
ReadRows = Callable[[Sink], pa.Table]
MakeRows = Callable[[Sequence[int]], pa.RecordBatch]

USER = "checked-user"
RIVAL_S = 1.0
"""A newer driver that does not get on for so long waits for a lock of the sink; the older one then goes on."""


class Broken(Exception):
    """A sink does not do what the protocol wants of it."""


class Untold(Exception):
    """A sink without files or rows to read back cannot be asked this."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one attempt wrote: what it hands over, and the files that it announced."""

    committables: tuple[Committable, ...]
    announced: tuple[str, ...]


@dataclass(slots=True)
class Scene:
    """A table without commits."""

    sink: Sink
    folder: Path
    read: ReadRows | None
    rows: MakeRows
    attempts: int = 0
    early: list[str] = field(default_factory=list)
    """Files that were there before they were announced."""

    def files(self) -> set[Path]:
        return {path for path in self.folder.rglob("*") if path.is_file()}

    # -- subtasks --------------------------------------------------------------------------------------------------

    def write(self, checkpoint: int, ids: Sequence[int], *, generation: int = 1) -> Attempt:
        """One attempt that ends well."""
        announced: list[str] = []
        writer = self.sink.open_writer(self.context(checkpoint, announced, generation), self.rows(()).schema)
        writer.write(self.rows(ids))
        return Attempt(stored(checkpoint, writer.prepare()), tuple(announced))

    def context(self, checkpoint: int, announced: list[str], generation: int = 1) -> WriterContext:
        """As the engine makes it: no two attempts have the same."""
        self.attempts += 1

        def announce(file: str) -> None:
            if any(path.name == file.rpartition("/")[2] for path in self.files()):
                self.early.append(file)
            announced.append(file)

        return WriterContext(
            CheckpointId(checkpoint), Generation(generation), 0, 1, attempt=f"{self.attempts}", announce=announce
        )

    # -- drivers ---------------------------------------------------------------------------------------------------

    def driver(self, generation: int, user: str = USER) -> Committer:
        """The committer of a driver that starts: the table is asked, then fenced, then asked again."""
        committer = self.sink.open_committer(user)
        committer.commits(None, 1)
        committer.fence(Generation(generation))
        committer.commits(None, 1)
        return committer

    def newest(self, committer: Committer) -> int | None:
        """The newest checkpoint that the table shows of the committer's user."""
        found = committer.commits(None, 1).commits
        return int(found[-1].checkpoint) if found else None

    # -- what readers see ------------------------------------------------------------------------------------------

    def require_rows(self, ids: Sequence[int], when: str) -> None:
        """Readers see exactly these rows."""
        if self.read is None:
            return
        found, wanted = Counter(self.read(self.sink)["id"].to_pylist()), Counter(ids)
        if found == wanted:
            return
        lost, extra = sorted((wanted - found).elements()), sorted((found - wanted).elements())
        doubled = [number for number in extra if number in wanted]
        wrong = [number for number in extra if number not in wanted]
        parts = [
            f"{what} are ids {numbers}"
            for what, numbers in (("lost", lost), ("doubled", doubled), ("visible too early", wrong))
            if numbers
        ]
        raise Broken(f"{when}: {'; '.join(parts)}")


def stored(checkpoint: int, committables: Sequence[Committable]) -> tuple[Committable, ...]:
    """Committables as a manifest gives them back."""
    pending = PendingCommit(checkpoint=CheckpointId(checkpoint), committables=tuple(committables))
    return msgspec.json.decode(msgspec.json.encode(pending), type=PendingCommit).committables


def commit(
    committer: Committer,
    checkpoint: int,
    committables: Sequence[Committable],
    still_leader: Callable[[], bool] = lambda: True,
    *,
    generation: int = 1,
) -> CommitReceipt:
    """Commits as the coordinator does."""
    return committer.commit(
        CommitPermit(Generation(generation), CheckpointId(checkpoint)),
        committables,
        watermark=1000 * checkpoint,
        properties={"penstock.checkpoint": str(checkpoint), "penstock.watermark": str(1000 * checkpoint)},
        still_leader=still_leader,
    )


class Rival:
    """A newer driver that acts while an older one is about to make its commit visible.

    It has a thread of its own: a sink may hold a lock there, and then the newer driver has to wait for it.
    """

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="rival", daemon=True)
        self.asked = False

    def _run(self) -> None:
        try:
            self._act()
        except Exception as error:
            self._error = error

    def still_leader(self) -> bool:
        """The older driver was the leader a moment ago; then it was paused."""
        if not self.asked:
            self.asked = True
            self._thread.start()
            self._thread.join(RIVAL_S)
        return True

    def finish(self) -> None:
        """Waits for the newer driver, whose own failure is a failure of the sink."""
        if not self.asked:
            raise Broken("`commit` never asked `still_leader`: an older driver commits whatever happened meanwhile")
        self._thread.join()
        if self._error is not None:
            raise self._error
