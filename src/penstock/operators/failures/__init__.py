"""User code that fails: finding the record, the error for the user, dead letters."""
