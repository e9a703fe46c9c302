"""Choose Keras's backend for this process, without importing Keras or a framework."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path

SUPPORTED = ("tensorflow", "jax", "torch")


def choose() -> None:
    """Set the variable `KERAS_BACKEND`, from which Keras and spawned processes take their backend.

    If `keras` has been imported, its backend is used. Otherwise the order is the variable, Keras's config file, and the
    first installed of tensorflow, jax and torch. If none is installed, the variable stays unset.
    """
    keras = sys.modules.get("keras")
    if keras is not None:
        os.environ["KERAS_BACKEND"] = keras.backend.backend()
    elif not os.environ.get("KERAS_BACKEND"):
        name = _configured() or next(filter(importlib.util.find_spec, SUPPORTED), None)
        if name is not None:
            os.environ["KERAS_BACKEND"] = name


def _configured() -> str | None:
    """Return the backend of Keras's config file; None if it is not installed, because Keras writes a default there."""
    home = Path(os.environ.get("KERAS_HOME", Path("~/.keras").expanduser()))
    try:
        name = json.loads((home / "keras.json").read_text())["backend"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return name if name in SUPPORTED and importlib.util.find_spec(name) else None
