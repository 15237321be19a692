"""The first row of each key."""
