"""Exporting the acting function of an agent to files that do not need noterl."""
