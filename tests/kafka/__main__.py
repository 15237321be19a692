"""Spark's Kafka source under Penstock, against a real broker.

    python -m tests.kafka [CASE …] [--outage SECONDS] [--records N] [--seed SEED]

Starts a broker, runs the cases, stops it. One line per case. A case that fails keeps its folder.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.kafka.broker import Broker
from tests.kafka.cases import CASES, World
from tests.kafka.jars import NoJars, broker_jars, connector_jars


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="kafka")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--outage", type=float, default=15.0, help="seconds without a broker, after it was noticed")
    parser.add_argument("--records", type=int, default=20_000, help="of a topic, at first")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options = parser.parse_args(arguments)
    unknown = [name for name in options.cases if name not in CASES]
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}")
    try:
        broker_jars(), connector_jars()
    except NoJars as error:
        print(error, file=sys.stderr)
        return 2
    print(f"seed {options.seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="penstock-kafka-"))
    broker = Broker(folder / "broker")
    broker.start()
    try:
        failed = sum(not _run(name, broker, folder, options) for name in options.cases or CASES)
    finally:
        broker.stop()
    print(f"{len(options.cases or CASES) - failed} passed, {failed} failed")
    if not failed:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


def _run(name: str, broker: Broker, folder: Path, options: argparse.Namespace) -> bool:
    place = folder / name
    place.mkdir()
    world = World(broker, place, random.Random(f"{options.seed} {name}"), options.outage, options.records)
    began = time.monotonic()
    try:
        said, ok = CASES[name](world), True
    except Exception as error:  # noqa: BLE001 - one case must not hide the others
        said, ok = f"{type(error).__name__}: {error} (kept in {place})", False
    print(f"{'ok  ' if ok else 'FAIL'} {name}: {said} ({time.monotonic() - began:.0f} s)", flush=True)
    return ok


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing that was started is left behind
    sys.exit(main(sys.argv[1:]))
