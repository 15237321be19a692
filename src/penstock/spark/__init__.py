"""The only package that knows Spark: sessions, the streaming feed, stage jobs."""
