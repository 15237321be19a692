"""``python -m benchmarks.merge_policies``: what merging runs by key costs writers and readers, by policy, as a model.

A bucket of 25,000 keys gets 500 random ones with each commit, and upkeep looks as often as it would. The policy is the
real one. What a read costs was measured with Java Paimon 2.0 (``python -m benchmarks.keyed_upkeep --java`` does it on a
real table), in times of a read of one run: 2.2, and 0.3 for each run beyond the first, and 2.9 for each copy of the
table that the runs hold beyond one.
"""

from __future__ import annotations

import statistics

from penstock.protocol.sorted_runs import BALANCED, READS, WRITES, BucketRun, Tiering, runs_to_merge

KEYS, ROWS, COMMITS, SETTLED = 25_000, 500, 2_000, 200
POLICIES = {
    'merge_for="reads"': READS,
    "default": BALANCED,
    'merge_for="writes"': WRITES,
    "Paimon's own defaults": Tiering(),
}


def read_cost(runs: list[BucketRun]) -> float:
    if len(runs) == 1:
        return 1.0
    return 2.2 + 0.3 * (len(runs) - 1) + 2.9 * max(0.0, sum(run.bytes for run in runs) / KEYS - 1)


def merged(runs: list[BucketRun], tiering: Tiering) -> tuple[list[BucketRun], int]:
    """The runs after a look, and the rows that it wrote."""
    written = 0
    while (merge := runs_to_merge(runs, tiering, raise_new=tiering.trigger == 1)) is not None:
        size = 0.0
        for run in runs[: merge.count]:
            size += run.bytes - size * run.bytes / KEYS  # random keys: some are in both
        written += int(size)
        runs = [BucketRun(merge.level, int(size)), *runs[merge.count :]]
    return runs, written


def figures(tiering: Tiering) -> tuple[float, float, float]:
    """Write amplification, the mean cost of a read, and the dearest one."""
    runs, written = merged([BucketRun(0, KEYS)], tiering)[0], 0
    costs: list[float] = []
    for commit in range(COMMITS):
        runs = [BucketRun(0, ROWS), *runs]
        costs.append(read_cost(runs))
        if commit % tiering.trigger == 0:
            runs, more = merged(runs, tiering)
            written += more
    settled = costs[SETTLED:]
    return 1 + written / (COMMITS * ROWS), statistics.mean(settled), max(settled)


def main() -> None:
    for name, tiering in POLICIES.items():
        amplification, mean, dearest = figures(tiering)
        print(f"{name:24} write amplification {amplification:4.1f}   a read {mean:.1f}, at most {dearest:.1f} times")


if __name__ == "__main__":
    main()
