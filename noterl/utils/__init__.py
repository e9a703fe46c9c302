"""Helpers without knowledge of reinforcement learning."""
