"""Upkeep of Paimon tables: manifest merging, compaction of small files, snapshot expiry, orphan cleanup.

Exactly once does not depend on any of it. New snapshots appear create-if-absent, as those of commits do, and hold the
same rows as the ones before. Files are removed only after nothing refers to them any more. A crash between any two
steps leaves at most files that no snapshot names.
"""
