"""Pure decisions over immutable values: no Spark, no clock, no files, nothing of the rest of the package."""
