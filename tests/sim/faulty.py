"""Replacements for functions of ours, each with one fault; `mutants.py` says what they stand for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
import pyarrow as pa

from penstock.engine import checkpoints, collect, commits, epochs, loop, watch
from penstock.inflight import gate, live, scan
from penstock.protocol import epoch as protocol_epoch
from penstock.protocol import processingtime
from penstock.protocol.attempts import Verdict
from penstock.protocol.ids import Generation
from penstock.protocol.keygroups import KeyGroupRange
from penstock.protocol.manifest import Span
from penstock.protocol.recover import SkipBatch, TakeBatch
from penstock.store.base import AlreadyExists
from penstock.testing.simulate import cluster

Make = Callable[[Any], Any]
"""Makes the replacement from the original."""


def always(value: Any) -> Make:
    return lambda _: lambda *args, **kwargs: value


def cursor_off(by: int) -> Make:
    return lambda original: lambda self, rows: max(0, original(self, rows) + by)


def unfiltered(original: Any) -> Any:
    def load_next(self: scan.SpanScan) -> Any:
        assert self._file is not None
        number, first, in_range = self._todo[-1]
        batch = self._file.read_batch(number)
        if in_range == batch.num_rows:
            return original(self)
        self._todo.pop()
        skip = max(0, self._span.cursor - first)
        # As many rows as the index promises, but not chosen by key group.
        return scan.Chunk(batch.slice(skip, in_range), first + skip, None)

    return load_next


def live_first(_: Any) -> Any:
    def peek(self: gate.Channel) -> Any:
        if self._live is not None and (rows := self._live.peek()) is not None:
            self._in_segments = False
            return rows
        self._in_segments = True
        batch = self._segments.peek()
        if self.watermarks is not None:
            self.watermarks.passed(self._segments.spans_done)
        return batch

    return peek


def keep_failed_committables(original: Any) -> Any:
    stale: list[Any] = []

    def remove_files(self: epochs.EpochRunner, reports: Any) -> None:
        stale.append(epochs._committables(reports))
        original(self, reports)

    remove_files.stale = stale  # type: ignore[attr-defined]
    return remove_files


def add_failed_committables(original: Any) -> Any:
    def next_manifest(self: epochs.EpochRunner, draft: Any, *rest: Any) -> Any:
        stale = epochs.EpochRunner._remove_files.stale  # type: ignore[attr-defined]
        found = dict(draft.committables)
        while stale:
            for sink, more in stale.pop().items():
                found[sink] = (*more, *found.get(sink, ()))
        return original(self, replace(draft, committables=found), *rest)

    return next_manifest


def told_before_publish(original: Any) -> Any:
    def epoch(self: loop.EpochLoop, batch: Any) -> None:
        coordinator, store = self._coordinator, self._runner.checkpoints
        publish, tell = store.publish, coordinator.published

        def early(manifest: Any) -> int:
            tell(manifest, frozenset())
            for _ in range(5):
                store.store.exists("manifests/later")
            return publish(manifest)

        with patch.object(store, "publish", early), patch.object(coordinator, "published", lambda *_: None):
            original(self, batch)

    return epoch


def files_removed_when_publish_fails(original: Any) -> Any:
    def publish(self: checkpoints.Checkpoints, manifest: Any) -> int:
        try:
            return original(self, manifest)
        except Exception:
            mine = f"/{manifest.checkpoint:010d}-"
            self.store.delete(sorted(path for path in manifest.files() if mine in path))
            raise

    return publish


def published_over_others(original: Any) -> Any:
    def publish(self: checkpoints.Checkpoints, manifest: Any) -> int:
        try:
            return original(self, manifest)
        except checkpoints.Fenced:
            return 1

    return publish


class _Unclosed:
    def __init__(self, file: Any) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def close(self) -> None:
        """Forgotten."""


def not_closed(original: Any) -> Any:
    def close(self: Any) -> Any:
        with patch.object(self, "_file", _Unclosed(self._file)):
            return original(self)

    return close


def reversed_rows(original: Any) -> Any:
    return lambda self, run: original(self, run.take(pa.array(np.arange(run.num_rows)[::-1])))


def newest_first(original: Any) -> Any:
    def advance_state(files: Any, changes: Any) -> Any:
        after = original(files, changes)
        added = sum(change.added is not None for change in changes)
        return (*after[len(after) - added :], *after[: len(after) - added])

    return advance_state


def stale_answer(original: Any) -> Any:
    def ask(self: commits.SinkCommits) -> None:
        before = self._standing
        original(self)
        self._standing = replace(self._standing, sink=before.sink)

    return ask


def no_pending(original: Any) -> Any:
    def states(self: commits.CommitCoordinator) -> Any:
        return {name: msgspec.structs.replace(state, pending=()) for name, state in original(self).items()}

    return states


def all_acknowledged(original: Any) -> Any:
    return lambda *args: msgspec.structs.replace(original(*args), pending=())


def done_at_once(original: Any) -> Any:
    def propose(self: loop.EpochLoop, batch: Any) -> Any:
        original(self, batch)
        return loop.Offer(batch, done=True)

    return propose


def replay_taken(original: Any) -> Any:
    def judge(*args: Any) -> Any:
        verdict = original(*args)
        return TakeBatch() if isinstance(verdict, SkipBatch) else verdict

    return judge


def generation_shared(_: Any) -> Any:
    def claim(self: checkpoints.Checkpoints, driver: Any, above: int = 0) -> Generation:
        claimed = map(checkpoints.read_generation_path, self._paths(checkpoints.GENERATIONS))
        generation = Generation(max((above, *filter(None, claimed))) + 1)
        try:
            self.store.create(checkpoints.generation_path(generation), b"{}")
        except AlreadyExists:
            pass
        return generation

    return claim


def one_less(original: Any) -> Any:
    return lambda ids, retain, *held: original(ids, retain - 1, *held) if retain > 1 else tuple(sorted(ids))


def floor_range(_: Any) -> Any:
    def range_of(subtask: int, parallelism: int, max_parallelism: int) -> KeyGroupRange:
        return KeyGroupRange(subtask * max_parallelism // parallelism, (subtask + 1) * max_parallelism // parallelism)

    return range_of


def joined_anyhow(_: Any) -> Any:
    def joined(spans: Any) -> tuple[Span, ...]:
        spans = sorted(spans, key=lambda span: span.ranges)
        if len(spans) < 2:
            return tuple(spans)
        ranges = tuple(part for span in spans for part in span.ranges)
        return (Span(ranges=ranges, cursor=min(s.cursor for s in spans), rows_left=sum(s.rows_left for s in spans)),)

    return joined


def twice(original: Any) -> Any:
    def take(self: Any, records: Any) -> None:
        original(self, records)
        original(self, records)

    return take


def names_freed(original: Any) -> Any:
    def retire(self: collect.Collector, checkpoint: Any) -> None:
        self._fences.clear()
        original(self, checkpoint)

    return retire


def unread_forgotten(original: Any) -> Any:
    def learn(self: collect.Collector) -> None:
        original(self)
        self._unread.clear()

    return learn


def losers_forgotten(original: Any) -> Any:
    def judge(*args: Any, **rest: Any) -> Verdict:
        verdict = original(*args, **rest)
        return Verdict(forget=(*verdict.forget, *verdict.lost), lost=())

    return judge


def unwoken(original: Any) -> Any:
    def published(self: commits.SinkCommits, *args: Any) -> None:
        with patch.object(self._background, "wake", lambda: None):
            original(self, *args)

    return published


def fastest_input(original: Any) -> Any:
    def watermarks(self: gate.Gate, groups: KeyGroupRange) -> Any:
        timed = [channel.watermarks.now for channel in self.channels if channel.watermarks is not None]
        return np.maximum.reduce(timed) if timed else original(self, groups)

    return watermarks


def no_rewind(original: Any) -> Any:
    def takeover(*args: Any, **rest: Any) -> Any:
        manifest = original(*args, **rest)
        return msgspec.structs.replace(manifest, source=msgspec.structs.replace(manifest.source, rewind=False))

    return takeover


def no_drain(original: Any) -> Any:
    def decide(facts: Any) -> protocol_epoch.Next:
        action = original(facts)
        return protocol_epoch.Wait("tired") if isinstance(action, protocol_epoch.Drain) else action

    return decide


def overlooking(read: Any) -> Any:
    """Every third batch of a stream with several edges."""
    calls = count()

    def skipping(self: Any) -> Any:
        if len(self._inputs) > 1 and next(calls) % 3 == 2:
            next(self._batches, None)
        return read(self)

    return skipping


def forgetting_that_it_was_left(original: Any) -> Any:
    def leave_behind(self: live.LiveRows) -> None:
        original(self)
        self.left_behind = False

    return leave_behind


def first_epoch_without_barrier(original: Any) -> Any:
    def plan(self: epochs.EpochRunner, *args: Any, **rest: Any) -> Any:
        made = original(self, *args, **rest)
        return made if self.pace.row_cost_s else msgspec.structs.replace(made, budget_s=None)

    return plan


def unranked(original: Any) -> Any:
    return lambda self, channels, _ranks=(): original(self, channels)


def leaving_unordered(original: Any) -> Any:
    def leaving(self: Any) -> Any:
        ordered, self._ordered = self._ordered, False
        try:
            return original(self)
        finally:
            self._ordered = ordered

    return leaving


def overwriting(_: Any) -> Any:
    return lambda self, temp, path: (self.root / path).write_bytes((self.root / temp).read_bytes())


def heard_by_the_next(original: Any) -> Any:
    def ended(self: cluster.SimCluster, running: Any, subtask: int, process: Any, report: Any) -> None:
        now = self._running
        if report is not None and now is not None and now is not running and now.job.stage is running.job.stage:
            now.reports.setdefault(subtask, report)
            self._world.scheduler.wake(now.waiter)
        original(self, running, subtask, process, report)

    return ended


def impatient(original: Any) -> Any:
    def look(self: watch.Watch) -> None:
        job = self._runner.jobs.running
        limit_s = self._job_s or 0.0
        if job is not None and self._verdict is None and self._runner.clock() - job.started_s > limit_s:
            self._give_up(job, watch._silent(job, limit_s, ""))
        original(self)

    return look


def standing_still(original: Any) -> Any:
    def advanced(last: Any, wall: int, clock_s: float) -> Any:
        return replace(original(last, wall, clock_s), now=max(last.now, min(wall, original(last, wall, clock_s).now)))

    return advanced


def never_believing(original: Any) -> Any:
    def advanced(last: Any, wall: int, clock_s: float) -> Any:
        with patch.object(processingtime, "CONFIRMED_S", float("inf")):
            return original(last, wall, clock_s)

    return advanced


def nothing_refused(original: Any) -> Any:
    def evolve(*arguments: Any) -> Any:
        decided = original(*arguments)
        return replace(decided, lines=tuple(line for line in decided.lines if not line.refused))

    return evolve
