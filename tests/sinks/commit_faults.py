"""Seeded faults against the commit coordinator: ``python -m tests.sinks.commit_faults --seeds 5000 --paimon 300``.

Each seed is a world of drivers (see `penstock.testing.sinks.world`): crashes before, between and after every step, lost
answers, an old driver paused anywhere and resumed later, two drivers racing. In every second world other engines commit
to the tables, expire, compact and tag them, and roll them back. Every third world on real tables has one with a primary
key, whose runs upkeep merges at any time.

Afterwards each published row is in its table once, rows are in the order in which they were published, no file is
listed twice, and no file of a losing attempt is left; or a restart was refused with reason, and nothing is doubled.
``--seed N`` replays one and prints what happened.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from penstock.sinks.base import Sink
from penstock.sinks.paimon import local as paimon_local
from penstock.sinks.paimon.read import listed_files, read_table
from penstock.sinks.paimon.sink import Paimon
from penstock.sinks.paimon.upkeep.keeper import PaimonKeeper
from penstock.sinks.upkeep import Upkeep
from penstock.testing.sinks.world import SCHEMA, World, plain_rows
from penstock.testing.tables import Memory, memory_table
from tests.support.other_engines import FOREIGN_ID, MemoryOthers, PaimonOthers

ACTIONS = 40


def run_memory(seed: int) -> World:
    """One world on tables in memory."""
    sinks = {name: Memory(f"faults-{name}") for name in ("a", "bb")}
    world = World(seed, dict(sinks))
    for sink in sinks.values():
        sink.check(SCHEMA)
        table = memory_table(sink.name)
        table.clear()
        table.on_commit = lambda _: world.point("inside commit")
    if seed % 2:
        world.others = {name: MemoryOthers(memory_table(sink.name), world.lose) for name, sink in sinks.items()}
    with told(world):
        world.run(ACTIONS)
        check_refusal(world)
        world.check(_ids_in_memory)
    return world


COLLECTED = pa.schema([("slot", pa.int64()), ("id", pa.list_(pa.int64()))])
SLOTS = 3


def collected_rows(ids: Sequence[int]) -> pa.RecordBatch:
    """Rows whose ids a table with a primary key collects, in their order: one that is lost, doubled or in the wrong
    place is seen, however runs were merged. Rows of others have a key of their own: two queries that write one key
    have no common order, and a merge of rows of both can change the order within one."""
    slots = [FOREIGN_ID if i == FOREIGN_ID else i % SLOTS for i in ids]
    return pa.record_batch([slots, [[i] for i in ids]], schema=COLLECTED)


_COLLECTS = {"fields.id.aggregate-function": "collect", "num-sorted-run.compaction-trigger": "2"}


def run_paimon(seed: int, folder: Path) -> World:
    """One world on real tables, with faults inside pypaimon's publish, too; every third with a primary key."""
    keyed = seed % 3 == 0
    sinks = {name: Paimon(str(folder), f"shop.{name}") for name in ("a", "bb")}
    if keyed:
        sinks["bb"] = Paimon(
            str(folder), "shop.bb", primary_key=["slot"], buckets=1, merge_engine="aggregation", options=_COLLECTS
        )
    rows = collected_rows if keyed else plain_rows
    for sink in sinks.values():
        sink.check(rows([]).schema)
    world = World(seed, dict(sinks), rows=rows)
    if seed % 2:
        world.others = {name: PaimonOthers(sink, world.lose, rows) for name, sink in sinks.items()}
    with told(world):
        with _faulty_publish(world):
            world.run(ACTIONS)
        check_refusal(world)
        world.check(_ids_in_paimon)
        for sink in sinks.values():
            _check_files(world, sink)
        if keyed and not world.rolled_back:
            _check_order(sinks["bb"])
    return world


def _check_order(sink: Paimon) -> None:
    """Ids of a slot in the order in which they were published, before and after all runs are merged."""
    keeper = PaimonKeeper(sink.warehouse, sink.table, Upkeep(expire=False))
    for _ in range(2):
        for row in read_table(sink.warehouse, sink.table).to_pylist():
            own = [number for number in row["id"] if number != FOREIGN_ID]
            assert own == sorted(own), f"slot {row['slot']} has rows in the wrong order: {own}"
        while (report := keeper.step()).more:
            pass
        assert not report.failures, report.failures


