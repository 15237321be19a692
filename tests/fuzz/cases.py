"""One case: a copy of a folder is damaged, used as a user would use it, and judged."""

from __future__ import annotations

import logging
import shutil
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

from click.testing import CliRunner

from penstock.cli.main import main
from penstock.engine.attempts import AttemptFiles
from penstock.engine.checkpoints import Checkpoints
from penstock.errors import PenstockError
from penstock.protocol.ids import CheckpointId, Generation
from penstock.sinks.paimon.sink import Paimon
from penstock.sinks.paimon.upkeep.keeper import PaimonKeeper
from penstock.sinks.upkeep import Upkeep
from penstock.store import open_store
from penstock.text import printable
from tests.fuzz import mutate, seeing
from tests.fuzz.folders import BATCHES, ROWS, CheckpointTemplate, TableTemplate, copy
from tests.fuzz.mutate_table import TABLE
from tests.fuzz.watch import MEMORY_BYTES_MAX, SECRET, Audit, Outside, peak_bytes
from tests.support import tables

TABLE_SHARE = 0.08
FAULT = "PEN-000"
"""A fault in Penstock itself: never what damage should lead to."""

TOLERATED = ("UnicodeDecodeError",)
"""Rows may hold texts that are not UTF-8, forged or not. Operators tell of that; it is not the folder's matter."""

Exercise = Callable[[Path], str]


class Wrong(Exception):
    """What must not happen."""


