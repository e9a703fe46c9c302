"""Small environments of noterl's own."""
