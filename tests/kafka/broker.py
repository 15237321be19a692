"""A Kafka broker of one node (KRaft) as a process of its own, which can be stopped, killed and started again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.kafka.jars import broker_jars

READY_S_MAX = 90.0
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={logs}
num.partitions=1
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
log.initial.task.delay.ms=1000
log.retention.check.interval.ms=1000
"""


class Broker:
    """Keeps its log in a folder, and its port for life."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        port, controller = _free_port(), _free_port()
        self.address = f"127.0.0.1:{port}"
        folder.mkdir(parents=True)
        self._properties = folder / "server.properties"
        self._properties.write_text(_PROPERTIES.format(port=port, controller=controller, logs=folder / "logs"))
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self._java("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._properties)).wait()

    def start(self) -> None:
        """Returns once it answers."""
        self._process = self._java("kafka.Kafka", str(self._properties))
        deadline = time.monotonic() + READY_S_MAX
        while True:
            try:
                AdminClient({"bootstrap.servers": self.address, "log_level": 0}).list_topics(timeout=2)
            except KafkaException:
                assert self._process.poll() is None, f"the broker has ended: {self._folder / 'broker.log'}"
                assert time.monotonic() < deadline, f"the broker does not answer: {self._folder / 'broker.log'}"
            else:
                return

    def kill(self) -> None:
        """As a machine that is gone: what it holds is in its log."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _java(self, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        classes = os.pathsep.join(map(str, broker_jars()))
        command = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", classes, main, *arguments]
        with (self._folder / "broker.log").open("ab") as log:
            # Away from the caller's terminal: its Ctrl-C is not for the broker.
            return subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder, start_new_session=True)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
