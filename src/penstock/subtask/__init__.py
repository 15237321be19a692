"""One attempt at a subtask: open, step until the barrier, hand over one report.

It may import `inflight`, `state`, `operators`, `sinks` and `graph`; never the engine and never Spark.
Nothing of an attempt counts before the driver has accepted its report.
"""
