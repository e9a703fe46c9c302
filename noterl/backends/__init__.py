"""One package for each of TensorFlow, JAX and torch, with the same interface, and the choice between them.

Only these packages import a framework. They take functions and variables, and know nothing of agents: see
`noterl.backends.jax.core` for the functions, which the other two have as well.
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
    """Choose the backend before Keras is imported, as Keras does, and return its name.

    The environment variable KERAS_BACKEND comes first, then Keras's config file. If neither names an installed
    framework, it is the first installed one of tensorflow, jax and torch.

    Raises:
        ImportError: if none is installed, or KERAS_BACKEND is something else.
    """
    if "keras" in sys.modules:
        name = sys.modules["keras"].backend.backend()
    else:
        name = os.environ.get("KERAS_BACKEND") or _configured() or _first_installed()
        os.environ["KERAS_BACKEND"] = name
    if name not in _NAMES:
        raise ImportError(f"KERAS_BACKEND must be one of {', '.join(_NAMES)} for noterl, got {name!r}")
    return name


def _configured() -> str | None:
    """Return the backend of Keras's config file if it is installed: Keras writes its own default into that file."""
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
    """Return the module with the interface of this process's backend."""
    return importlib.import_module(f"noterl.backends.{choose()}.core")
