"""Pickling of what processes send to each other: environments, policies, noises, and networks as NumPy functions."""

from __future__ import annotations

import io
import pickle
from typing import Any

_WAYS_OUT = 'define it in a module that can be imported, or install cloudpickle: pip install "noterl[workers]"'
_WHAT = "workers: the environment, policy or noise"


def dumps(value: Any, what: str = _WHAT) -> bytes:
    """Return a value as bytes for a process that does not run this script.

    If cloudpickle is installed, the value may hold lambdas, closures and classes of the script itself.

    Args:
        value: the value.
        what: what it is, for the message.

    Raises:
        ValueError: if the value cannot be sent.
    """
    try:
        import cloudpickle
    except ImportError:
        return _dumps_importable(value, what)
    try:
        pickled: bytes = cloudpickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # objects may raise any error when they are pickled
        way_out = "; pass an id or a factory that makes what cannot be sent, such as env=lambda: MyEnv()"
        raise ValueError(
            f"{what} cannot be sent to another process: {error}{way_out if what is _WHAT else ''}"
        ) from error
    return pickled


class _ImportablePickler(pickle.Pickler):
    """A pickler that refuses classes and functions of the script, because no other process can import them."""

    def reducer_override(self, obj: Any) -> Any:
        """Raise a ValueError if `obj` is a class or function of the script."""
        if getattr(obj, "__module__", None) == "__main__" and hasattr(obj, "__qualname__"):
            raise ValueError(f"workers: {obj.__qualname__} is defined in the script; {_WAYS_OUT}")
        return NotImplemented


def _dumps_importable(value: Any, what: str) -> bytes:
    buffer = io.BytesIO()
    try:
        _ImportablePickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise ValueError(f"{what} cannot be sent to another process ({error}); {_WAYS_OUT}") from error
    return buffer.getvalue()
