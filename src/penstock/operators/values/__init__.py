"""Between Arrow columns and the Python values of user code, without losing anything in silence."""
