"""Delta Lake tables as a sink. Only here `deltalake` is imported, and by the sink itself only when it is used."""
