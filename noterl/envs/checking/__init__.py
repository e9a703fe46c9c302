"""Check an environment."""
