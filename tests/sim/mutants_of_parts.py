"""Faults in parts that have tests of their own; `mutants.py` says what a mutant is, and applies them.

Each names the test files of which one must fail while the fault is there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.engine import epochs, origin, startpoint, transfer
from penstock.graph import compiler
from penstock.inflight import gate
from penstock.operators.calls import map_async_operator
from penstock.operators.deduplicate import deduplicate_operator
from penstock.operators.failures import deadletters
from penstock.operators.join import join_buffer
from penstock.operators.process import timers, user_state
from penstock.operators.top_n import top_n_operator, top_rows
from penstock.operators.window import closing, lateness, session_state
from penstock.protocol import commit, epoch, outage, processingtime, recover, scale, trust
from penstock.protocol import upkeep as upkeep_decisions
from penstock.sinks import partition_done
from penstock.sinks.paimon.upkeep import expire, merge, orphans
from penstock.state import keyed, runs, tiers
from penstock.store import arrowcheck, arrowfile, local, paths, staging
from penstock.subtask import attempt as task
from tests.sim import faulty
from tests.sim.mutant import Anywhere, Mutant

ENGINE = ("tests/unit/engine/test_engine_promises.py",)
WINDOWS = (
    "tests/unit/operators/test_windows.py",
    "tests/unit/operators/test_windows_engine.py",
    "tests/unit/operators/test_panes.py",
)
JOINS = ("tests/unit/operators/test_join.py",)
TIMERS = ("tests/unit/operators/test_process_timers.py", "tests/unit/operators/test_timer_rules.py")
CALLS = ("tests/unit/operators/test_map_async.py",)
LETTERS = ("tests/unit/operators/test_dead_letters.py",)
STATE = (
    "tests/unit/state/test_state_runs.py",
    "tests/unit/state/test_state_keyed.py",
    "tests/unit/state/test_state_model.py",
)
UPKEEP = ("tests/unit/protocol/test_upkeep_decisions.py", "tests/sinks/test_upkeep_removals.py")
FILES = ("tests/unit/store/test_arrowfile.py",)
HOSTILE = ("tests/unit/engine/test_hostile_folder.py",)


def part(name: str, what: str, tests: tuple[str, ...], *patches: tuple[Any, str, faulty.Make]) -> Mutant:
    return Mutant(name, what, patches, tests)


def _returned(change: Callable[[Any], Any]) -> faulty.Make:
    """The original, with something done to what it returns."""
    return lambda original: lambda *args, **rest: change(original(*args, **rest))


def _given(place: int, change: Callable[[Any], Any]) -> faulty.Make:
    """The original, with something done to one of its arguments."""

    def make(original: Any) -> Any:
        def call(*args: Any, **rest: Any) -> Any:
            changed = [change(value) if number == place else value for number, value in enumerate(args)]
            return original(*changed, **rest)

        return call

    return make


MUTANTS_OF_PARTS = (
    # -- the engine
    part(
        "first-barrier",
        "the first epoch after a start has no barrier",
        ENGINE,
        (epochs.EpochRunner, "_plan", faulty.first_epoch_without_barrier),
    ),
    part(
        "violations-ignored",
        "what a report contradicts does not stop the epoch",
        ENGINE,
        (epochs.EpochRunner, "_check", _given(1, lambda draft: dataclasses.replace(draft, violations=()))),
    ),
    part(
        "segments-unlimited",
        "the number of segments in flight is not limited",
        ENGINE,
        (epoch.Facts, "over_limit", lambda _: lambda self: self.bytes_in_flight > self.max_bytes_in_flight),
    ),
    part(
        "bytes-unlimited",
        "the bytes in flight are not limited",
        ("tests/unit/engine/test_engine_epochs.py",),
        (epoch.Facts, "over_limit", lambda _: lambda self: self.segments_in_flight > self.max_segments_in_flight),
    ),
    part(
        "spill-not-dealt",
        "rows that wait stay with the subtask that got them",
        ENGINE,
        (task._Attempt, "_open_spill", _given(1, lambda edge: dataclasses.replace(edge, dealt=False))),
    ),
    part(
        "misfit-accepted",
        "a pipeline that does not fit its checkpoint is started",
        ("tests/unit/engine/test_engine_refusals.py",),
        (startpoint, "evolve", faulty.nothing_refused),
    ),
    part(
        "dropped-uncounted",
        "in-flight data that a user drops is not counted",
        ("tests/unit/engine/test_drop.py",),
        (recover.Dropped, "__init__", lambda init: lambda self, edge, _rows, size: init(self, edge, 0, size)),
    ),
    part(
        "restore-over",
        "a restore is done into a folder with a history of its own",
        ("tests/unit/engine/test_restore.py", "tests/unit/engine/test_savepoint.py"),
        (startpoint, "require_new", faulty.always(None)),
    ),
    part(
        "restore-half",
        "a query starts on a folder whose restore was not finished",
        ("tests/unit/engine/test_restore.py", "tests/unit/engine/test_savepoint.py"),
        (startpoint, "require_finished", faulty.always(None)),
    ),
    part(
        "restore-another",
        "a second restore into a folder overwrites what the first one began",
        ("tests/unit/engine/test_restore.py", "tests/unit/engine/test_savepoint.py"),
        (origin, "_read", faulty.always(type("Begun", (), {"identity": "", "checkpoint": 0, "place": ""})())),
    ),
    part(
        "savepoint-over",
        "a savepoint is written into a folder that is not empty",
        ("tests/unit/engine/test_savepoint.py",),
        (Anywhere(staging), "require_empty", faulty.always(None)),
    ),
    part(
        "savepoint-unfinished",
        "a savepoint counts before its last file is there",
        ("tests/unit/engine/test_savepoint.py",),
        (transfer.Transfer, "step", lambda step: lambda self: step(self) and len(self._left) > 1),
    ),
    part(
        "scale-at-once",
        "one busy epoch is enough to change the parallelism",
        ("tests/unit/protocol/test_scale.py",),
        (scale, "_hot", _returned(lambda memory: dataclasses.replace(memory, hot=memory.hot + 100))),
    ),
    # -- event time
    part(
        "late-kept",
        "late rows are counted",
        WINDOWS,
        (Anywhere(lateness), "split_late", _given(3, lambda _: lambda times: np.full_like(times, 1 << 62))),
    ),
    part(
        "late-too-early",
        "rows are late a moment too early",
        WINDOWS,
        (
            Anywhere(lateness),
            "split_late",
            _given(3, lambda deadline: lambda times: deadline(times) - 1),
        ),
    ),
    part(
        "panes-dropped-early",
        "a part of an open window is forgotten",
        WINDOWS,
        (closing.Closing, "_dead_until", _returned(lambda pane: pane + 1)),
    ),
    part(
        "window-left-open",
        "the last window that is due is not closed",
        WINDOWS,
        (closing.Closing, "_closing_windows", _returned(lambda windows: (windows[0], windows[1] - 1))),
    ),
    part(
        "sessions-apart",
        "sessions that touch are not joined",
        WINDOWS,
        (Anywhere(session_state), "merged", lambda _: lambda _reducer, parts: session_state.concat(parts)),
    ),
    part(
        "join-unmarked",
        "a row of an outer join does not remember that it matched",
        JOINS,
        (join_buffer.JoinBuffer, "mark_matched", faulty.always(None)),
    ),
    part(
        "join-forgets",
        "a row of a join is forgotten while it may still match",
        JOINS,
        (join_buffer.JoinBuffer, "near", faulty.always(None)),
    ),
    part(
        "duplicates-late",
        "late rows are taken for new ones",
        ("tests/unit/operators/test_deduplicate.py",),
        (
            deduplicate_operator.DeduplicateOperator,
            "_in_time",
            lambda _: (
                lambda self, records: (
                    records,
                    deduplicate_operator.micros(records.batch.column(self._spec.event_time))[0],
                    records.batch.slice(0, 0),
                )
            ),
        ),
    ),
    part(
        "duplicates-within",
        "a duplicate at the end of its span is kept",
        ("tests/unit/operators/test_deduplicate.py",),
        (deduplicate_operator, "_kept_within", _given(4, lambda within: within - 1)),
    ),
    part(
        "top-one-less",
        "the last rank is missing",
        ("tests/unit/operators/test_top_n.py",),
        (top_rows, "lists_of", _given(4, lambda count: count - 1)),
    ),
    part(
        "top-repeats",
        "ranks that did not change are emitted again",
        ("tests/unit/operators/test_top_n.py",),
        (top_n_operator, "_changed", _returned(np.ones_like)),
    ),
    part(
        "timer-cancelled-fires",
        "a timer that was moved or cancelled fires all the same",
        TIMERS,
        (timers.TimerStore, "valid", lambda _: lambda self, entries, event: np.arange(entries.rows)),
    ),
    part(
        "timer-late",
        "a timer does not fire at its moment, only after it",
        TIMERS,
        (timers.Line, "due", _given(2, lambda until: until - 1)),
    ),
    part(
        "timer-again",
        "a timer that fired is not removed",
        TIMERS,
        (timers.Line, "remove", faulty.always(None)),
    ),
    part(
        "ttl-ignored",
        "state whose time to live is over is still there",
        ("tests/unit/state/test_state_growth.py", *TIMERS, "tests/unit/operators/test_batch_process.py"),
        (Anywhere(user_state), "alive", lambda _: lambda stored, field, _now: stored.column(field.name)),
    ),
    part(
        "ttl-not-renewed",
        "state that is written again does not live anew",
        ("tests/unit/state/test_state_growth.py", *TIMERS, "tests/unit/operators/test_batch_process.py"),
        (Anywhere(user_state), "with_expiry", _given(3, lambda flags: [np.zeros_like(part) for part in flags])),
    ),
    # -- calls, dead letters, inputs in turn
    part(
        "calls-forgotten",
        "calls that the barrier interrupted are not repeated",
        CALLS,
        (map_async_operator.CallOperator, "unfinished", faulty.always([])),
    ),
    part(
        "calls-overtake",
        "results of ordered calls leave as they come",
        CALLS,
        (map_async_operator.CallOperator, "_leaving", faulty.leaving_unordered),
    ),
    part("letters-lost", "dead letters are not written", LETTERS, (deadletters.Letters, "take", faulty.always([]))),
    part(
        "letters-doubled",
        "dead letters are written twice",
        LETTERS,
        (deadletters.Letters, "take", _returned(lambda sides: [*sides, *sides])),
    ),
    part(
        "no-hold-back",
        "an input that is to wait for others does not",
        ("tests/unit/operators/test_connect.py",),
        (gate.Gate, "__init__", faulty.unranked),
    ),
    part(
        "broadcast-cut",
        "the barrier cuts broadcast rows differently in each subtask",
        ("tests/unit/operators/test_connect.py", "tests/unit/operators/test_broadcast_maps.py"),
        (gate.Channel, "obliged", lambda _: lambda self: False),
    ),
    # -- state
    part("deleted-lives", "deleted state is found again", STATE, (runs, "_alive", lambda _: lambda hit: hit)),
    part(
        "older-rows-stay",
        "rows of state that were replaced stay when files are merged",
        STATE,
        (Anywhere(runs), "superseded", lambda _: lambda orders, keys, rows: np.zeros(len(orders), np.bool_)),
    ),
    part(
        "expired-stays",
        "state that has expired is never dropped from files",
        ("tests/unit/state/test_state_growth.py", *STATE),
        (keyed.KeyedState, "_without_expired", lambda _: lambda self, run, drop_deleted: run),
    ),
    part(
        "expired-comes-back",
        "state that has expired is dropped from a file though an older one knows the key",
        STATE,
        (
            keyed.KeyedState,
            "_without_expired",
            lambda original: lambda self, run, **_: original(self, run, drop_deleted=True),
        ),
    ),
    part(
        "never-merged",
        "files of state are never merged",
        ("tests/unit/state/test_state_tiers.py", "tests/unit/state/test_state_growth.py"),
        (Anywhere(tiers), "tiers_to_merge", faulty.always(0)),
    ),
    # -- tables
    part(
        "own-commit-expired",
        "the snapshot that proves a query's commits is expired",
        UPKEEP,
        (
            Anywhere(upkeep_decisions),
            "first_kept",
            lambda original: lambda *args, **rest: original(*args, **{**rest, "users": ()}),
        ),
    ),
    part(
        "pins-expired",
        "files that tags and branches need are removed",
        ("tests/sinks/test_upkeep_removals.py",),
        (expire.ProtectedFiles, "spare", lambda _: lambda self, doomed: doomed),
    ),
    part(
        "pending-is-orphan",
        "files that wait for their commit are removed as orphans",
        ("tests/sinks/test_upkeep_removals.py",),
        (Anywhere(orphans), "find_orphans", _given(1, lambda _: lambda: ())),
    ),
    part(
        "removed-files-back",
        "merged manifests list files again that were removed",
        ("tests/sinks/test_upkeep_rewrites.py",),
        (merge, "cancel", lambda _: lambda entries: [entry for entry in entries if entry.kind == 0]),
    ),
    part(
        "partition-done-early",
        "a partition is marked as done while rows may still come",
        ("tests/sinks/test_paimon_listeners.py",),
        (partition_done.PartitionDone, "is_due", faulty.always(True)),
    ),
    # -- files
    part("checksum-ignored", "damaged bytes are read", FILES, (arrowfile.ArrowFile, "_verify", faulty.always(None))),
    part(
        "gap-ignored",
        "bytes between the parts of a file are outside of every checksum",
        FILES,
        (arrowfile.ArrowFile, "_check_coverage", faulty.always(None)),
    ),
    part(
        "create-overwrites",
        "a name that is taken is written again",
        ("tests/unit/store/test_store.py",),
        (local.LocalStore, "_link", faulty.overwriting),
    ),
    # -- names, and what strangers write
    part(
        "edges-share-names",
        "a second edge between two operators gets the name that another pair of operators has",
        ("tests/unit/graph/test_names.py",),
        (compiler, "edge_names", lambda _: lambda ends: [f"{producer}-to-{consumer}" for producer, consumer in ends]),
    ),
    part(
        "names-lead-out",
        "a name from a file may lead out of its folder",
        HOSTILE,
        (Anywhere(paths), "is_path", faulty.always(True)),
    ),
    part(
        "manifest-believed",
        "a manifest's numbers and names are believed",
        HOSTILE,
        (Anywhere(trust), "why_not", faulty.always(None)),
    ),
    part(
        "arrow-believed",
        "offsets and sizes in a file are believed",
        ("tests/unit/store/test_arrow_forged.py",),
        (Anywhere(arrowcheck), "fault_in_message", faulty.always(None)),
        (Anywhere(arrowcheck), "check_of", faulty.always(None)),
    ),
    # -- time, and tables that others change
    part(
        "clock-believed",
        "processing time follows the wall clock wherever it jumps",
        ("tests/unit/protocol/test_processing_time.py",),
        (
            Anywhere(processingtime),
            "advanced",
            lambda original: lambda last, wall, clock_s: dataclasses.replace(original(last, wall, clock_s), now=wall),
        ),
    ),
    part(
        "expired-is-uncommitted",
        "a commit whose snapshot another engine expired counts as never made",
        ("tests/unit/protocol/test_commit_floor.py",),
        (
            Anywhere(commit),
            "reconcile",
            lambda original: (
                lambda sink, table, **rest: original(
                    sink, dataclasses.replace(table, gone=None), **{**rest, "restored": False}
                )
            ),
        ),
    ),
    part(
        "publish-once",
        "a passing failure of the storage ends the query",
        ("tests/unit/engine/test_engine_outage.py",),
        (Anywhere(outage), "is_over", faulty.always(True)),
    ),
)
