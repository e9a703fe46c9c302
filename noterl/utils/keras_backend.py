"""Keras's backend of this process, and the configuration of optimizers, without importing a framework."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

SUPPORTED = ("tensorflow", "jax", "torch")


def choose() -> None:
    """Set the variable `KERAS_BACKEND`, from which Keras and spawned processes take the backend.

    If `keras` has been imported, Keras's backend is used. Otherwise the order is the variable, Keras's config file, and
    the first installed of tensorflow, jax and torch. If none is installed, the variable stays unset.
    """
    keras = sys.modules.get("keras")
    if keras is not None:
        os.environ["KERAS_BACKEND"] = keras.backend.backend()
    elif not os.environ.get("KERAS_BACKEND"):
        name = _configured() or next(filter(importlib.util.find_spec, SUPPORTED), None)
        if name is not None:
            os.environ["KERAS_BACKEND"] = name


def optimizer_config(optimizer: Any) -> dict[str, Any]:
    """Return `get_config()` of a Keras optimizer, with the learning-rate schedule itself if there is one.

    Keras serializes a schedule, and therefore imports TensorFlow if installed, which takes seconds.
    """
    rate = vars(optimizer).get("_learning_rate")
    if rate is None or isinstance(rate, int | float) or hasattr(rate, "assign"):
        return dict(optimizer.get_config())
    vars(optimizer)["_learning_rate"] = 0.0
    try:
        return {**optimizer.get_config(), "learning_rate": rate}
    finally:
        vars(optimizer)["_learning_rate"] = rate


def _configured() -> str | None:
    """Return the backend of Keras's config file; None if not installed, because Keras writes a default there."""
    home = Path(os.environ.get("KERAS_HOME", Path("~/.keras").expanduser()))
    try:
        name = json.loads((home / "keras.json").read_text())["backend"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return name if name in SUPPORTED and importlib.util.find_spec(name) else None
