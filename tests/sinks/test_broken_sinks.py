"""Broken toys: each is the sink of the guide with one fault, and `check_sink` names the promise that it breaks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.testing import SinkBroken, check_sink
from penstock.testing.sinks import check
from tests.support.pages import DOCS, python_blocks, text_of


def _of_the_guide() -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": __name__}
    exec(python_blocks(text_of(DOCS / "guides" / "own-sink.md"))[0].code, names)
    return names


GUIDE = _of_the_guide()
Lines: Any = GUIDE["JsonLines"]
Writer: Any = GUIDE["JsonWriter"]
Committer: Any = GUIDE["JsonCommitter"]
read: Any = GUIDE["read_lines"]


@dataclass(frozen=True)
class Toy(Lines):  # type: ignore[misc]
    """The guide's sink with another writer or committer."""

    writer: type = Writer
    committer: type = Committer

    def open_writer(self, context: Any, schema: Any) -> Any:
        return self.writer(Path(self.folder), context)

    def open_committer(self, commit_user: str) -> Any:
        return self.committer(Path(self.folder), commit_user)


class CommitsTwice(Committer):  # type: ignore[misc]
    """Never looks into its table before it commits."""

    def commit(self, permit: Any, committables: Any, *, still_leader: Any, **_: Any) -> Any:
        missing = self.missing_files(committables)
        if missing:
            raise GUIDE["files_missing"]("", permit.checkpoint, missing)
        assert self._create(len(self._entries()) + 1, permit, committables, still_leader)
        return self._mine(self._entries())[-1]


class Forgets(Committer):  # type: ignore[misc]
    """Tells nothing of what it committed."""

    def commits(self, oldest_snapshot: Any, limit: int, floor: int = 0) -> Any:
        super().commits(oldest_snapshot, limit, floor)
        return GUIDE["TableHistory"]()


class MixesUsers(Committer):  # type: ignore[misc]
    """Takes everybody's commits for its own."""

    def _mine(self, entries: list[dict[str, Any]]) -> Any:
        return super()._mine([{**entry, "user": self._user} for entry in entries])


class CommitsLast(Committer):  # type: ignore[misc]
    """Commits the newest of several checkpoints only."""

    def _create(self, number: int, permit: Any, committables: Sequence[Any], still_leader: Any) -> bool:
        return bool(super()._create(number, permit, committables[-1:], still_leader))


class NeverAsks(Committer):  # type: ignore[misc]
    """Does not ask who leads."""

    def _create(self, number: int, permit: Any, committables: Any, still_leader: Any) -> bool:
        return bool(super()._create(number, permit, committables, lambda: True))


class AsksTooEarly(Committer):  # type: ignore[misc]
    """Asks who leads, then looks for a free number: what others committed meanwhile does not stop it."""

    def _create(self, number: int, permit: Any, committables: Any, still_leader: Any) -> bool:
        if not still_leader():
            raise GUIDE["Fenced"]("not the leader")
        return bool(super()._create(len(self._entries()) + 1, permit, committables, lambda: True))


class ForgetsParts(Committer):  # type: ignore[misc]
    """Does not notice that a part of its commit appeared meanwhile."""

    def commit(self, permit: Any, committables: Any, **rest: Any) -> Any:
        mine = self._mine(self._entries())
        self._told = mine[-1].checkpoint if mine else -1
        while True:
            try:
                return super().commit(permit, committables, **rest)
            except RuntimeError:
                mine = self._mine(self._entries())
                self._told = mine[-1].checkpoint


class ListsMissingFiles(Committer):  # type: ignore[misc]
    def missing_files(self, committables: Any) -> tuple[str, ...]:
        return ()


class ClaimsAll(Committer):  # type: ignore[misc]
    def holds(self, committables: Any) -> bool:
        return True


class RemovesNothing(Committer):  # type: ignore[misc]
    def remove(self, files: Any) -> None:
        """Leaves everything."""


class SharesNames(Writer):  # type: ignore[misc]
    """All attempts write to one file."""

    def __init__(self, folder: Path, context: Any) -> None:
        super().__init__(folder, context)
        self._path = folder / f"{context.checkpoint}.jsonl"

    def prepare(self) -> Any:
        self._path.unlink(missing_ok=True)
        return super().prepare()


