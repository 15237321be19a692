"""Seeded faults against commits to Delta and Iceberg tables: ``python -m tests.sinks.lake_faults --seeds 300``.

The worlds are those of `commit_faults`, on real tables in memory-backed folders where there are any. Faults strike
right before and after an entry of the log becomes visible, too. ``--seed N`` replays one and prints what happened.
"""

from __future__ import annotations

import argparse
import logging
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from penstock.sinks.base import Sink
from penstock.sinks.delta.commit import DeltaCommitter
from penstock.sinks.delta.sink import Delta
from penstock.sinks.iceberg.catalog import open_table
from penstock.sinks.iceberg.commit import IcebergCommitter
from penstock.sinks.iceberg.keeper import IcebergKeeper
from penstock.sinks.iceberg.sink import Iceberg
from penstock.sinks.lake.commit import LakeCommitter, TableChange
from penstock.sinks.upkeep import Upkeep
from penstock.testing.sinks.world import SCHEMA, World
from tests.sinks.commit_faults import ACTIONS, check_refusal, faults_of, told
from tests.support.other_engines import FOREIGN_ID


class DeltaOthers:
    """Other writers of a Delta table: they append, compact, write checkpoints of the log, restore older versions."""

    def __init__(self, uri: str, lost: Callable[[], None]) -> None:
        self._uri, self._lost = uri, lost

    def act(self, choose: random.Random) -> str | None:
        what = choose.choices(("commit", "compact", "checkpoint", "restore"), (50, 25, 20, 5))[0]
        table = DeltaTable(self._uri)
        match what:
            case "commit":
                write_deltalake(table, pa.table({"id": [FOREIGN_ID]}, schema=SCHEMA), mode="append")
                return f"others commit version {DeltaTable(self._uri).version()}"
            case "compact":
                table.optimize.compact()
                return "others compact"
            case "checkpoint":
                table.create_checkpoint()
                return "others write a checkpoint of the log"
        if table.version() == 0:
            return None
        version = choose.randint(max(0, table.version() - 3), table.version() - 1)
        entries = table.history(table.version() - version)
        if any(entry.get("penstock.rows", "0") != "0" for entry in entries):
            self._lost()
        table.restore(version)
        return f"others restore version {version}"


def run_delta(seed: int, folder: Path) -> World:
    """One world on real tables; every third has a primary key."""
    sinks = {name: Delta(str(folder / name), primary_key=[] if seed % 3 else ["id"]) for name in ("a", "bb")}
    for sink in sinks.values():
        sink.check(SCHEMA)
    world = World(seed, dict(sinks), probe=True)
    if seed % 2:
        world.others = {name: DeltaOthers(sink.uri, world.lose) for name, sink in sinks.items()}
    with told(world, "tests.sinks.lake_faults"), _faulty(world, DeltaCommitter, lambda one: Path(one._root).name):
        world.run(ACTIONS)
        check_refusal(world)
        world.check(_ids_in_delta)
        for sink in sinks.values():
            _check_files(world, sink)
    return world


class IcebergOthers:
    """Other writers of an Iceberg table: they append, expire snapshots, and roll back."""

    def __init__(self, sink: Iceberg, lost: Callable[[], None]) -> None:
        self._sink, self._lost = sink, lost

    def act(self, choose: random.Random) -> str | None:
        what = choose.choices(("commit", "expire", "roll back"), (50, 45, 5))[0]
        table = open_table(self._sink.catalog, self._sink.table)
        current = table.current_snapshot()
        if what == "commit" or current is None:
            table.append(pa.table({"id": [FOREIGN_ID]}, schema=SCHEMA))
            return "others commit a snapshot"
        if what == "expire":
            policy = Upkeep(snapshots=choose.randint(1, 3), snapshots_for=0.0, small_files=choose.choice([None, 2]))
            report = IcebergKeeper(self._sink, policy).step()
            return f"others expire {report.snapshots_expired} snapshots"
        parent = current.parent_snapshot_id
        if parent is None or table.snapshot_by_id(parent) is None:
            return None
        if current.summary is not None and current.summary.additional_properties.get("penstock.rows", "0") != "0":
            self._lost()
        table.manage_snapshots().rollback_to_snapshot(parent).commit()
        return "others roll back to the snapshot before"


