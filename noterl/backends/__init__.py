"""The backends: one package each for TensorFlow, JAX and torch, all with the same functions.

`noterl/__init__.py` has set `KERAS_BACKEND`, so that other modules import Keras from here in any order.
"""

from __future__ import annotations

import importlib
import os
from functools import cache
from typing import Any

from noterl.utils.keras_backend import SUPPORTED

if not os.environ.get("KERAS_BACKEND"):
    raise ImportError('noterl needs a backend: pip install "noterl[tensorflow]", "noterl[jax]" or "noterl[torch]"')
if os.environ["KERAS_BACKEND"] not in SUPPORTED:
    raise ImportError(f"KERAS_BACKEND must be one of {', '.join(SUPPORTED)}, got {os.environ['KERAS_BACKEND']!r}")

import keras
from keras import ops

__all__ = ["current", "keras", "name", "noise_programs", "ops", "rollout_programs"]


def name() -> str:
    """Return the name of the backend that this process uses."""
    return keras.backend.backend()


@cache
def current() -> Any:
    """Return the module of the backend that this process uses."""
    return importlib.import_module(f"noterl.backends.{name()}.core")


@cache
def rollout_programs() -> Any:
    """Return this backend's `compile_prepare` and `compile_minibatches`, as a module."""
    return importlib.import_module(f"noterl.backends.{name()}.rollout")


@cache
def noise_programs() -> Any:
    """Return this backend's `compile_spread`, as a module."""
    return importlib.import_module(f"noterl.backends.{name()}.noise")
