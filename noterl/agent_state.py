"""The state of an agent as a tree, and the document a file holds.

Owns: what is saved, and that a state that does not fit changes nothing. Weights and optimizer slots lie in Keras's layout, so that a file
knows no backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from noterl import backends, envs, networks, optimizers, registry, saving

if TYPE_CHECKING:
    from noterl.agent import Agent

_COUNTERS = ("steps", "updates", "episodes", "episodes_begun")


def get_state(agent: Agent, *, replay: bool) -> dict[str, Any]:
    """Return everything that training depends on."""
    layout = _layout(agent)
    lanes = agent.lanes.get_state() if agent.lanes is not None else agent._restored.get("lanes")
    return {
        "variables": {name: networks.get_weights(network) for name, network in agent.networks().items()},
        "hyperparameters": {name: float(value) for name, value in agent.hyperparameters.items()},
        "optimizers": {name: optimizers.get_state(agent.optimizers[name], layout) for name in agent.optimizer_names},
        "counters": {name: getattr(agent, name) for name in _COUNTERS},
        "loss": agent.loss_mean.get_state(),
        "generators": agent.generators.get_state(),
        "policy": agent.policy.get_state(),
        "replay": agent.replay.get_state() if replay else None,
        "lanes": lanes,
        "callbacks": agent._callbacks.get_state() or agent._restored.get("callbacks", {}),
    }


def set_state(agent: Agent, state: dict[str, Any]) -> None:
    """Take what `get_state` returned; a state that does not fit is refused before anything is changed."""
    found = agent.networks()
    _check_weights(found, state["variables"])
    if set(state["hyperparameters"]) != set(agent.hyperparameters):
        raise ValueError(
            f"the state holds the hyperparameters {sorted(state['hyperparameters'])}, the agent has "
            f"{sorted(agent.hyperparameters)}"
        )
    if set(state["optimizers"]) != set(agent.optimizer_names):
        raise ValueError(f"the state holds the optimizers {sorted(state['optimizers'])}, the agent has {agent.optimizer_names}")
    layout = _layout(agent)
    for name in agent.optimizer_names:
        optimizers.check_state(agent.optimizers[name], state["optimizers"][name], layout)
    if state["replay"] is not None:
        agent.replay.set_state(state["replay"])  # checks before it changes anything
    for name in agent.optimizer_names:
        optimizers.set_state(agent.optimizers[name], state["optimizers"][name], layout)
    for name, network in found.items():
        networks.set_weights(network, state["variables"][name])
    for name, value in state["hyperparameters"].items():
        agent.hyperparameters[name].assign(value)
    for name in _COUNTERS:
        setattr(agent, name, state["counters"][name])
    agent.loss_mean.set_state(state["loss"])
    agent.policy.set_state(state["policy"])
    agent.generators.set_state(state["generators"])
    agent.policy.generator = agent.generators("exploration")
    agent._drop_lanes()
    agent._callbacks = type(agent._callbacks)()
    agent._restored = {"lanes": state["lanes"], "callbacks": state["callbacks"]}
    agent.actor.stale = True


def document(agent: Agent, *, replay: bool) -> dict[str, Any]:
    """Return what a file holds: how to build the agent, and its state."""
    config = {**agent.get_config(), "env": None}
    arguments = dict(agent._setup.arguments)
    if "optimizer" in arguments:
        chosen = {name: agent.optimizers[name] for name in agent.optimizer_names}
        arguments["optimizer"] = {
            name: optimizers.plain(optimizer) if isinstance(optimizer, keras.optimizers.Optimizer) else optimizer
            for name, optimizer in chosen.items()
        }
    return {
        "class": type(agent).__name__,
        "environment": agent.source.describe(),
        "config": saving.encode(config, opaque=True),
        "compile": saving.encode(arguments, opaque=True),
        "state": get_state(agent, replay=replay),
    }


def build(file: dict[str, Any], custom_objects: dict[str, type] | None) -> Agent:
    """Build the agent that a document describes, with classes from `custom_objects` and the registry alone."""
    _check_document(file)
    kind = registry.lookup(file["class"], custom_objects)
    from noterl.agent import Agent

    if not (isinstance(kind, type) and issubclass(kind, Agent)):
        raise ValueError(f"the file names {file['class']!r} as its agent, which is no noterl.Agent")
    config = saving.decode(file["config"], custom_objects)
    config["env"] = envs.EnvSource.from_description(file["environment"])
    agent = kind(**config)
    agent.compile(**saving.decode(file["compile"], custom_objects))
    return agent


def restore(agent: Agent, file: dict[str, Any]) -> None:
    """Bring an agent that a script has built to the state in a document."""
    _check_document(file)
    if file["class"] != type(agent).__name__:
        raise ValueError(f"the file holds an agent of the class {file['class']}, not {type(agent).__name__}")
    agent._ensure_compiled()
    agent.build()
    set_state(agent, file["state"])


def weights(agent: Agent) -> dict[str, np.ndarray]:
    """Return the networks' weights by "<network>/<position>"."""
    return {
        f"{name}/{position:03d}": weight
        for name, network in agent.networks().items()
        for position, weight in enumerate(networks.get_weights(network))
    }