class Silent(Writer):  # type: ignore[misc]
    """Makes files that nobody knows of."""

    def __init__(self, folder: Path, context: Any) -> None:
        super().__init__(folder, context)
        self._announce = lambda _: None


class AnnouncesLate(Writer):  # type: ignore[misc]
    """Announces a file that is there already."""

    def prepare(self) -> Any:
        announce, self._announce = self._announce, lambda _: None
        committables = super().prepare()
        announce(self._path.name)
        return committables


class Leaves(Writer):  # type: ignore[misc]
    """Does not clean up."""

    def write(self, batch: pa.RecordBatch) -> None:
        super().write(batch)
        self._announce(self._path.name + ".part")
        Path(f"{self._path}.part").write_text("")

    def prepare(self) -> Any:
        Path(f"{self._path}.part").unlink(missing_ok=True)
        return super().prepare()


@dataclass(frozen=True)
class StaysHome(Toy):
    """Holds something that no worker can get."""

    lock: Any = field(default_factory=lambda: (number for number in range(3)))


@dataclass(frozen=True)
class Empties(Toy):
    """`check` makes the table anew."""

    def check(self, schema: pa.Schema) -> None:
        super().check(schema)
        for path in Path(self.folder, "log").iterdir():
            path.unlink()


def broken_by(make: Callable[[Path], Any], worlds: int = 0) -> dict[str, str]:
    with pytest.raises(SinkBroken) as raised:
        check_sink(make, read, worlds=worlds)
    return {one.promise: one.seen for one in raised.value.broken}


def toy(writer: type = Writer, committer: type = Committer) -> Callable[[Path], Any]:
    return lambda folder: Toy(str(folder), writer, committer)


@pytest.mark.parametrize(
    ("make", "promise", "seen"),
    [
        (toy(committer=CommitsTwice), "The same commit twice adds its rows once", "doubled are ids [1]"),
        (toy(committer=Forgets), "`commits` tells what was committed, after a restart too", "shows nothing"),
        (toy(committer=MixesUsers), "Commit users are kept apart", "another commit user is taken for ours"),
        (toy(committer=CommitsLast), "Several checkpoints fit into one commit", "lost are ids [1, 2]"),
        (toy(committer=NeverAsks), "A driver that no longer leads commits nothing", "commits"),
        (
            toy(committer=AsksTooEarly),
            "A paused driver does not commit again what a newer one committed",
            "doubled are ids [1]",
        ),
        (
            toy(committer=ForgetsParts),
            "A paused driver does not commit again a part of its commit",
            "doubled are ids [1]",
        ),
        (toy(committer=ListsMissingFiles), "A missing file stops a commit", "misses nothing"),
        (toy(committer=ClaimsAll), "`holds` claims nothing that was not committed", "would be lost"),
        (toy(committer=RemovesNothing), "`remove` leaves nothing of a killed attempt", "leaves"),
        (toy(writer=SharesNames), "Attempts share no files", "write to"),
        (toy(writer=Silent), "A writer announces each file before it makes it", "never announced"),
        (toy(writer=AnnouncesLate), "A writer announces each file before it makes it", "was there before"),
        (toy(writer=Leaves), "`Writer.abort` leaves nothing", ".part"),
        (lambda folder: StaysHome(str(folder)), "A sink can be sent to a worker", "generator"),
        (lambda folder: Empties(str(folder)), "`check` leaves the rows of a table alone", "lost are ids [1]"),
    ],
    ids=lambda value: None,
)
def test_a_broken_sink_is_told_which_promise_it_breaks(make: Callable[[Path], Any], promise: str, seen: str) -> None:
    broken = broken_by(make)
    assert promise in broken
    assert seen in broken[promise]


def test_the_sink_of_the_guide_keeps_every_promise() -> None:
    report = check_sink(lambda folder: Lines(str(folder)), read, worlds=20)
    assert report.untold == {}
    assert report.worlds == 20


def test_the_worlds_alone_find_a_committer_that_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "PROMISES", {})
    broken = broken_by(toy(committer=Forgets), worlds=20)
    assert "seed" in broken[check.WORLDS]
