"""What an agent is made of: finding its networks, and building its optimizers.

Owns: which attributes of an agent are networks; the one run of an `update` of the user's own, on zeros, that tells
which variables each optimizer is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from noterl import backends, envs, networks
from noterl.heads import Head
from noterl.hyperparameters import Hyperparameter
from noterl.learning import optimizers
from noterl.learning import update as updating
from noterl.learning.rollout_learner import prepared
from noterl.replay.columns import action_layout
from noterl.types import Batch

import keras  # isort: skip  (noterl.backends has chosen by now)

if TYPE_CHECKING:
    from noterl.algorithm import Algorithm


# Attributes of ours that hold variables, or what the user gave: networks are what the agent itself keeps.
_NOT_NETWORKS = {
    "_config",
    "_restored",
    "_visited",
    "_trained",
    "_groups",
    "_minimized",
    "_discovered",
    "_returned",
    "backend_state",
    "hyperparameters",
    "optimizers",
    "policy",
    "noise",
    "head",
    "replay",
    "on_policy",
    "source",
    "lanes",
    "_team",
    "history",
    "all_variables",
}


# Names that a network is likely to be given, which mean something else.
_TAKEN = {"policy", "noise", "head", "replay", "optimizers", "networks", "memory", "schedule"}


def checked_spaces(agent: Algorithm) -> tuple[Any, Any]:
    """Return the observation and the action space of the agent's environment, Tuples for several agents.

    Raises:
        ValueError: naming the space, if it is of a kind the algorithm does not take, or there are not as many agents as
            it takes.
    """
    source, name = agent.source, type(agent).__name__
    check = partial(envs.check_spaces, observations=agent.observation_spaces, actions=agent.action_spaces)
    if source.team is None:
        if agent.multi_agent:
            raise ValueError(
                f"env: {name} takes an environment of several agents (PettingZoo's parallel API, or lists of "
                f"observations, actions and rewards), got one of one agent: {source.observation_space}"
            )
        check(name, source.observation_space, source.action_space)
        return source.observation_space, source.action_space
    found = source.team.observation_space, source.team.action_space
    if not agent.multi_agent:
        check(name, *found, hint="MADDPG learns with several agents")
    for who, *both in zip(source.team.names, *found, strict=True):
        check(f"{name} for the agent {who!r}", *both, bounded_actions=True)
    return found


def build_store(agent: Algorithm) -> None:
    """Allocate the memory, for as many agents as there are."""
    source = agent.source
    several = {} if source.team is None else {"agents": len(source.team)}
    agent.store.build(source.observation_space, source.action_space, **several)


def refuse_lost_network(name: str, value: Any) -> None:
    """Raise a ValueError for a network under a name by which an agent keeps something else, and `compile` loses it."""
    if name in _TAKEN and find_networks({"it": value}):
        raise ValueError(f"{name} of an agent is no place for a network: name it otherwise, such as {name}_net")


def find_networks(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the networks, variables and seed generators among an agent's attributes, by name."""
    found: dict[str, Any] = {}
    for name, value in attributes.items():
        if name not in _NOT_NETWORKS:
            _collect(name, value, found)
    return found


def _collect(name: str, value: Any, found: dict[str, Any]) -> None:
    if isinstance(value, Hyperparameter):
        return
    if networks.is_network(value):
        found[name] = value
    elif isinstance(value, list | tuple):
        for position, part in enumerate(value):
            _collect(f"{name}/{position}", part, found)
    elif isinstance(value, dict):
        for key, part in value.items():
            _collect(f"{name}/{key}", part, found)


def bound_head(agent: Algorithm) -> Head:
    """Return the agent's head, bound to its actions.

    Raises:
        ValueError: if its class does not say what an agent has to say.
    """
    name, head = type(agent).__name__, getattr(agent, "head", None)
    if "action_space" not in vars(agent):
        raise ValueError(f"{name}.__init__ must call super().__init__(env, seed=seed) before anything else")
    if not isinstance(head, Head):
        raise ValueError(f"head of {name} must be one of noterl.heads, such as noterl.heads.Q(), got {head!r}")
    if agent.memory not in ("replay", "rollout"):
        raise ValueError(f"memory of {name} must be 'replay' or 'rollout', got {agent.memory!r}")
    if agent.multi_agent and agent.memory != "replay":
        raise ValueError(f"memory of {name} must be 'replay' for several agents, got {agent.memory!r}")
    return head.bind(agent.action_space)


