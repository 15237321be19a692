"""Between Arrow columns and the Python values of user code, without silent losses."""
