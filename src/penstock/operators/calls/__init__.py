"""`map_async`: many calls at once on one event loop per worker."""
