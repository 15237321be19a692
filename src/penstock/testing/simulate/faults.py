"""What goes wrong, and when: drawn from the seed, at each operation that leaves a process.

A seed enables some kinds of faults only, each with a rate of its own: a run in which everything fails all the time
finds less than many runs that differ. Some seeds aim at one kind of operation, so that rare ones get their share.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from penstock.protocol.layout import GENERATIONS, MANIFESTS


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
    f"create {GENERATIONS}",
    f"create {MANIFESTS}",
    f"read {MANIFESTS}",
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

FOREIGN_ACTS = ("commit", "compact", "expire", "roll back")
"""What other engines do to a table."""
OLDER_OUT_OF_REACH = 0.15
"""Of starts: costs little, since they go on without it."""
OF_LOOKING = 0.2
"""Calls that change nothing are many, and would use up what a run gets of faults before it has processed anything."""
COSTLY_MAX = 14
OF_TABLES_MAX = 12
_AIMED = (Fault.FAIL_BEFORE, Fault.FAIL_AFTER, Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.PAUSE)


@dataclass(frozen=True, slots=True)
class Rates:
    """Probabilities per operation or attempt; `aimed` is that of operations whose name contains one of `aims`."""

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
    foreign: float
    foreign_acts: tuple[str, ...]
    list_lag_s: float
    outage: float
    aims: tuple[str, ...]
    aimed: float

    @property
    def store_may_fail(self) -> bool:
        return self.store_failure > 0 or self.outage > 0 or bool(self.aims)

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
            foreign=rate(0.5),
            foreign_acts=tuple(rng.sample(FOREIGN_ACTS, rng.randint(1, 3))),
            list_lag_s=rate(2.0, 0.25),
            outage=rate(0.8, 0.4),
            aims=tuple(rng.sample(AIMS, rng.randint(0, 3))),
            aimed=0.6 * rng.random(),
        )


@dataclass(slots=True)
class Outage:
    """Calls of one kind fail, from one on until another; counted per process."""

    of: str
    numbers: range
    made: int = 0

    def hits(self, what: str) -> bool:
        self.made += what.startswith(self.of)
        return what.startswith(self.of) and self.made in self.numbers


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

    def table_delays(self, what: str) -> bool:
        """Whether a call of a table takes long; every question does where calls do, so that epochs go on meanwhile."""
        rate = self.rates.table_delay
        return self.chance(1.0 if what == "ask" and rate > 0 else rate)

    def on_table(self, what: str) -> Fault:
        """For one call of a table, beyond what may happen to any call; few starts would get through if all failed.

        What matters most is a commit whose outcome is unknown.
        """
        rate = self.rates.table_failure * (1.0 if what.startswith("publish") else 0.25)
        if self._table_left > 0 and self.chance(rate):
            self._table_left -= 1
            return self._rng.choice((Fault.FAIL_BEFORE, Fault.FAIL_AFTER))
        return Fault.NONE

    def outage(self, manifests: Sequence[str]) -> Outage | None:
        """Which calls of a new driver fail: the store is down, or an older manifest out of reach, for a moment."""
        if len(manifests) > 1 and self.chance(OLDER_OUT_OF_REACH):
            begin = self._rng.randint(1, 3)
            return Outage(f"read {self._rng.choice(manifests[:-1])}", range(begin, begin + self._rng.randint(1, 3)))
        if not self.costly(self.rates.outage):
            return None
        of, last = self._rng.choice((("", 40), (f"read {MANIFESTS}", 16)))
        begin = self._rng.randint(1, last)
        return Outage(of, range(begin, begin + self._rng.randint(1, 3)))

    def on_store(self, what: str, *, driver: bool) -> Fault:
        """For one call of the store or the table."""
        if not self.on:
            return Fault.NONE
        rates = self.rates
        looks = what.startswith(("read", "list", "exists"))
        share = OF_LOOKING if looks else 1.0
        if rates.aims and any(aim in what for aim in rates.aims) and self.costly(share * rates.aimed):
            # Who only looks meets nothing new when it dies.
            return self._rng.choice(_AIMED if driver and not looks else _AIMED[:2])
        if self.costly(share * rates.store_failure):
            return self._rng.choice((Fault.FAIL_BEFORE, Fault.FAIL_AFTER))
        if driver and self.costly(share * rates.driver_crash):
            return self._rng.choice((Fault.CRASH_BEFORE, Fault.CRASH_AFTER))
        if driver and self.costly(rates.driver_pause):
            return Fault.PAUSE
        return Fault.SLOW if self.chance(rates.slow) else Fault.NONE
