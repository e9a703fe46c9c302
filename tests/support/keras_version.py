"""The version of Keras, for tests of what older versions lack."""

from __future__ import annotations

from importlib.metadata import version


def has_keras(*least: int) -> bool:
    """Whether Keras has at least this version, such as `has_keras(3, 15)`."""
    return tuple(map(int, version("keras").split(".")[: len(least)])) >= least
