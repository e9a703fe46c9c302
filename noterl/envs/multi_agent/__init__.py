"""Environments with several agents."""