class Bench:
    """Templates, and the place where copies of them are used: ``case`` in a folder full of things to steal."""

    def __init__(self, base: Path, only: str | None = None) -> None:
        """`only`: the name of one exercise, or `see` for all that only look."""
        self._only = only
        logging.disable(logging.CRITICAL)
        self._base = base
        (base / "templates").mkdir(parents=True)
        self._case = base / "case"
        self._case.mkdir()
        self._checkpoint = CheckpointTemplate.made(base / "templates/checkpoint")
        self._table = TableTemplate.made(base / "templates/table")
        self._seen = seeing.contents(base / "templates/checkpoint/ckpt")
        assert sum(self._seen.values()) == len(self._checkpoint.expected)
        self._outside = Outside(base)
        self._audit = Audit(base)
        self._content = self._seen
        self._peak: int | None = None
        self._cases = 0

    def warm_up(self) -> None:
        """Undamaged folders pass every exercise; what that takes is what the machine is measured against."""
        for exercise in (*self._checkpoint_exercises(), *self._table_exercises()):
            template = self._base / "templates" / ("table" if exercise in self._table_exercises() else "checkpoint")
            told = self._run(template, exercise, [])
            if told.startswith("PEN"):
                raise Wrong(f"{exercise.__name__} on an undamaged folder: {told}")
        self._peak = peak_bytes()

    def run(self, seed: int) -> str:
        """What became of a case. Raises: `Wrong`."""
        chance = Random(seed)
        of_table = chance.random() < TABLE_SHARE and self._only is None
        exercise = chance.choice(self._table_exercises() if of_table else self._wanted())
        template = self._base / "templates" / ("table" if of_table else "checkpoint")
        kinds = TABLE if of_table else mutate.CHECKPOINT
        mutations = [chance.choice(kinds) for _ in range(chance.choice((1, 1, 1, 2)))]
        mutations = list(dict.fromkeys(mutations))
        # No mutation reads a terabyte or waits at a pipe to damage it further.
        mutations.sort(key=lambda mutation: mutation in (mutate.huge, mutate.odd_kind))
        damage: list[mutate.Damage] = []

        def apply(folder: mutate.Folder) -> None:
            for mutation in mutations:
                with suppress(
                    OSError, LookupError, ValueError, TypeError, AttributeError, AssertionError, RecursionError
                ):
                    damage.append(mutation(folder, chance))

        try:
            return self._run(template, exercise, damage, apply)
        except Wrong as wrong:
            told = "; ".join(part.what for part in damage)
            raise Wrong(f"seed {seed}, {exercise.__name__} after {printable(told)}: {wrong}") from wrong

    def _run(
        self,
        template: Path,
        exercise: Exercise,
        damage: list[mutate.Damage],
        apply: Callable[[mutate.Folder], None] = lambda _: None,
    ) -> str:
        inner = self._case / "inner"
        copy(template, inner)
        apply(mutate.Folder(inner, self._base))
        self._outside.touched()
        self._audit.seen.clear()
        self._audit.listening = True
        try:
            told = _coded(lambda: exercise(inner))
        except PenstockError as error:
            told = _judged(error)
        finally:
            self._audit.listening = False
        self._judge(damage, told, exercise)
        shutil.rmtree(inner)
        for left in self._case.iterdir():
            if left.is_dir():
                shutil.rmtree(left)
            else:
                left.unlink()
        return told

    def _judge(self, damage: list[mutate.Damage], told: str, exercise: Exercise) -> None:
        if found := self._outside.touched():
            raise Wrong(f"outside was touched: {found[:5]}")
        if found := self._audit.seen:
            raise Wrong(f"asked for: {found[:5]}")
        self._cases += 1
        if not self._cases % 50 and (found := self._outside.changed()):
            raise Wrong(f"outside was changed: {found}")
        for copied in (self._case / "new", self._case / "target"):
            for path in copied.rglob("*"):
                if path.is_file() and path.stat().st_size < 1 << 20 and SECRET.encode() in path.read_bytes():
                    raise Wrong(f"{path} holds what lies outside")
        if self._peak is not None and peak_bytes() > self._peak + MEMORY_BYTES_MAX:
            raise Wrong(f"memory: {peak_bytes() >> 20} MiB, {self._peak >> 20} MiB without damage")
        forged = any(part.forged for part in damage)
        if told == "read" and not forged and self._checkpoint.content != self._checkpoint.expected:
            raise Wrong("other rows were read than were written")
        if told == "looked" and not forged and self._content != self._seen:
            raise Wrong("other rows were looked at than were written")
        if told == "ran" and exercise in (self.restart, self.restore) and not forged:
            found = self._checkpoint.numbers()
            if found != list(range(ROWS * BATCHES)):
                raise Wrong(f"{len(found)} rows, {len(set(found))} different ones; {ROWS * BATCHES} are right")

    # -- what users do with a checkpoint folder ---------------------------------------------------------------------

    def _checkpoint_exercises(self) -> list[Exercise]:
        own = [*[self.read] * 16, self.restart, self.restart, self.restore, self.look, self.savepoint]
        return [*own, *self._looking()]

    def _looking(self) -> list[Exercise]:
        return [self.tables, self.tables, self.through_spark, self.page, self.status]

    def _wanted(self) -> list[Exercise]:
        if self._only == "see":
            return self._looking()
        return [one for one in self._checkpoint_exercises() if self._only in (None, one.__name__)]

    def read(self, folder: Path) -> str:
        """What start, subtasks and the collector read, one after the other and in this thread."""
        return self._checkpoint.read(folder / "ckpt")

    def restart(self, folder: Path) -> str:
        return self._run_to_end(folder / "ckpt")

    def restore(self, folder: Path) -> str:
        return self._run_to_end(self._case / "new", restore=str(folder / "savepoint"))

    def _run_to_end(self, checkpoint: Path, **options: str) -> str:
        if not self._checkpoint.restart(checkpoint, **options):
            raise Wrong("the query does not end")
        return "ran"

    def savepoint(self, folder: Path) -> str:
        return _command("savepoint", str(folder / "ckpt"), str(self._case / "target"))

    def look(self, folder: Path) -> str:
        place = str(folder / "ckpt")
        told = [_command("checkpoints", place), _command("checkpoints", "--json", place), _command("commits", place)]
        return max(told, key=len)

    def tables(self, folder: Path) -> str:
        self._content = seeing.contents(folder / "ckpt")
        return "looked"

    def through_spark(self, folder: Path) -> str:
        self._content = seeing.through_spark(folder / "ckpt")
        return "looked"

    def page(self, folder: Path) -> str:
        seeing.drawn(folder / "ckpt")
        return _command("report", str(folder / "ckpt"), "-o", str(self._case / "run.html"))

    def status(self, folder: Path) -> str:
        place = str(folder / "ckpt")
        told = [
            *(_command("status", place), _command("status", "--json", place), _command("top", "--count", "1", place)),
            *(_command("epochs", place), _command("epochs", "--json", place)),
            *(_command("errors", place), _command("errors", "--json", place)),
        ]
        return next((one for one in told if one.startswith("PEN")), "ran")

    # -- and with a table -----------------------------------------------------------------------------------------

    def _table_exercises(self) -> list[Exercise]:
        return [self.upkeep, self.upkeep, self.commit]

    def upkeep(self, folder: Path) -> str:
        policy = Upkeep(manifests=2, small_files=2, snapshots=2, snapshots_for=0.0, orphans_after="1 h")
        keeper = PaimonKeeper(str(folder / "lake"), "db.words", policy, pending=lambda: _pending(folder))
        keeper._clock = lambda: 4e9  # every file is old
        report = keeper.step()
        for failure in report.failures:
            if "[PEN-" not in failure or FAULT in failure:
                raise Wrong(f"a failure without a code: {failure}")
        return "PEN in the report" if report.failures else "ran"

    def commit(self, folder: Path) -> str:
        """What a driver does with the sink of a checkpoint."""
        checkpoints = Checkpoints(open_store(str(folder / "ckpt")))
        manifest = checkpoints.newest()
        if manifest is None:
            return "nothing"
        sink = Paimon(str(folder / "lake"), "db.words")
        sink.check(tables.SCHEMA)
        committer = sink.open_committer("penstock-fuzz-words")
        committer.fence(Generation(2))
        state = manifest.sinks.get("words")
        pending = [part for commit in (state.pending if state else ()) for part in commit.committables]
        committer.commits(state.snapshot if state else None, 10)
        committer.missing_files(pending)
        sink.taken_over(CheckpointId(8), pending)
        attempts = AttemptFiles(
            checkpoints.store, "words", generation=Generation(2), taken_over=CheckpointId(8), owners={}
        )
        attempts.sweep(committer.remove)
        tables.commit(committer, 7, pending)
        tables.commit(committer, 9, tables.epoch(sink, 9))
        committer.abort(pending)
        return "ran"


