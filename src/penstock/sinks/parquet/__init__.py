"""Parquet files as lakes want them: rolled by size, one partition each, with statistics. Knows no table format."""
