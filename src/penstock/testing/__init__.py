"""Testing pipelines without Spark: the same engine, subtasks and files, run in this process."""
