"""A deterministic simulation of whole runs: the real engine in surroundings that fail, everything from one seed.

Time, store, cluster, streaming source and tables are simulated; protocol, engine, channels, state and operators are the
real code. ``python -m penstock.testing.simulate --seed 7 --trace`` shows one run, event by event, again and again.
"""

from __future__ import annotations

from penstock.testing.simulate.runner import Failure, Outcome, simulate

__all__ = ["Failure", "Outcome", "simulate"]
