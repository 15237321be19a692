"""Keyed state in immutable sorted files."""
