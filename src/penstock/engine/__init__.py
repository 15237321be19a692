"""The driver: epoch loop, checkpoints, commit coordinator, query handle. It decides; Spark works."""
