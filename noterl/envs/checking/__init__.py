"""`check` and the report that it returns."""
