"""The n best rows of each key, running or per window."""
