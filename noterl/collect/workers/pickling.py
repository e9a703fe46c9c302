"""Pickling of what processes send to each other: environments, policies, noises, and networks as NumPy functions."""

from __future__ import annotations

import pickle
from typing import Any

_WHAT = "workers: the environment, policy or noise"


def dumps(value: Any, what: str = _WHAT) -> bytes:
    """Return a value as bytes for a process that does not run this script.

    The value may hold lambdas, closures and classes of the script itself.

    Args:
        value: the value.
        what: a description of the value, for the message.

    Raises:
        ValueError: if the value cannot be sent.
    """
    import cloudpickle  # worker processes that only step environments start without it

    try:
        pickled: bytes = cloudpickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # objects may raise any error when they are pickled
        way_out = "; pass an id or a factory that makes what cannot be sent, such as env=lambda: MyEnv()"
        raise ValueError(
            f"{what} cannot be sent to another process: {error}{way_out if what is _WHAT else ''}"
        ) from error
    return pickled
