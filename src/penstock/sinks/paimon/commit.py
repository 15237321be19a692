"""Commits checkpoints to a Paimon table exactly once, from the driver.

A commit is one snapshot under our commit user with the checkpoint as its identifier. Snapshot N is published only if
every snapshot before N was read and none holds this checkpoint, and only if no other commit published N. On a local
warehouse both hold at one instant, the `os.link` of N: a zombie driver that was paused anywhere cannot double rows.

Nor can it commit anything at all. The link needs the hidden file that was written before leadership was asked. A new
driver claims its generation and then withdraws the hidden files of its commit user (`fence`). A driver that wrote one
before that has either linked it, which the new driver sees when it asks the table next, or never will. A driver that
writes one later asks for leadership after that and is told no.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from penstock.errors import CommitFailed, CorruptFile, PenstockError
from penstock.protocol.commit import TableHistory
from penstock.protocol.ids import CheckpointId, Generation
from penstock.sinks.base import CommitPermit, CommitReceipt, Committable, files_missing, no_longer_leader
from penstock.sinks.paimon import local, private
from penstock.sinks.paimon.catalogs import publishes_snapshots
from penstock.sinks.paimon.fence import is_data_file
from penstock.sinks.paimon.history import CommitHistory, rival
from penstock.sinks.paimon.open import open_table

# Other committers may be faster a few times in a row; pypaimon would give up after ten tries and wait up to 10 s.
_PATIENCE = {"commit.max-retries": "50", "commit.min-retry-wait": "2 ms", "commit.max-retry-wait": "200 ms"}

_QUESTIONS_AT_ONCE = 16


# What pypaimon raises on bytes that are no commit message, or one that our writers do not write.
_UNDECODABLE = (ValueError, LookupError, ArithmeticError, TypeError, AttributeError, MemoryError, struct.error)


class _Halt(BaseException):
    """Leaves pypaimon's commit loop, which takes any `Exception` for an unknown outcome and tries again.

    Nothing was published; `error` says why, None that the table holds the checkpoint already.
    """

    def __init__(self, error: Exception | None) -> None:
        super().__init__()
        self.error = error


class PaimonCommitter:
    """Commits to one table for one commit user; used by one thread."""

    def __init__(self, warehouse: str, table: str, commit_user: str) -> None:
        self._table = private.with_options(open_table(warehouse, table), _PATIENCE)
        self._files = private.TableFiles(self._table, commit_user, self._publish)
        self._history = CommitHistory(self._files, commit_user)
        # A catalog that publishes snapshots decides between committers, also where its files are in a local folder.
        root = None if publishes_snapshots(warehouse) else local.as_local(str(self._table.table_path))
        self._root = None if root is None else Path(root)
        self._publish_remote = private.own_publish(self._table)
        # Commit users hold names that people chose; a digest makes a short part of a file name.
        self._owner = f"{hashlib.sha256(commit_user.encode()).hexdigest()[:16]}-"
        self._checkpoint = CheckpointId(-1)
        self._watermark: int | None = None
        self._still_leader: Callable[[], bool] = lambda: False

    def fence(self, generation: Generation) -> None:
        """As `Committer.fence`, on a local warehouse; elsewhere pypaimon's publish leaves a gap."""
        del generation
        if self._root is not None:
            local.withdraw_hidden(Path(self._files.snapshot_path(1)).parent, self._owner)
            self._history.close_door()

    def commits(self, oldest_snapshot: int | None, limit: int, floor: int = 0) -> TableHistory:
        """As `Committer.commits`.

        Raises: `TablePositionMismatch` when the table lost a commit that this committer has seen.
        """
        with self._readable():
            self._history.ask(oldest_snapshot)
            return self._history.told(oldest_snapshot, limit, floor)

    def holds(self, committables: Sequence[Committable]) -> bool:
        """As `Committer.holds`."""
        listed = bool(self._listed(self._data_paths(committables)))
        if listed:
            self._history.prove()
        return listed

    def commit(
        self,
        permit: CommitPermit,
        committables: Sequence[Committable],
        *,
        watermark: int | None,
        properties: Mapping[str, str],
        still_leader: Callable[[], bool],
    ) -> CommitReceipt:
        """As `Committer.commit`.

        Raises: `Fenced`; `MissingFile`; `TablePositionMismatch` when a rival committed part of this, nothing was
        published, and the committables have to be chosen anew; anything else means *unknown outcome*.
        """
        if not committables:
            return CommitReceipt(permit.checkpoint, snapshot=None, rows=0, files=0)
        self._checkpoint, self._watermark, self._still_leader = permit.checkpoint, watermark, still_leader
        with self._readable():
            committed = self._history.holds(permit.checkpoint)
        if committed:
            return self._receipt_in_table()
        self._require_files(committables)
        messages = [self._decode(committable) for committable in committables]
        try:
            with local.publishing(str(self._table.table_path)):
                self._files.commit(messages, permit.checkpoint, dict(properties))
        except _Halt as halt:
            if halt.error is not None:
                raise halt.error from None
        except Exception as error:
            raise self._unknown_outcome(error) from error
        # Our try made it, or a rival's under the same commit user did: the table says.
        with self._readable():
            self._history.ask()
            return self._receipt_in_table()

    def missing_files(self, committables: Sequence[Committable]) -> tuple[str, ...]:
        """Data files of committables that are gone."""
        paths = sorted(self._data_paths(committables).values())
        exists = self._table.file_io.exists
        if self._root is not None:
            return tuple(path for path in paths if not exists(path))
        # Elsewhere each question takes tens of milliseconds.
        with ThreadPoolExecutor(_QUESTIONS_AT_ONCE) as pool:
            return tuple(path for path, there in zip(paths, pool.map(exists, paths), strict=True) if not there)

    def _require_files(self, committables: Sequence[Committable]) -> None:
        """A commit that lists a file which does not exist would make the table unreadable."""
        missing = self.missing_files(committables)
        if missing:
            raise files_missing("", self._checkpoint, missing)

    def partitions(self, committables: Sequence[Committable]) -> tuple[str, ...]:
        """The partitions that committables add rows to, as their folders are named; none without partitions."""
        if not self._table.partition_keys:
            return ()
        messages = (self._decode(committable) for committable in committables)
        return tuple(sorted({private.partition_of(self._table, message) for message in messages}))

    def abort(self, committables: Sequence[Committable]) -> None:
        """Removes the data files of committables that were never committed; a file that the table lists stays."""
        self._remove_unlisted(self._data_paths(committables))

    def remove(self, files: Sequence[str]) -> None:
        """Removes files that writers announced; a file that the table lists stays."""
        paths = (private.absolute_in_table(self._table, file) for file in files if is_data_file(file))
        self._remove_unlisted({path.rpartition("/")[2]: path for path in paths if self._table.file_io.exists(path)})

    def _data_paths(self, committables: Sequence[Committable]) -> dict[str, str]:
        paths: dict[str, str] = {}
        for committable in committables:
            paths |= private.data_paths(self._table, self._decode(committable))
        return paths

    def _remove_unlisted(self, paths: Mapping[str, str]) -> None:
        for name in paths.keys() - self._named(paths).keys():
            self._table.file_io.delete_quietly(paths[name])

    def _named(self, paths: Mapping[str, str]) -> Counter[str]:
        """Of these files the ones that the newest snapshot's manifests name: 1 where it lists one, 0 if removed."""
        counts: Counter[str] = Counter()
        with self._readable():
            latest = self._files.latest()
            entries = self._files.entries(latest, frozenset(paths)) if latest is not None and paths else ()
            for entry in entries:
                counts[entry.file.file_name] += 1 if entry.kind == 0 else -1
        return counts

    def _listed(self, paths: Mapping[str, str]) -> set[str]:
        return {name for name, count in self._named(paths).items() if count > 0}

    def _readable(self) -> AbstractContextManager[None]:
        return local.readable(str(self._table.table_path))

    def close(self) -> None:
        """Nothing stays open between calls."""

    def _receipt_in_table(self) -> CommitReceipt:
        with self._readable():
            receipt = self._history.receipt()
        if receipt is None or receipt.checkpoint < self._checkpoint:
            raise self._unknown_outcome(None)
        return receipt

    def _publish(self, snapshot: private.Snapshot) -> bool:
        """Makes a snapshot visible unless another commit has that number; called by pypaimon's commit loop.

        pypaimon copies the watermark of the snapshot before; ours takes part in it and never sets it back.
        """
        if self._watermark is not None:
            before = snapshot.watermark
            snapshot.watermark = self._watermark if before is None else max(self._watermark, before)
        try:
            if self._root is None:
                self._fence(snapshot)
                return self._publish_remote(snapshot)
            published = self._publish_local(snapshot, self._root)
        except _Halt:
            self._files.discard_manifests(snapshot)
            raise
        if not published:
            self._files.discard_manifests(snapshot)
        return published

    def _publish_local(self, snapshot: private.Snapshot, root: Path) -> bool:
        local.sync_files(map(Path, self._files.own_manifests(snapshot)), root)
        path = Path(self._files.snapshot_path(snapshot.id))
        hidden = local.write_hidden(path, private.snapshot_json(snapshot), self._owner)
        try:
            self._fence(snapshot)
            published = local.link(hidden, path)
        finally:
            hidden.unlink(missing_ok=True)
        if published:
            self._history.add(snapshot)
            # Only a hint: readers look for newer snapshots themselves.
            with suppress(OSError):
                local.replace(Path(self._files.hint_path()), str(snapshot.id))
        return published

    def _fence(self, snapshot: private.Snapshot) -> None:
        """Returns only if this driver leads and no snapshot before this one holds a commit that we did not know."""
        known = self._history.checkpoint
        try:
            self._history.read_to(int(snapshot.id) - 1)
            self._history.judge_gap()
            leads = self._still_leader()
        except Exception as error:  # noqa: BLE001 - nothing was published, so whatever it is ends the commit
            raise _Halt(error) from None
        found = self._history.checkpoint
        if not leads:
            raise _Halt(no_longer_leader(self._checkpoint))
        if found >= self._checkpoint:
            raise _Halt(None)
        if found != known:
            raise _Halt(rival(self._checkpoint, found))

    def _decode(self, committable: Committable) -> private.Message:
        try:
            message = private.decode(self._table, committable.payload)
            private.require_additions(self._table, message)
            return message
        except _UNDECODABLE as error:
            raise CorruptFile(
                f"a committable of table {self._table.table_path} cannot be read: {error}",
                cause="the checkpoint is damaged, or was written with a pypaimon that this one does not understand",
                next_step="use the pypaimon that wrote the checkpoint, or restore an older checkpoint",
            ) from error

    def _unknown_outcome(self, error: Exception | None) -> PenstockError:
        path = str(self._table.table_path)
        return local.storage_error(error, path) or CommitFailed(
            f"checkpoint {self._checkpoint} may or may not be in {path}: {error or 'the table does not show it'}",
            cause="the storage failed, or other committers were always faster",
            next_step="the commit is tried again after asking the table; if it goes on, look at the table's storage",
            checkpoint=self._checkpoint,
            path=path,
        )
