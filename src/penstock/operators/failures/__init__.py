"""User code that fails: which record it was, what the user is told, and dead letters."""