def run_iceberg(seed: int, folder: Path) -> World:
    """One world on real tables of a catalog in SQLite; every third has a primary key."""
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
    sinks = {name: Iceberg(catalog, f"shop.{name}", primary_key=[] if seed % 3 else ["id"]) for name in ("a", "bb")}
    for sink in sinks.values():
        sink.check(SCHEMA)
    world = World(seed, dict(sinks), probe=True)
    if seed % 2:
        world.others = {name: IcebergOthers(sink, world.lose) for name, sink in sinks.items()}
    with (
        told(world, "tests.sinks.lake_faults"),
        _faulty(world, IcebergCommitter, lambda one: one._name[5:]),
    ):
        world.run(ACTIONS)
        check_refusal(world)
        world.check(_ids_in_iceberg)
    return world


@contextmanager
def _faulty(world: World, committer: type[LakeCommitter[Any]], name_of: Callable[[Any], str]) -> Iterator[None]:
    """Faults around the one step that makes a commit visible: where a zombie could do most harm."""
    real = committer._publish

    def publish(self: Any, change: TableChange[Any], facts: Any, checkpoint: Any) -> None:
        world.point("before the commit is visible")
        real(self, change, facts, checkpoint)
        if checkpoint is not None:
            world.visible(name_of(self))
        world.point("after the commit is visible")

    committer._publish = publish  # type: ignore[method-assign]
    try:
        yield
    finally:
        committer._publish = real  # type: ignore[method-assign]


def _ids_in_iceberg(sink: Sink) -> Counter[int]:
    assert isinstance(sink, Iceberg)
    ids = open_table(sink.catalog, sink.table).scan().to_arrow()["id"].to_pylist()
    return Counter(number for number in ids if number != FOREIGN_ID)


def _check_files(world: World, sink: Delta) -> None:
    listed = DeltaTable(sink.uri).get_add_actions()["path"].to_pylist()
    assert len(listed) == len(set(listed)), "a file is listed twice"
    there = {path.name for path in Path(sink.uri).glob("*.parquet")}
    assert set(listed) <= there, "a listed file is missing"
    if world.refused is None and not world.rolled_back:
        left = [file for file in there - set(listed) if world.must_be_gone(file)]
        assert left == [], f"files of attempts that lost are left: {left}"


def _ids_in_delta(sink: Sink) -> Counter[int]:
    assert isinstance(sink, Delta)
    ids = DeltaTable(sink.uri).to_pyarrow_table()["id"].to_pylist()
    return Counter(number for number in ids if number != FOREIGN_ID)


RUNS: dict[str, Callable[[int, Path], World]] = {"delta": run_delta, "iceberg": run_iceberg}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=300, help="worlds on real tables")
    parser.add_argument("--first", type=int, default=random.randrange(10**9), help="first seed; default: a random one")
    parser.add_argument("--seed", type=int, help="this one only, with its events")
    parser.add_argument("--kinds", default="delta,iceberg", help="which formats")
    options = parser.parse_args()
    logging.getLogger("penstock").setLevel(logging.CRITICAL)
    memory = Path("/dev/shm")
    seeds = range(options.first, options.first + options.seeds) if options.seed is None else [options.seed]
    for kind in options.kinds.split(","):
        start, seen = time.monotonic(), Counter[str]()
        for number in seeds:
            with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
                world = RUNS[kind](number, Path(folder))
            seen.update(faults_of(world))
            if options.seed is not None:
                print("\n".join(world.events))
        print(
            f"{len(seeds)} worlds on {kind} tables from seed {seeds[0]}: 0 rows doubled, 0 lost, "
            f"in {time.monotonic() - start:.0f} s ({', '.join(f'{n} {w}' for w, n in seen.items())})",
            flush=True,
        )


if __name__ == "__main__":
    main()