def _pending(folder: Path) -> list[object]:
    checkpoints = Checkpoints(open_store(str(folder / "ckpt")))
    manifests = [checkpoints.read(number) for number in checkpoints.ids()]
    sinks = [sink for manifest in manifests for sink in manifest.sinks.values()]
    return [part for sink in sinks for commit in sink.pending for part in commit.committables]


def _command(*arguments: str) -> str:
    result = CliRunner().invoke(main, list(arguments))
    text = result.output
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise Wrong("".join(traceback.format_exception(result.exception))[-2000:])
    if printable(text, lines=True) != text:
        raise Wrong(f"the terminal was given {text!r}")
    if SECRET in text or "secret@" in text:
        raise Wrong("a secret was printed")
    return "ran" if result.exit_code == 0 else text.partition("]")[0].lstrip("[") or "nothing"


def _judged(error: PenstockError) -> str:
    if error.code == FAULT and any(known in str(error) for known in TOLERATED):
        return "not UTF-8"
    if error.code == FAULT or not error.next_step:
        raise Wrong("".join(traceback.format_exception(error))[-3000:]) from error
    if SECRET in str(error):
        raise Wrong("a secret is in the message") from error
    return error.code


def _coded(work: Callable[[], str]) -> str:
    """Raises: `Wrong` for whatever is no error of ours."""
    try:
        return work()
    except (PenstockError, Wrong):
        raise
    except UnicodeDecodeError:
        return "not UTF-8"
    except Exception as error:
        raise Wrong("".join(traceback.format_exception(error))[-3000:]) from error
