"""Apache Iceberg tables as a sink. Only here `pyiceberg` is imported, and by the sink itself only when it is used."""
