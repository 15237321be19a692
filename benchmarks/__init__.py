"""Measurements on real Spark: what docs/performance.md shows, and how to see it again (`make bench`)."""
