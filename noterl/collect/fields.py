"""The fields of the environments' `info` that transitions hold, such as action masks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from noterl.envs import EnvSource
from noterl.types import InfoSpec
from noterl.utils.masks import ACTION_MASK, mask_spec, read_mask


def check_info_spec(source: EnvSource, info_spec: InfoSpec | None) -> None:
    """Check that the transitions of a source's environments can hold fields of `info`.

    Raises:
        ValueError: if there is an `info_spec`, and the environment has several agents.
    """
    if info_spec and source.team is not None:
        raise ValueError(f"env: the agent stores {', '.join(info_spec)} of each step, which needs one agent")


class InfoFields:
    """The current values of these fields in N lanes.

    If the first `info` of an environment holds an action mask that no field stores, the mask is offered: the training
    loop accepts or declines the mask before the first step. So environments without masks cost nothing.

    Args:
        spec: the fields; see `Algorithm.info_spec`.
        num_envs: the number of lanes.
        action_space: of one environment; None if masks are never offered.

    Attributes:
        spec: the fields.
        values: the current value of each field, `[N, ...]`; always the same dict.
        offered: the specification of a mask that waits for `accept` or `decline`; otherwise {}.
        watched: the specification of a mask that would be offered; {} if a field stores the mask, or after `decline`.
    """

    def __init__(self, spec: InfoSpec | None, num_envs: int, action_space: spaces.Space[Any] | None) -> None:
        self.spec: dict[str, Any] = dict(spec or {})
        self.num_envs: int = num_envs
        self._space = action_space
        self.values: dict[str, np.ndarray] = {}
        self.offered: InfoSpec = {}
        self.watched: InfoSpec = {} if action_space is None or ACTION_MASK in self.spec else mask_spec(action_space)
        self._waiting: dict[int, Mapping[str, Any]] = {}  # the info of lanes that were reset while a mask is offered
        self._allocate(self.spec)

    def _allocate(self, spec: InfoSpec) -> None:
        for name, (shape, dtype, default) in spec.items():
            self.values[name] = np.full((self.num_envs, *shape), default, dtype)

    @property
    def names(self) -> list[str]:
        """The keys of `info` that are read."""
        return [*self.spec, *self.watched]

    def reset(self, lane: int, info: Mapping[str, Any]) -> None:
        """Set the values of a lane after a reset, or offer the mask."""
        self.set(lane, info)
        if self.watched and isinstance(info, dict) and ACTION_MASK in info:
            self.offered = self.watched
            self._waiting[lane] = info

    def accept(self) -> None:
        """Make the offered mask a field."""
        offered = self.offered
        self.watched = {}
        self.offered = {}
        self.spec |= offered
        self._allocate(offered)
        for lane, info in self._waiting.items():
            self.set(lane, info)
        self._waiting = {}

    def decline(self) -> None:
        """Ignore masks from now on."""
        self.watched = {}
        self.offered = {}
        self._waiting = {}

    def check_step(self, info: Mapping[str, Any]) -> None:
        """Raise a ValueError if the info of a step has a mask, although the info of the reset had none."""
        if self.watched and isinstance(info, dict) and ACTION_MASK in info:
            raise ValueError(f"env: info[{ACTION_MASK!r}] must also be in the info that reset returns")

    def set(self, lane: int, info: Mapping[str, Any], terminated: bool = False) -> None:
        """Set the values of a lane.

        Raises:
            ValueError: if a value has another shape, or a mask forbids all actions although the episode goes on.
        """
        for name, (shape, _, default) in self.spec.items():
            if name not in info:
                self.values[name][lane] = default
            elif name == ACTION_MASK and self._space is not None:
                self.values[name][lane] = read_mask(info[name], self._space, terminated=terminated)
            else:
                value = np.asarray(info[name])
                if value.shape != shape:
                    raise ValueError(f"env: info[{name!r}] must have the shape {shape}, got {value.shape}")
                self.values[name][lane] = value

    def of_lane(self, lane: int) -> dict[str, Any]:
        """Return copies of the values of a lane."""
        return {name: values[lane].copy() for name, values in self.values.items()}

    def step(self, lane: int, info: Mapping[str, Any], terminated: bool) -> dict[str, Any]:
        """Return the values of a lane before a step, and after the step as `next_<name>`; set the latter."""
        before = self.of_lane(lane)
        self.set(lane, info, terminated)
        return {**before, **{f"next_{name}": value for name, value in self.of_lane(lane).items()}}

    def get_state(self) -> dict[str, np.ndarray]:
        """Return copies of the values."""
        return {name: values.copy() for name, values in self.values.items()}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore the values of `get_state`; fields that the state lacks get the defaults."""
        self._allocate(self.spec)
        self.values.update({name: values.copy() for name, values in state.items() if name in self.spec})
