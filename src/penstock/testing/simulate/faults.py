"""What goes wrong, and when: drawn from the seed, at each operation that leaves a process.

A seed enables some kinds of faults only, each with a rate of its own: a run in which everything fails all the time
finds less than many runs that differ. Some seeds aim at one kind of operation, so that rare ones get their share.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum


class Fault(Enum):
    """What happens to one operation."""

    NONE = "none"
    SLOW = "slow"
    FAIL_BEFORE = "fails, nothing happened"
    FAIL_AFTER = "fails, but it happened"
    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"
    PAUSE = "process paused"


AIMS = (
    "create generations",
    "create manifests",
    "read manifests",
    "list ",
    "delete ",
    "open ",
    "close ",
    "job ",
    "of batch",
    " ask",
    " prepare",
    " publish",
    " fence",
    " write",
    " remove",
)
"""What operations are called, as in the trace."""

COSTLY_MAX = 14
OF_TABLES_MAX = 12
_AIMED = (Fault.FAIL_BEFORE, Fault.FAIL_AFTER, Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.PAUSE)


@dataclass(frozen=True, slots=True)
class Rates:
    """Probabilities per operation or attempt; `aimed` is that of operations whose name contains `aim`."""

    slow: float
    store_failure: float
    driver_crash: float
    driver_pause: float
    attempt_crash: float
    attempt_pause: float
    speculation: float
    report_lost: float
    job_failure: float
    table_failure: float
    table_delay: float
    foreign_commit: float
    list_lag_s: float
    aim: str
    aimed: float

    @property
    def store_may_fail(self) -> bool:
        return self.store_failure > 0 or self.aimed > 0

    @classmethod
    def draw(cls, rng: random.Random) -> Rates:
        def rate(high: float, chance: float = 0.5) -> float:
            return high * rng.random() if rng.random() < chance else 0.0

        return cls(
            slow=rate(0.05),
            store_failure=rate(0.04, 0.35),
            driver_crash=rate(0.04, 0.6),
            driver_pause=rate(0.03, 0.5),
            attempt_crash=rate(0.25),
            attempt_pause=rate(0.3),
            speculation=rate(0.3),
            report_lost=rate(0.2),
            job_failure=rate(0.2),
            table_failure=rate(0.6),
            table_delay=rate(1.0),
            foreign_commit=rate(0.5),
            list_lag_s=rate(2.0, 0.25),
            aim=rng.choice(AIMS),
            aimed=rate(0.6),
        )


class Faults:
    """Draws faults while they are on. A run gets so many of the expensive ones; failures of tables cost little."""

    def __init__(self, rng: random.Random, rates: Rates) -> None:
        self._rng, self.rates = rng, rates
        self._left, self._table_left = rng.randint(0, COSTLY_MAX), rng.randint(0, OF_TABLES_MAX)
        self.on = True

    def chance(self, rate: float) -> bool:
        return self.on and rate > 0 and self._rng.random() < rate

    def costly(self, rate: float) -> bool:
        if self._left > 0 and self.chance(rate):
            self._left -= 1
            return True
        return False

    def on_table(self, what: str) -> Fault:
        """For one call of a table, beyond what may happen to any call; few starts would get through if all failed."""
        rate = self.rates.table_failure / (4 if what.startswith(("ask", "fence")) else 1)
        if self._table_left > 0 and self.chance(rate):
            self._table_left -= 1
            return self._rng.choice((Fault.FAIL_BEFORE, Fault.FAIL_AFTER))
        return Fault.NONE

    def on_store(self, what: str, *, driver: bool) -> Fault:
        """For one call of the store or the table."""
        if not self.on:
            return Fault.NONE
        rates = self.rates
        if rates.aimed and rates.aim in what and self.costly(rates.aimed):
            return self._rng.choice(_AIMED if driver else _AIMED[:2])
        if self.costly(rates.store_failure):
            return self._rng.choice((Fault.FAIL_BEFORE, Fault.FAIL_AFTER))
        if driver and self.costly(rates.driver_crash):
            return self._rng.choice((Fault.CRASH_BEFORE, Fault.CRASH_AFTER))
        if driver and self.costly(rates.driver_pause):
            return Fault.PAUSE
        return Fault.SLOW if self.chance(rates.slow) else Fault.NONE
