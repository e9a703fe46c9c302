"""The default search space of each algorithm, as data in `spaces.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import partial
from importlib import resources
from types import MappingProxyType
from typing import Any

from noterl.policies import LinearEpsGreedyPolicy
from noterl.tune.ranges import Choice, Float, Int, OneMinus, sample

_KINDS: dict[str, Any] = {kind.__name__: kind for kind in (Choice, Float, Int, OneMinus)}


def _range(value: Any) -> Any:
    """Return what a value of the file stands for."""
    if not isinstance(value, Mapping):
        return value
    (kind,) = _KINDS.keys() & value.keys()
    # The widths of networks are tuples, as by default.
    bounds = [tuple(entry) if isinstance(entry, list) else entry for entry in value[kind]]
    return _KINDS[kind](*bounds, **{key: option for key, option in value.items() if key != kind})


def _read() -> dict[str, dict[str, Any]]:
    """Return the ranges and constants of each algorithm."""
    spaces: dict[str, dict[str, Any]] = {}
    tables = tomllib.loads((resources.files(__package__) / "spaces.toml").read_text(encoding="utf-8"))
    for name, table in tables.items():
        further = spaces.get(table.pop("ranges_of", ""), {})
        spaces[name] = {**further, **{key: _range(value) for key, value in table.items()}}
    return {name: space for name, space in spaces.items() if not name.islower()}


_RANGES = _read()


def _suggest(name: str, trial: Any, steps: int, constants: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """Return the constants and the sampled hyperparameters of an algorithm for a trial of so many environment steps."""
    values = sample({**_RANGES[name], **constants}, trial)
    if {"batch_size", "rollout_steps"} <= values.keys():
        # A minibatch is at most a rollout of one environment.
        values["batch_size"] = min(values["batch_size"], values["rollout_steps"])
    if name in ("CrossQ", "DDPG", "SAC", "TD3", "TQC"):
        values["updates"] = values["update_every"]  # one update for each step
    if name in ("C51", "DQN", "IQN", "QRDQN", "Rainbow"):
        final = Float(0.0, 0.2).suggest(trial, "exploration_final_eps")
        fraction = Float(0.0, 0.5).suggest(trial, "exploration_fraction")
        # rl-zoo3's `subsample_steps` is the number of steps for each update.
        subsample = Choice(1, 2, 4, 8).suggest(trial, "subsample_steps")
        values["updates"] = max(values["update_every"] // subsample, 1)
        if name != "Rainbow":  # whose layers explore
            values["policy"] = LinearEpsGreedyPolicy(1.0, final, max(1, round(fraction * steps)))
    if name == "TQC":
        values["drop"] = min(values["drop"], values["quantiles"] - 1)
    return {**values, **constants}


SPACES = {name: partial(_suggest, name) for name in _RANGES}
