"""A topic as the cases use it: records go in, the log is read back, it grows, its old records are deleted."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

CLOSER = 1_000_000
"""Users from here on are of the last record of a partition: it moves the watermark and is not counted."""
END_MS = 10_000_000_000
QUIET = {"log_level": 0}
"""Clients of a broker that is down on purpose say so every second."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record as it is written: `at_ms` is its event time."""

    user: int
    number: int
    at_ms: int
    partition: int | None = None

    def value(self, width: int) -> bytes:
        return f"{self.user},{self.number},{self.at_ms},".ljust(width, "x").encode()


@dataclass(frozen=True, slots=True, order=True)
class Logged:
    """A record as the log has it."""

    partition: int
    offset: int
    user: int
    number: int
    at_ms: int


class Topic:
    """One topic of one broker."""

    def __init__(self, address: str, name: str, partitions: int, **settings: str) -> None:
        self.address, self.name, self.width = address, name, 0
        self._admin = AdminClient({"bootstrap.servers": address, **QUIET})
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
        _done(self._admin.create_topics([topic]))

    def write(self, records: Iterable[Record], **settings: str) -> None:
        """Returns once all are in the log. A user has its partition by hash, unless the record says which."""
        producer = self._producer(**settings)
        self._produce(producer, records)
        producer.flush(60)

    def write_in_transactions(self, parts: Iterable[tuple[list[Record], bool]]) -> None:
        """Each part in a transaction of its own, which is committed or not."""
        producer = self._producer(**{"transactional.id": f"{self.name}-writer"})
        producer.init_transactions(30)
        for records, commit in parts:
            producer.begin_transaction()
            self._produce(producer, records)
            producer.flush(60)
            if commit:
                producer.commit_transaction(30)
            else:
                producer.abort_transaction(30)

    def close_windows(self) -> None:
        """One last record in each partition, far in the future, so that every window before it ends."""
        closers = [Record(CLOSER + part, 0, END_MS, part) for part in range(self.partitions())]
        self.write(closers)

    def partitions(self) -> int:
        return len(self._admin.list_topics(self.name, timeout=10).topics[self.name].partitions)

    def grow(self, partitions: int) -> None:
        _done(self._admin.create_partitions([NewPartitions(self.name, partitions)]))

    def delete_what_is_old(self, at_least: int) -> dict[int, int]:
        """Lets retention delete all but the newest part of each partition; returns where each begins then."""
        entry = ConfigEntry("retention.bytes", "1", incremental_operation=AlterConfigOpType.SET)
        _done(
            self._admin.incremental_alter_configs(
                [ConfigResource(ResourceType.TOPIC, self.name, incremental_configs=[entry])]
            )
        )
        deadline = time.monotonic() + 90
        before: dict[int, int] = {}
        while True:
            begins = {part: low for part, (low, _) in self.bounds().items()}
            if begins == before and all(low >= at_least for low in begins.values()):
                return begins
            assert time.monotonic() < deadline, f"retention deletes nothing: {begins}"
            before = begins
            time.sleep(2.5)  # two rounds of the broker's cleaner

    def bounds(self) -> dict[int, tuple[int, int]]:
        """First and next offset of each partition."""
        consumer = self._consumer()
        try:
            parts = [TopicPartition(self.name, part) for part in range(self.partitions())]
            return {part.partition: consumer.get_watermark_offsets(part, timeout=10) for part in parts}
        finally:
            consumer.close()

    def log(self) -> list[Logged]:
        """All records that are not of an aborted transaction."""
        consumer, found = self._consumer(), list[Logged]()
        bounds = self.bounds()
        consumer.assign([TopicPartition(self.name, part, low) for part, (low, _) in bounds.items()])
        left = {part for part, (low, high) in bounds.items() if low < high}
        deadline = time.monotonic() + 120
        while left:
            assert time.monotonic() < deadline, f"partitions {left} cannot be read"
            for message in consumer.consume(5000, timeout=1.0):
                if message.error():
                    raise KafkaException(message.error())
                user, number, at_ms, _ = message.value().decode().split(",", 3)
                found.append(Logged(message.partition(), message.offset(), int(user), int(number), int(at_ms)))
            at = consumer.position([TopicPartition(self.name, part) for part in left])
            left -= {part.partition for part in at if part.offset >= bounds[part.partition][1]}
        consumer.close()
        return sorted(found)

    def _produce(self, producer: Producer, records: Iterable[Record]) -> None:
        failed: list[str] = []

        def delivered(error: object, _: object) -> None:
            if error is not None:
                failed.append(str(error))

        for record in records:
            place = {} if record.partition is None else {"partition": record.partition}
            key, value = str(record.user).encode(), record.value(self.width)
            while True:
                try:
                    producer.produce(
                        self.name,
                        value,
                        key,
                        on_delivery=lambda error, _: failed.append(str(error)) if error else None,
                        **place,
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
        producer.flush(60)
        assert not failed, failed[0]

    def _producer(self, **settings: str) -> Producer:
        return Producer(
            {"bootstrap.servers": self.address, **QUIET, "linger.ms": 5, "partitioner": "murmur2", **settings}
        )

    def _consumer(self) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self.address,
                **QUIET,
                "group.id": "reads-back",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )


def _done(futures: dict[object, object]) -> None:
    for future in futures.values():
        future.result(30)  # type: ignore[attr-defined]
