"""Aggregates: the functions users write, how rows become groups and groups become one row, running aggregates."""
