"""The only package that knows Spark: sessions, the streaming feed, the cluster, stage jobs."""
