"""`check` and its report."""