def set_weights(agent: Agent, arrays: dict[str, np.ndarray]) -> None:
    """Take what `weights` returned."""
    expected = weights(agent)
    received = {name: array.shape for name, array in arrays.items()}
    if received != {name: array.shape for name, array in expected.items()}:
        raise ValueError(f"the file's weights do not fit the agent: it holds {received}")
    for name, network in agent.networks().items():
        networks.set_weights(network, [arrays[key] for key in expected if key.rpartition("/")[0] == name])
    agent.mark_stale()


def describe(agent: Agent) -> str:
    """Return the summary that `Agent.summary` prints."""
    lines = [
        f"{type(agent).__name__}: {agent.observation_space} -> {agent.action_space}",
        f"backend {backends.choose()} on {backends.current().device_name()}; "
        f"acting in {'NumPy' if agent.actor.in_numpy else 'the compiled forward pass'}",
    ]
    for name, network in agent.networks().items():
        held = networks.variables(network)
        count = sum(int(np.prod(variable.shape)) for variable in held)
        shapes = " ".join("x".join(map(str, variable.shape)) or "scalar" for variable in held)
        lines.append(f"  {name}: {type(network).__name__}, {count:,} values ({shapes})")
    for name in agent.optimizer_names:
        lines.append(f"  {name}: {type(agent.optimizers[name]).__name__}")
    memory = agent.replay
    lines.append(
        f"  replay: {len(memory):,} of {memory.capacity:,} transitions, {memory.nbytes / 2**20:,.1f} MiB allocated"
    )
    lines.append(f"  {agent.steps:,} steps, {agent.episodes:,} episodes, {agent.updates:,} updates")
    return "\n".join(lines)


def _layout(agent: Agent) -> Any:
    convert = getattr(backends.current(), "to_keras_layout", None)
    found = list(agent.networks().values())

    def layout(variables: Sequence[keras.Variable]) -> list:
        return [None] * len(variables) if convert is None else convert(variables, found)

    return layout


def _check_weights(found: dict[str, Any], saved: dict[str, Any]) -> None:
    if set(saved) != set(found):
        raise ValueError(f"the state holds the networks {sorted(saved)}, the agent has {sorted(found)}")
    for name, network in found.items():
        expected = [weight.shape for weight in networks.get_weights(network)]
        received = [weight.shape for weight in saved[name]]
        if expected != received:
            raise ValueError(f"the network {name!r} has weights of the shapes {expected}, the state holds {received}")


def _check_document(file: Any) -> None:
    expected = {"class", "environment", "config", "compile", "state"}
    if not isinstance(file, dict) or set(file) != expected or not isinstance(file["class"], str):
        raise saving.FileError("the file is one of noterl's, but does not hold an agent")
