"""The cases: what happens to a topic, its broker and its job, and what the tables must hold in the end.

Each returns what to say about it, and raises where something is not as it must be.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.kafka import verdict
from tests.kafka.broker import Broker
from tests.kafka.program import Program, finish, prepare, running, waited
from tests.kafka.topic import Record, Topic
from tests.kafka.verdict import Verdict

USERS = 200
STEP_MS = 10


@dataclass(frozen=True, slots=True)
class World:
    """Where a case happens."""

    broker: Broker
    folder: Path
    rng: random.Random
    outage_s: float
    records: int

    def topic(self, partitions: int, **settings: str) -> Topic:
        return Topic(self.broker.address, self.folder.name, partitions, **settings)


def steady(world: World, records: int, first: int = 0) -> list[Record]:
    """Users at random; event time passes with the number."""
    return [Record(world.rng.randrange(USERS), n, n * STEP_MS) for n in range(first, first + records)]


def must_be_exact(folder: Path, topic: Topic) -> Verdict:
    found = verdict.judged(folder, topic.log())
    assert found.exact, str(found)
    return found


# -- the cases ---------------------------------------------------------------------------------------------------------


def growth(world: World) -> str:
    """8 partitions become 12 while the job is behind. The new ones are ahead in event time: nothing may be late."""
    late: dict[bool, int] = {}
    for by_partition in (True, False):
        folder = world.folder / ("by-partition" if by_partition else "one-watermark")
        topic = Topic(world.broker.address, f"growth-{by_partition}", 8)
        topic.write(steady(world, world.records))
        prepare(folder, topic, by_partition=by_partition, maxOffsetsPerTrigger="1500")
        with running(folder, 2) as program:
            program.wait_for_rows(3000)
            topic.grow(12)
            ahead = steady(world, 4000, first=2 * world.records)
            topic.write([Record(r.user, r.number, r.at_ms, 8 + r.number % 4) for r in ahead])
            program.wait_for_rows(world.records // 2)
            program.stop()
        topic.close_windows()
        finish(folder, 3)
        found = must_be_exact(folder, topic)
        late[by_partition] = found.late
    assert late[True] == 0, f"{late[True]} late rows with a watermark for each partition"
    assert late[False] > 0, "nothing was late with one watermark either: the case shows nothing"
    return (
        f"0 late with a watermark for each partition, {late[False]:,} with one for all; {found.records:,} records each"
    )


def outage(world: World) -> str:
    """The broker is killed and comes back. The query says that it does not answer, and goes on afterwards."""
    topic = world.topic(4)
    topic.write(steady(world, world.records))
    prepare(world.folder / "job", topic)
    with running(world.folder / "job", 2) as program:
        program.wait_for_rows(world.records)
        world.broker.kill()
        try:
            slow = program.wait_for(lambda event: event["event"] == "SourceSlow", "word that the source is silent")
            alive = program.wait_for(
                lambda event: event["event"] == "Alive" and "has not answered" in (event["waiting_for"] or ""),
                "sign of life that names the source",
            )
            waited(world.outage_s)
        finally:
            world.broker.start()
        program.wait_for(lambda event: event["event"] == "SourceSlow" and event["answered"], "answer")
        topic.write(steady(world, world.records, first=world.records))
        program.wait_for_rows(2 * world.records)
        program.stop()
    topic.close_windows()
    finish(world.folder / "job", 3)
    found = must_be_exact(world.folder / "job", topic)
    assert "events" in alive["waiting_for"], alive
    return f"{world.outage_s:.0f} s without a broker, told as: {slow['what']}; {found}"


def retention(world: World) -> str:
    """Retention deletes records that were not read. The query stops and says which, or counts them if it may go on."""
    topic = world.topic(2, **{"segment.bytes": str(1 << 20)})
    topic.width = 1000
    topic.write(steady(world, 3000))
    folder = world.folder / "job"
    prepare(folder, topic, maxOffsetsPerTrigger="400", **{"kafka.max.partition.fetch.bytes": "100000"})
    with running(folder, 2) as program:
        program.wait_for_rows(400)
        program.stop()
    topic.write(steady(world, 7000, first=3000))
    log = topic.log()
    begins = topic.delete_what_is_old(at_least=1)
    with running(folder, 3, finish=True) as program:
        assert program.end() == 1, "the query goes on although records are lost"
        text = program.errors
    for words in ("PEN-0", "failOnDataLoss", topic.name):
        assert words in text, f"the error does not say {words}: {text[-2000:]}"
    prepare(folder, topic, maxOffsetsPerTrigger="2000", failOnDataLoss="false")
    topic.close_windows()
    program = finish(folder, 3)
    found = verdict.judged(folder, log)
    assert (found.doubled, found.foreign) == (0, 0), str(found)
    lost = sum(event["offsets"] for event in program.events if event["event"] == "SourceLost")
    assert lost == found.missing > 0, f"{lost} told as lost, {found}, partitions begin at {begins}"
    return f"{lost:,} of {found.records:,} records deleted unread: refused with their offsets, then counted; rest exact"


def skew(world: World) -> str:
    """Nine of ten records have one key, and so one partition."""
    topic = world.topic(8)
    topic.write(
        Record(7 if world.rng.random() < 0.9 else world.rng.randrange(USERS), n, n * STEP_MS)
        for n in range(world.records)
    )
    prepare(world.folder / "job", topic)
    topic.close_windows()
    finish(world.folder / "job", 4)
    return str(must_be_exact(world.folder / "job", topic))


def kills(world: World) -> str:
    """The driver with all its processes is killed at random moments and restarted at another parallelism."""
    topic = world.topic(6)
    folder = world.folder / "job"
    prepare(folder, topic, maxOffsetsPerTrigger="1500")
    topic.write(steady(world, world.records))
    times = 4
    for nth in range(times):
        with running(folder, world.rng.randint(1, 6)) as program:
            _live(world, program)
            program.kill()
        topic.write(steady(world, world.records // 4, first=world.records + nth * world.records // 4))
    topic.close_windows()
    finish(folder, world.rng.randint(1, 6))
    return f"{times} kills: {must_be_exact(folder, topic)}"


def _live(world: World, program: Program) -> None:
    program.wait_for_rows(world.rng.randrange(1, 6000))
    waited(world.rng.uniform(0.0, 0.7))


def transactions(world: World) -> str:
    """Records of aborted transactions are in the log and must not be read; markers take offsets without a record."""
    topic = world.topic(4)
    folder = world.folder / "job"
    prepare(folder, topic, maxOffsetsPerTrigger="1500", **{"kafka.isolation.level": "read_committed"})
    parts = [(steady(world, 500, first=n * 500), world.rng.random() < 0.6) for n in range(world.records // 500)]
    half = len(parts) // 2
    topic.write_in_transactions(parts[:half])
    with running(folder, 2) as program:
        program.wait_for_rows(1000)
        topic.write_in_transactions(parts[half:])
        program.kill()
    topic.close_windows()
    finish(folder, 3)
    found = must_be_exact(folder, topic)
    aborted = sum(not committed for _, committed in parts)
    assert found.records == 500 * (len(parts) - aborted)
    return f"{aborted} of {len(parts)} transactions aborted, a kill: {found}"


CASES: dict[str, Callable[[World], str]] = {
    case.__name__: case for case in (growth, outage, retention, skew, kills, transactions)
}
