"""The backends: one file each for TensorFlow, JAX and torch, all with the same few functions.

Owns: which backend a process uses, and the only imports of a framework. Each file offers `minimize`,
`compile_update`, `compile_forward`, `fetch`, `HostWeights` and `copy_variables`.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

_NAMES = ("tensorflow", "jax", "torch")


def choose() -> str:
    """Choose the backend as Keras does, and before Keras is imported; return its name.

    The variable KERAS_BACKEND decides, then Keras's config file. Where neither names an installed framework, the first
    installed of tensorflow, jax and torch is taken.

    Raises:
        ImportError: if none is installed, or KERAS_BACKEND names one that noterl does not support.
    """
    if "keras" in sys.modules:
        name = sys.modules["keras"].backend.backend()
    else:
        name = os.environ.get("KERAS_BACKEND") or _configured() or _first_installed()
        os.environ["KERAS_BACKEND"] = name
    if name not in _NAMES:
        raise ImportError(f"noterl runs on the Keras backends {', '.join(_NAMES)}; KERAS_BACKEND is {name!r}")
    return name


def _configured() -> str | None:
    """Return what Keras's config file says, if that framework is there; Keras writes its own default into it."""
    home = Path(os.environ.get("KERAS_HOME", Path("~/.keras").expanduser()))
    try:
        name = json.loads((home / "keras.json").read_text())["backend"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return name if name in _NAMES and importlib.util.find_spec(name) else None


def _first_installed() -> str:
    for name in _NAMES:
        if importlib.util.find_spec(name):
            return name
    raise ImportError('noterl needs a backend: pip install "noterl[tensorflow]", "noterl[jax]" or "noterl[torch]"')


@cache
def current() -> Any:
    """Return the module of the backend this process uses."""
    return importlib.import_module(f"noterl.backends.{choose()}.core")


@cache
def rollout_programs() -> Any:
    """Return the module with what this backend compiles for rollouts: `compile_prepare` and `compile_minibatches`."""
    return importlib.import_module(f"noterl.backends.{choose()}.rollout")


@cache
def noise_programs() -> Any:
    """Return the module with what this backend compiles to compare gradients: `compile_spread`."""
    return importlib.import_module(f"noterl.backends.{choose()}.noise")
