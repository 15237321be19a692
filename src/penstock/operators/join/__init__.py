"""The interval join of two keyed streams."""
