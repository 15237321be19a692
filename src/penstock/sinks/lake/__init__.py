"""What the sinks of lakes (Delta Lake, Iceberg) have in common: commits, keys, and merges by key. Knows no format."""