def build_optimizers(agent: Algorithm) -> None:
    """Build each optimizer for what it trains; an `update` of the user's own is rehearsed on zeros, and undone.

    Raises:
        ValueError: if there is nothing to train, or an optimizer that `update` never names.
    """
    from noterl.algorithm import Algorithm

    if type(agent).update is Algorithm.update:
        name, trained = agent.optimizer_names[0], agent.trained_variables()
        if not trained:
            raise ValueError(f"{type(agent).__name__} has no network to train: keep it as an attribute of the agent")
        agent._trained = _meant_by(agent.optimizers[name], agent.networks()) or trained
        agent.optimizers[name] = optimizers.build(agent.optimizers[name], agent._trained)
        return
    found = unique(variable for network in agent.networks().values() for variable in networks.variables(network))
    saved = [backends.current().fetch(variable) for variable in found]
    discovered: dict[str, list[keras.Variable]] = {}
    returned: list[updating.Returned] = []
    agent._discovered = discovered

    def updates() -> None:
        shown = zeros_of(agent, agent.view.space.shape, agent.observation_dtype)
        agent.head.check(tuple(agent.outputs(shown[:, 0] if agent.on_policy else shown).shape), agent.action_space)
        for index in range(agent.update_period):
            logs, feedback = updating.updated(agent, zeros(agent), index)
            strange = [name for name in logs if not isinstance(name, str)]
            if strange:
                raise ValueError(
                    f"update must return logs whose names are str, {type(agent).__name__}'s has {strange!r}"
                )
            returned.append(updating.Returned(frozenset({*logs, "loss"}), frozenset(feedback or ())))

    try:
        with naming_network(agent):
            backends.current().rehearse(agent, variables(agent), updates)
    finally:
        agent._discovered = None
        for variable, value in zip(found, saved, strict=True):
            variable.assign(value)
    agent._returned = returned[-agent.update_period :]  # an `update` may be rehearsed more than once
    unused = [name for name in agent.optimizer_names if name not in discovered]
    if unused:
        raise ValueError(f"update never calls minimize with the optimizer {', '.join(unused)}")
    for name, trained in discovered.items():
        agent.optimizers[name] = optimizers.build(agent.optimizers[name], unique(trained))


@contextmanager
def naming_network(agent: Algorithm) -> Iterator[None]:
    """Say of what fails with a built-in agent's networks that the argument `network` gave one, if it did."""
    try:
        yield
    except Exception as error:
        name = type(agent).__name__
        if not type(agent).__module__.startswith("noterl.") or agent.get_config().get("network") is None:
            raise
        raise ValueError(f"network does not fit {name} on {agent.observation_space}: {error}") from error


def _meant_by(optimizer: Any, found: dict[str, Any]) -> list[keras.Variable]:
    """Return what a torch optimizer was made to train: the networks it holds, so that a target need not be frozen."""
    groups = [networks.trainable_variables(network) for network in found.values()]
    return unique(variable for group in groups if optimizers.held_of(optimizer, group) for variable in group)


def variables(agent: Algorithm) -> list[keras.Variable]:
    """Return every variable of an agent, each once: of its networks, its hyperparameters and its optimizers."""
    found = [variable for network in agent.networks().values() for variable in networks.variables(network)]
    found += agent.hyperparameters.values()
    found += [variable for name in agent.optimizer_names for variable in optimizers.variables(agent.optimizers[name])]
    return unique(found)


def reseed(agent: Algorithm, seed: int | None) -> None:
    """Start every generator of a built agent afresh: its own, and those that Keras's layers draw from."""
    agent.generators.reseed(seed)
    agent.explorer.generator = agent.generators("exploration")
    for variable in agent.all_variables:
        if variable.path.endswith("seed_generator_state"):
            variable.assign(np.array([agent.generators("layers").integers(2**31), 0], variable.dtype))


def unique(variables: Any) -> list[keras.Variable]:
    """Return the variables in order, each once."""
    return list({id(variable): variable for variable in variables}.values())


def zeros_of(agent: Algorithm, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return a tensor of zeros of two rows, for an agent that learns from rollouts two steps of one lane."""
    rows = (2,) if agent.on_policy is None else (2, 1)
    return keras.ops.convert_to_tensor(np.zeros((*rows, *shape), dtype))


def zeros(agent: Algorithm) -> Batch:
    """Return a batch of zeros as tensors, two rows; for an agent that learns from rollouts a prepared one."""
    tensor = partial(zeros_of, agent)
    observation, number = tensor(agent.view.space.shape, agent.observation_dtype), tensor((), np.float32)
    action = action_layout(agent.source.action_space)
    action = tensor(action.shape, action.batch_dtype)
    extra = {name: tensor(shape, np.float32) for name, (shape, _) in agent.random_spec.items()}
    if agent.source.team is not None:
        each = tensor((len(agent.source.team),), np.float32)
        extra.update(present=each, remaining=each)
        return Batch(observation, action, each, observation, each, number, tensor((), np.int32), extra)
    if agent.on_policy is not None:
        extra.update(continues=number, ended=number)
    batch = Batch(observation, action, number, observation, number, number, tensor((), np.int32), extra)
    return batch if agent.on_policy is None else prepared(agent, batch)
