"""Small deliberate faults in our own code: each must be noticed, by the simulator's checkers or by a part's own tests.

A mutant replaces one function or method while it is applied. `python -m tests.sim.hunting` runs seeds with each until
a checker fails, or the tests that it names until one fails, and prints which seed or test noticed which mutant.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from penstock.engine import (
    attempts,
    checkpoints,
    collect,
    commits,
    drivertime,
    epochs,
    inputs,
    loop,
    pins,
    start,
    watch,
)
from penstock.inflight import gate, live, scan, segment, watermarks
from penstock.operators.process import connect_operator
from penstock.protocol import advance, commit, plan, takeover
from penstock.protocol.eventtime import highest
from penstock.protocol.manifest import Segment
from penstock.store import arrowfile
from penstock.subtask import attempt as task
from penstock.testing.simulate import cluster
from tests.sim import faulty
from tests.sim.mutant import Mutant
from tests.sim.mutants_of_pace import MUTANTS_OF_PACE
from tests.sim.mutants_of_parts import MUTANTS_OF_PARTS


def mutant(name: str, what: str, *patches: tuple[Any, str, faulty.Make]) -> Mutant:
    return Mutant(name, what, patches)


MUTANTS = (
    # -- records in flight
    mutant("cursor-ahead", "a cursor is one row too far", (scan.Chunk, "cursor_after", faulty.cursor_off(1))),
    mutant("cursor-behind", "a cursor is one row short", (scan.Chunk, "cursor_after", faulty.cursor_off(-1))),
    mutant("no-filter", "readers of one segment do not filter it", (scan.SpanScan, "_load_next", faulty.unfiltered)),
    mutant("live-first", "live rows are read before those in segments", (gate.Channel, "peek", faulty.live_first)),
    mutant(
        "quick-lane-first",
        "a consumer does not wait for rows upstream that arrived earlier",
        (inputs, "held_after", faulty.always(None)),
    ),
    mutant(
        "arrival-forgotten",
        "what a stage emits arrives when it is emitted",
        (Segment, "arrived", lambda _: lambda self: self.epoch),
    ),
    mutant(
        "newest-segment-first",
        "segments are read newest first",
        (Segment, "age", lambda age: lambda self: tuple(-part for part in age(self))),
    ),
    mutant("spans-joined", "spans are joined though their cursors differ", (advance, "_joined", faulty.joined_anyhow)),
    mutant("no-spill", "live rows behind the barrier are not written", (live.LiveRows, "_write", faulty.always(None))),
    mutant(
        "left-behind-overtaken",
        "live rows are taken though older ones of their input were put away in this epoch",
        (live.LiveRows, "leave_behind", faulty.forgetting_that_it_was_left),
    ),
    mutant(
        "overlooked-batch",
        "a reader overlooks a batch of the stream and does not count it",
        (live.LiveInputs, "_read", lambda read: lambda self: (next(self._batches, None), read(self))[1]),
    ),
    mutant(
        "stream-not-drained",
        "an epoch ends before its stream does",
        (live.LiveInputs, "drain", lambda _: lambda self: setattr(self, "ended", True)),
    ),
    mutant(
        "overlooked-uncounted",
        "a reader overlooks a batch of a mixed stream, and nobody compares what was delivered",
        (live.LiveInputs, "_read", faulty.overlooking),
        (advance, "misdelivered", faulty.always(())),
        (advance, "miscounted", faulty.always(())),
    ),
    mutant("floor-range", "subtasks' boundaries are rounded the other way", (plan, "range_of", faulty.floor_range)),
    mutant(
        "other-hash",
        "the exchange hashes keys differently",
        (task, "hash_columns", lambda hashes: lambda columns: hashes(columns) + 1),
    ),
    mutant("reordered", "the exchange reorders a key", (segment.ExchangeWriter, "_sort", faulty.reversed_rows)),
    # -- state
    mutant(
        "others-state-dropped",
        "a superseded state file is dropped for all subtasks",
        (advance, "_without", lambda _: lambda file, groups: msgspec.structs.replace(file, ranges=())),
    ),
    mutant(
        "older-state-wins", "a new state file counts as the oldest", (advance, "advance_state", faulty.newest_first)
    ),
    # -- event time and broadcast
    mutant(
        "fastest-subtask",
        "a stage's watermark is that of its fastest subtask",
        (advance, "lowest", lambda _: highest),
    ),
    mutant(
        "fastest-input",
        "an operator's watermark is that of its fastest input",
        (gate.Gate, "watermarks", faulty.fastest_input),
    ),
    mutant(
        "watermark-overtakes",
        "a watermark does not wait for records in flight",
        (
            watermarks.ChannelWatermarks,
            "__init__",
            lambda make: lambda self, groups, reads, edge, **rest: make(self, groups, (), edge, **rest),
        ),
        (watermarks.ChannelWatermarks, "passed", faulty.always(None)),
    ),
    mutant(
        "broadcast-twice",
        "broadcast rows are applied twice",
        (connect_operator.ConnectOperator, "_take_broadcast", faulty.twice),
    ),
    # -- publish and fence
    mutant(
        "not-durable", "files count before they are durable", (arrowfile.ArrowFileWriter, "close", faulty.not_closed)
    ),
    mutant(
        "stale-attempts",
        "committables of a failed epoch go along with the next checkpoint",
        (epochs.EpochRunner, "_remove_files", faulty.keep_failed_committables),
        (epochs.EpochRunner, "_next_manifest", faulty.add_failed_committables),
    ),
    mutant(
        "unknown-publish-undone",
        "files are removed when a publish failed, though it may have happened",
        (checkpoints.Checkpoints, "publish", faulty.files_removed_when_publish_fails),
    ),
    mutant(
        "publish-over-others",
        "a taken checkpoint id is held to be one's own",
        (checkpoints.Checkpoints, "publish", faulty.published_over_others),
    ),
    mutant(
        "takeover-name-freed",
        "the manifest of a takeover is deleted, so its name is free again",
        (collect.Collector, "_retire", faulty.names_freed),
    ),
    mutant(
        "generation-unchecked",
        "nobody asks whether a newer driver exists",
        (checkpoints.Checkpoints, "superseded", faulty.always(False)),
    ),
    mutant(
        "generation-shared",
        "a claimed generation is claimed again",
        (checkpoints.Checkpoints, "claim_generation", faulty.generation_shared),
    ),
    mutant(
        "oldest-restored",
        "a restart goes on from the oldest checkpoint",
        (checkpoints.Checkpoints, "ids", lambda ids: lambda self: ids(self)[::-1]),
    ),
    mutant(
        "overtaken-start",
        "a driver that was overtaken while it started takes over all the same",
        (takeover, "outranks", faulty.always(False)),
    ),
    # -- commits
    mutant(
        "commit-first",
        "a checkpoint is committed before it exists",
        (loop.EpochLoop, "_epoch", faulty.told_before_publish),
    ),
    mutant(
        "ack-all",
        "a commit acknowledges also what was published after it",
        (commit, "acknowledged", faulty.all_acknowledged),
    ),
    mutant(
        "stale-answer",
        "after an unknown outcome, what was published meanwhile is forgotten",
        (commits.SinkCommits, "_ask", faulty.stale_answer),
    ),
    mutant(
        "pending-forgotten",
        "a manifest does not carry what older ones left to commit",
        (commits.CommitCoordinator, "states", faulty.no_pending),
    ),
    mutant(
        "table-not-asked",
        "a start does not ask what the table holds",
        (start, "agree", lambda _: lambda name, sink, committer, **rest: commit.SinkStanding(sink)),
    ),
    # -- source
    mutant("replay-taken", "a replayed micro-batch is taken again", (loop, "judge_batch", faulty.replay_taken)),
    mutant(
        "done-early", "a micro-batch counts as ingested once offered", (loop.EpochLoop, "propose", faulty.done_at_once)
    ),
    mutant(
        "zombie-rewinds",
        "a driver that was replaced rewinds the source all the same",
        (start, "_rewind", lambda _: lambda feed, _checkpoints, owned: feed.rewind(owned.manifest.source.batch_id)),
    ),
    mutant(
        "no-rewind",
        "the source is not rewound for an older checkpoint",
        (takeover, "takeover_manifest", faulty.no_rewind),
    ),
    # -- garbage
    mutant("retain-less", "a retained checkpoint is expired", (collect, "retired", faulty.one_less)),
    mutant(
        "sweep-needed",
        "the sweep does not ask what checkpoints need",
        (collect, "garbage", lambda garbage: lambda files, needed, **rest: garbage(files, frozenset(), **rest)),
    ),
    mutant(
        "sweep-running",
        "the sweep takes files of the running epoch",
        (collect, "garbage", lambda _: lambda files, needed, **rest: tuple(f for f in files if f not in needed)),
    ),
    mutant(
        "pins-ignored",
        "the collector takes files that a savepoint is being copied from",
        (pins.Pins, "files", faulty.always(frozenset())),
    ),
    mutant("no-sweep", "leftovers are never swept", (collect, "garbage", faulty.always(()))),
    mutant(
        "unread-forgotten",
        "what a manifest needs that could not be read counts as nothing",
        (collect.Collector, "_learn", faulty.unread_forgotten),
    ),
    mutant(
        "losers-kept",
        "table files of attempts that lost are not looked for",
        (attempts.AttemptFiles, "sweep", faulty.always(False)),
    ),
    mutant(
        "losers-forgotten",
        "announcements of attempts that lost are removed, their table files are not",
        (attempts, "judge_attempts", faulty.losers_forgotten),
    ),
    # -- attempts that hang
    mutant(
        "zombie-accepted",
        "the report of a hung attempt counts for the job that runs when it comes back",
        (cluster.SimCluster, "_ended", faulty.heard_by_the_next),
        (advance, "_foreign", faulty.always([])),
    ),
    mutant("watch-deaf", "a job that hangs is not given up", (watch.Watch, "_give_up", faulty.always(None))),
    mutant(
        "watch-impatient",
        "a job that takes longer than the limit is given up, though its attempts get on",
        (watch.Watch, "_look_at_job", faulty.impatient),
    ),
    mutant(
        "hang-untold",
        "a query that ends because an attempt hung says that workers were lost",
        (watch.Watch, "verdict", faulty.always(None)),
    ),
    # -- processing time
    mutant(
        "jump-trusted",
        "processing time follows the wall clock wherever it jumps",
        (drivertime, "advanced", lambda _: lambda last, wall, at: replace(last, now=max(last.now, wall), read_s=at)),
    ),
    mutant(
        "clock-stops",
        "processing time stands still while the wall clock is behind it",
        (drivertime, "advanced", faulty.standing_still),
    ),
    mutant(
        "never-believed",
        "a wall clock that stays where it jumped to is never believed",
        (drivertime, "advanced", faulty.never_believing),
    ),
    mutant(
        "gap-trusted",
        "a start believes that any time has passed since the checkpoint",
        (drivertime, "begun", lambda begun: lambda _stored, wall, at: begun(0, wall, at)),
    ),
    # -- liveness
    mutant(
        "deaf-sink",
        "a sink is not told that a checkpoint was published",
        (commits.SinkCommits, "published", faulty.unwoken),
    ),
    mutant("no-drain", "the backlog is not drained", (loop, "decide", faulty.no_drain)),
    mutant(
        "late-barrier",
        "the barrier fires ten times too late",
        (epochs.Pace, "budget", lambda budget: lambda *args, **rest: 10 * budget(*args, **rest)),
    ),
)


ALL = (*MUTANTS, *MUTANTS_OF_PARTS, *MUTANTS_OF_PACE)


def named(name: str) -> Mutant:
    return next(mutant for mutant in ALL if mutant.name == name)
