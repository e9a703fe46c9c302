"""Acting on the host: from observations to actions."""
