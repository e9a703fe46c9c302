"""Values of the step's `info` that the logs of an episode hold."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from noterl.utils.schema import Int

REDUCTIONS = ("sum", "mean", "max", "last")

# The state of one episode: key -> [reduction, sum, maximum or last value, number of steps with a value]
STATE = [str, float, Int(1)]


def check_info(info: Any, taken: Collection[str] = ()) -> dict[str, str]:
    """Return the reductions by key, from the argument `info` of `Agent.fit`.

    Args:
        info: a dict of keys and reductions; a sequence of keys, of which the last values are taken; or None.
        taken: names that the logs have already.

    Raises:
        ValueError: if `info` is none of these, a reduction is unknown, or a key is among `taken`.

    Example:
    >>> from noterl.collect.info import check_info
    >>> check_info({"x_velocity": "mean"}), check_info(("success",)), check_info(None)
    ({'x_velocity': 'mean'}, {'success': 'last'}, {})
    """
    if info is None:
        return {}
    if isinstance(info, Sequence) and not isinstance(info, str):
        info = dict.fromkeys(info, "last")
    if not isinstance(info, Mapping) or not all(isinstance(key, str) and key for key in info):
        raise ValueError(f"info must be a dict of keys and reductions, a tuple of keys, or None, got {info!r}")
    for key, reduction in info.items():
        if reduction not in REDUCTIONS:
            raise ValueError(
                f"info: the reduction of {key!r} must be one of {', '.join(REDUCTIONS)}, got {reduction!r}"
            )
        if key in taken:
            raise ValueError(f"info: the logs already have an entry {key!r}; rename the key in the environment's info")
    return dict(info)


class EpisodeInfo:
    """The values of one episode so far.

    Args:
        reductions: "sum", "mean", "max" or "last" by key, in the order of the logs.

    Example:
    >>> from noterl.collect.info import EpisodeInfo
    >>> episode = EpisodeInfo({"speed": "mean", "success": "last"})
    >>> for info in ({"speed": 1.0}, {"speed": 2.0}, {"success": True}):
    ...     episode.add(info)
    >>> episode.logs()
    {'speed': 1.5, 'success': 1.0}
    """

    def __init__(self, reductions: Mapping[str, str] | None = None) -> None:
        self.reductions: dict[str, str] = dict(reductions or {})
        self._values: dict[str, tuple[float, int]] = {}

    def add(self, info: Mapping[str, Any]) -> None:
        """Add the `info` of a step. A key that `info` lacks is skipped.

        Raises:
            ValueError: if a value is not a number.
        """
        for key, reduction in self.reductions.items():
            if key not in info:
                continue
            number = number_of(key, info[key])
            value, count = self._values.get(key, (0.0, 0))
            if reduction == "last" or not count:
                value = number
            elif reduction == "max":
                value = max(value, number)
            else:
                value += number
            self._values[key] = value, count + 1

    def logs(self) -> dict[str, float]:
        """Return the reduced values by key, without the keys that no step had."""
        return {
            key: self._values[key][0] / self._values[key][1] if reduction == "mean" else self._values[key][0]
            for key, reduction in self.reductions.items()
            if key in self._values
        }

    def copy(self, reductions: Mapping[str, str] | None = None) -> EpisodeInfo:
        """Return a copy. With other reductions, the copy keeps the values of the keys that have the same reduction."""
        reductions = self.reductions if reductions is None else reductions
        copied = EpisodeInfo(reductions)
        same = {key for key, reduction in reductions.items() if self.reductions.get(key) == reduction}
        copied._values = {key: value for key, value in self._values.items() if key in same}
        return copied

    def get_state(self) -> dict[str, list[Any]]:
        """Return the values, in the layout of `STATE`."""
        return {key: [self.reductions[key], *value] for key, value in self._values.items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Sequence[Any]]) -> EpisodeInfo:
        """Return an episode with a state of `get_state`."""
        episode = cls({key: reduction for key, (reduction, _, _) in state.items()})
        episode._values = {key: (value, count) for key, (_, value, count) in state.items()}
        return episode


def info_of_lane(
    info: Mapping[str, Any], lane: int, names: Iterable[str], num_envs: int, *, over: bool
) -> dict[str, Any]:
    """Return the values of some keys of one environment from the `info` of a vector environment's step.

    Args:
        info: the key `name` holds the values of all environments. A key `_name` holds a mask of the environments
            that have a value.
        lane: number of the environment.
        names: the keys; keys that the environment does not have are left out.
        num_envs: number of environments.
        over: whether the episode ended and the environment was reset in the same step. The info of the last step is
            then in `info["final_info"]`.

    Raises:
        ValueError: if the value of a key is not an array or a list of `num_envs` values.
    """
    if over:
        info = info.get("final_info", {})
    selected = {}
    for name in names:
        if name not in info:
            continue
        values = info[name]
        if np.shape(values)[:1] != (num_envs,):
            raise ValueError(
                f"env: info[{name!r}] must hold a value of each of the {num_envs} environments, got {values!r:.80}"
            )
        has_value = info.get(f"_{name}")
        if has_value is None or has_value[lane]:
            selected[name] = values[lane]
    return selected


def number_of(key: str, value: Any) -> float:
    """Return the value of a key of `info` as a float.

    Raises:
        ValueError: if the value is not a number.
    """
    array = np.asarray(value)
    if array.ndim or array.dtype.kind not in "biuf":
        raise ValueError(f"info: the environment's info must hold a number under {key!r}, got {value!r:.80}")
    return float(array)