def check_refusal(world: World) -> None:
    """A restart is refused only if other engines took something away while something was waiting."""
    if world.refused is None or world.rolled_back:
        return
    newest = world.checkpoints.newest()
    assert newest is not None
    assert any(state.pending for state in newest.sinks.values()), f"nothing waits, yet: {world.refused}"
    assert any(" expire " in event or "upkeep" in event for event in world.events), f"nothing expired: {world.refused}"


@contextmanager
def _faulty_publish(world: World) -> Iterator[None]:
    """Faults around the one step that makes a snapshot visible: where a zombie could do most harm."""
    real = paimon_local.link

    def link(hidden: Path, path: Path) -> bool:
        world.point("before the snapshot is visible")
        published = real(hidden, path)
        if published:
            world.visible(path.parts[-3])
        world.point("after the snapshot is visible")
        return published

    paimon_local.link = link
    try:
        yield
    finally:
        paimon_local.link = real


def _check_files(world: World, sink: Paimon) -> None:
    listed = listed_files(sink.warehouse, sink.table)
    assert len(listed) == len(set(listed)), "a file is listed twice"
    folder = Path(sink.warehouse, "shop.db", sink.table.partition(".")[2])
    there = {path.name for path in folder.rglob("*.parquet")}
    assert set(listed) <= there, "a listed file is missing"
    if world.refused is not None:
        return
    left = [file for file in there - set(listed) if world.must_be_gone(file)]
    assert left == [], f"files of attempts that lost are left: {left}"
    lists = world.checkpoints.store.list("attempts")
    assert lists == [], f"announcements are left: {lists}"


def _ids_in_memory(sink: Sink) -> Counter[int]:
    assert isinstance(sink, Memory)
    return Counter(memory_table(sink.name).rows()["id"].to_pylist())


def _ids_in_paimon(sink: Sink) -> Counter[int]:
    assert isinstance(sink, Paimon)
    ids = read_table(sink.warehouse, sink.table)["id"]
    flat = pc.list_flatten(ids) if pa.types.is_list(ids.type) else ids
    return Counter(number for number in flat.to_pylist() if number != FOREIGN_ID)


@contextmanager
def told(world: World, program: str = "tests.sinks.commit_faults") -> Iterator[None]:
    """Says what led to a failure."""
    try:
        yield
    except BaseException:
        print(f"\nseed {world.seed}:\n  " + "\n  ".join(world.events[-60:]), file=sys.stderr)
        print(f"replay: python -m {program} --seed {world.seed}", file=sys.stderr)
        raise


def faults_of(world: World) -> list[str]:
    kinds = (event.partition(" at ")[0] for event in world.events)
    faults = [f"{kind}s" if kind != "crash" else "crashes" for kind in kinds if kind in {"failure", "crash", "pause"}]
    faults += ["acts of other engines" for event in world.events if ": others " in event or "upkeep keeps" in event]
    faults += ["worlds with commits rolled back"] * world.rolled_back
    return faults + (["worlds that end with a refusal"] if world.refused is not None else [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5000, help="worlds on tables in memory")
    parser.add_argument("--paimon", type=int, default=300, help="worlds on Paimon tables")
    parser.add_argument("--first", type=int, default=random.randrange(10**9), help="first seed; default: a random one")
    parser.add_argument("--seed", type=int, help="this one only, on both kinds of tables, with its events")
    options = parser.parse_args()
    for chatty in ("pypaimon", "penstock"):  # they tell of every fault that we make
        logging.getLogger(chatty).setLevel(logging.CRITICAL)
    if options.seed is not None:
        print("\n".join(run_memory(options.seed).events))
        with tempfile.TemporaryDirectory() as folder:
            print("\n".join(run_paimon(options.seed, Path(folder)).events))
        return
    start = time.monotonic()
    seen: Counter[str] = Counter()
    for number in range(options.first, options.first + options.seeds):
        seen.update(faults_of(run_memory(number)))
    for number in range(options.first, options.first + options.paimon):
        with tempfile.TemporaryDirectory() as folder:
            seen.update(faults_of(run_paimon(number, Path(folder))))
    print(
        f"{options.seeds} worlds in memory and {options.paimon} on Paimon tables from seed {options.first}: 0 rows "
        f"doubled, 0 lost, in {time.monotonic() - start:.0f} s ({', '.join(f'{n} {w}' for w, n in seen.items())})"
    )


if __name__ == "__main__":
    main()
