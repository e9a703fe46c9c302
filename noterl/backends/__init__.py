"""The backends: one package each for TensorFlow, JAX and torch, all with the functions of `interface.Backend`.

Only these packages import a framework. A backend receives functions and variables, and does not depend on
agents.
`noterl/__init__.py` sets `KERAS_BACKEND` first, so other modules can import Keras from here in any order.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from functools import cache, partial
from typing import Any

from noterl.backends.interface import Backend as Backend
from noterl.utils.keras_backend import SUPPORTED
from noterl.utils.start import called_late, collector_paused, disabled_late, imported_late

if not os.environ.get("KERAS_BACKEND"):
    raise ImportError('noterl needs a backend: pip install "noterl[tensorflow]", "noterl[jax]" or "noterl[torch]"')
if os.environ["KERAS_BACKEND"] not in SUPPORTED:
    raise ImportError(f"KERAS_BACKEND must be one of {', '.join(SUPPORTED)}, got {os.environ['KERAS_BACKEND']!r}")

if os.environ["KERAS_BACKEND"] == "tensorflow":
    importlib.import_module("noterl.backends.tensorflow.cache").enable()  # before TensorFlow reads its flags

if importlib.util.find_spec(os.environ["KERAS_BACKEND"]) is None:
    _name = os.environ["KERAS_BACKEND"]
    raise ImportError(f'KERAS_BACKEND is {_name!r}, but {_name} is not installed: pip install "noterl[{_name}]"')

# Frameworks import these with themselves. They need them only for pictures, data frames, model files, notebooks, sparse
# arrays, attention on TPUs, `torch.compile`, and models of JAX in other frameworks.
_LATE: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("matplotlib", "pandas", "h5py", "requests", "IPython")},
    "torch._dynamo": {"disable": disabled_late},
    "jax.experimental.pallas": {},
    "jax.experimental.sparse": {"sparsify": partial(called_late, "jax.experimental.sparse", "sparsify")},
}
if os.environ["KERAS_BACKEND"] != "jax":
    _LATE |= {"jax": {"jit": called_late("jax", "jit")}, "jax.monitoring": {"record_scalar": None}}
with collector_paused(), imported_late(_LATE):
    import keras as keras
    from keras import ops as ops

if os.environ["KERAS_BACKEND"] == "jax":
    importlib.import_module("noterl.backends.jax.cache").enable()  # before the first network is built


def name() -> str:
    """Return the name of the backend that this process uses."""
    return keras.backend.backend()


@cache
def current() -> Backend:
    """Return the backend that this process uses."""
    return importlib.import_module(f"noterl.backends.{name()}.core")


def check_precision() -> None:
    """Check that Keras and torch are set to float32, and that torch records gradients.

    Raises:
        ValueError: if a dtype of the process is not float32, or `torch.inference_mode` is active.
    """
    for setting, value in (("floatx", keras.config.floatx()), ("dtype_policy", keras.config.dtype_policy().name)):
        if value != "float32":
            raise ValueError(
                f"keras.config.{setting}() is {value!r}, but noterl trains in float32 only; "
                f"call keras.config.set_{setting}('float32') before you make an agent"
            )
    if name() == "torch":
        import torch

        if torch.get_default_dtype() != torch.float32:
            raise ValueError(
                f"torch.get_default_dtype() is {torch.get_default_dtype()}, but noterl trains in float32 only; call "
                "torch.set_default_dtype(torch.float32) before you make an agent"
            )
    check_gradients()


def check_gradients() -> None:
    """Raise a ValueError if `torch.inference_mode` is active, in which nothing can be trained."""
    if name() == "torch":
        import torch

        if torch.is_inference_mode_enabled():
            raise ValueError("an agent cannot be made or trained inside torch.inference_mode(); leave it first")
