"""The device of this process: small networks on vectors train on the CPU, unless the user has chosen a device."""

from __future__ import annotations

import os
import warnings

import torch
from keras.src.backend.common import global_state
from keras.src.backend.torch import core

# The first decision: later agents share the device, because their programs and those of earlier agents share Keras's
# default device.
_chosen: list[str] = []


def choose_device(prefers_cpu: bool) -> None:
    """At the first agent of the process, place what Keras computes on the CPU if the agent prefers the CPU.

    The user's own choice stays: the variable `KERAS_TORCH_DEVICE`, `keras.device`, or `torch.set_default_device`. A
    small network does too little in one call of an accelerator: starting the call takes longer than computing.
    """
    is_given = "KERAS_TORCH_DEVICE" in os.environ or global_state.get_global_attribute("torch_device") is not None
    if is_given or torch.get_default_device().type != "cpu":
        return
    if not _chosen:
        _chosen.append(core.DEFAULT_DEVICE)
        if prefers_cpu:
            core.DEFAULT_DEVICE = "cpu"
    elif not prefers_cpu and _chosen[0] != core.DEFAULT_DEVICE:
        warnings.warn(
            f"this agent trains on the CPU and not on {_chosen[0]}, because the first agent of the process has small "
            f"networks, which train on the CPU; set KERAS_TORCH_DEVICE={_chosen[0]} before noterl is imported",
            stacklevel=5,
        )


def reason() -> str:
    """Return why this process uses its device, for `summary`; empty unless noterl has chosen the device."""
    if not _chosen or _chosen[0] == core.DEFAULT_DEVICE:
        return ""
    return f" (small networks train on the CPU; KERAS_TORCH_DEVICE={_chosen[0]} chooses the accelerator)"
