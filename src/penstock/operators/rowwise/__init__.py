"""Operators without state: `map_batches`, `filter`, `flat_map`, and the one that only hands rows on."""
