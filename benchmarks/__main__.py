"""``python -m benchmarks [name …]``: runs benchmarks and says which figures reach their mark."""

from __future__ import annotations

import sys

from benchmarks import (
    backlog,
    barrier,
    bigstate,
    chain,
    change,
    commits,
    dedup,
    figures,
    flink,
    floor,
    goodput,
    join,
    lakes,
    latency,
    look,
    map_async,
    nexmark,
    pythons,
    recovery,
    rehearsal,
    remote,
    rescales,
    subtasks,
    throughput,
    windows,
)
from benchmarks.session import make_session
from benchmarks.verdict import Verdicts

BENCHMARKS = {
    "barrier": barrier.run,
    "goodput": goodput.run,
    "backlog": backlog.run,
    "recovery": recovery.recovery,
    "rescale": recovery.rescale,
    "rescales": rescales.run,
    "commits": commits.run,
    "lakes": lakes.run,
    "figures": figures.run,
    "floor": floor.run,
    "latency": latency.run,
    "aggregates": throughput.aggregates,
    "flink": flink.run,
    "processes": throughput.processes,
    "pythons": pythons.run,
    "bigstate": bigstate.run,
    "chain": chain.run,
    "change": change.run,
    "windows": windows.run,
    "dedup": dedup.run,
    "join": join.run,
    "look": look.run,
    "nexmark": nexmark.run,
    "map_async": map_async.run,
    "remote": remote.run,
    "rehearsal": rehearsal.run,
    "subtasks": subtasks.run,
}


def main(names: list[str]) -> int:
    unknown = sorted(set(names) - set(BENCHMARKS))
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    spark = make_session()
    missed = []
    for name in names or BENCHMARKS:
        print(f"\n{name}", flush=True)
        verdicts = Verdicts()
        BENCHMARKS[name](spark, verdicts)
        if not verdicts.ok:
            missed.append(name)
    spark.stop()
    print(f"\n{len(names or BENCHMARKS) - len(missed)} passed, {len(missed)} failed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
