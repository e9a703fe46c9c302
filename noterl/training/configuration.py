"""The settled configuration of an agent, with all defaults, for experiment trackers."""

from __future__ import annotations

import inspect
import reprlib
from typing import Any

from noterl import backends, networks
from noterl.backends import keras
from noterl.learning import optimizers
from noterl.registry import Configurable
from noterl.training.parts import Parts
from noterl.utils.checks import is_plain
from noterl.utils.keras_backend import optimizer_config

_SCHEDULED = ("batch_size", "learning_starts", "update_every", "updates")


def settled(parts: Parts) -> dict[str, Any]:
    """Return what determines a run, as numbers and strings by name.

    The arguments of the agent and of `compile` have the same names here. There are also the backend, the spaces, the
    shapes of each network's weights ("network/q") and the rules of each optimizer ("optimizer/beta_1").
    """
    algorithm = parts.algorithm
    settings = parts.settings
    spec = algorithm.spaces.source.spec
    values = {
        "agent": type(algorithm).__name__,
        **arguments(algorithm),
        "env": repr(algorithm.get_config().get("env")) if spec is None else spec.id,
        "seed": algorithm.generators.seed,
        "backend": backends.name(),
        "observation_space": str(algorithm.observation_space),
        "action_space": str(algorithm.action_space),
        **{f"network/{name}": _shapes(network) for name, network in algorithm.networks().items()},
    }
    for name, optimizer in parts.learner.optimizers.items():
        place = "optimizer" if len(algorithm.optimizer_names) == 1 else f"optimizer/{name}"
        values[place] = type(optimizer).__name__
        values |= {f"{place}/{rule}": value for rule, value in _rules(optimizer).items()}
    for name in ("policy", "noise", "replay"):
        values[name] = None if getattr(settings, name) is None else full_repr(getattr(settings, name))
    if settings.worker_explorers:
        # The agent has a list of policies or noises, so the entry names all of them.
        name = "noise" if settings.policy is None else "policy"
        values[name] = ", ".join(full_repr(explorer) for explorer in settings.worker_explorers)
    values |= _schedule(parts)
    for name in ("jit_compile", "precision", "steps_per_execution"):
        values[name] = getattr(settings, name)
    return {name: value if is_plain(value) else _short(value) for name, value in values.items()}


def arguments(value: Configurable) -> dict[str, Any]:
    """Return the constructor arguments of an object with all defaults, without `self`."""
    config = value.get_config()
    parameters = inspect.signature(type(value)).parameters
    values = {
        name: parameter.default
        for name, parameter in parameters.items()
        if name in config or parameter.default is not parameter.empty
    }
    values |= config
    for name in values:  # None may stand for an object that the constructor makes
        if values[name] is None and isinstance(getattr(value, name, None), Configurable):
            values[name] = getattr(value, name)
    return values


def full_repr(value: Any) -> str:
    """Return the call of the constructor with all defaults.

    Example:
    >>> from noterl.policies import LinearEpsGreedyPolicy
    >>> from noterl.training.configuration import full_repr
    >>> full_repr(LinearEpsGreedyPolicy(end=0.1))
    'LinearEpsGreedyPolicy(start=1.0, end=0.1, steps=10000)'
    """
    if not isinstance(value, Configurable):
        return repr(value)
    shown = ", ".join(f"{name}={full_repr(argument)}" for name, argument in arguments(value).items())
    return f"{type(value).__name__}({shown})"


def _short(value: Any) -> str:
    return full_repr(value) if isinstance(value, Configurable) else reprlib.repr(value)


def _shapes(network: Any) -> str:
    shapes = " ".join("x".join(map(str, variable.shape)) or "scalar" for variable in networks.weight_variables(network))
    return f"{type(network).__name__} {shapes}"


def _schedule(parts: Parts) -> dict[str, Any]:
    """Return the schedule of updates; for an agent that learns from rollouts, only the entries that have an effect."""
    schedule = parts.learner.schedule
    algorithm = parts.algorithm
    if algorithm.memory == "rollout":
        return {"batch_size": schedule.batch_size, "rollout_steps": algorithm.rollout_steps, "epochs": algorithm.epochs}
    every = schedule.hard_copy_every or schedule.hard_copy_updates
    target: dict[str, Any] = {"target_update": schedule.tau if schedule.polyak else every or None}
    if every:
        target["target_unit"] = "updates" if schedule.hard_copy_updates else "steps"
    return {**{name: getattr(schedule, name) for name in _SCHEDULED}, **target}


def _rules(optimizer: Any) -> dict[str, Any]:
    """Return the numbers of an optimizer by name; for a learning rate with a schedule, the schedule or its text."""
    if isinstance(optimizer, keras.optimizers.Optimizer):
        config = {name: value for name, value in optimizer_config(optimizer).items() if name != "name"}
    else:
        config = dict(getattr(optimizer, "defaults", {}))  # of torch
        config["learning_rate"] = config.pop("lr", None)
    schedule = optimizers.schedule_of(optimizer)
    if schedule is not None:
        config["learning_rate"] = schedule
    return {name: _number(value) for name, value in config.items() if value is not None}


def _number(value: Any) -> Any:
    if isinstance(value, keras.optimizers.schedules.LearningRateSchedule):
        return f"{type(value).__name__}({', '.join(f'{name}={part!r}' for name, part in value.get_config().items())})"
    return float(value) if isinstance(value, keras.Variable) else value
