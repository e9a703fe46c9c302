"""The state of an agent as a tree, and the document a file holds.

Owns: what is saved, and that a state that does not fit changes nothing. Weights and optimizer slots lie in Keras's
layout, so that a file knows no backend.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from noterl import backends, envs, networks, registry, saving
from noterl.collect.state import check_state as check_lanes
from noterl.learning import optimizers
from noterl.training import session as agent_lanes
from noterl.utils.checks import check_bool

if TYPE_CHECKING:
    from noterl.agent import Agent

_MOMENTS = "normalizers/"
_COUNTERS = ("steps", "updates", "episodes", "episodes_begun")


def get_state(agent: Agent, *, replay: bool) -> dict[str, Any]:
    """Return everything that training depends on."""
    lanes = agent.lanes.get_state() if agent.lanes is not None else agent._restored.get("lanes")
    return {
        **_core(agent),
        "replay": agent.replay.get_state() if replay and agent.replay is not None else None,
        "rollout": None if agent.on_policy is None else agent.on_policy.rollout.get_state(),
        "lanes": lanes,
        "callbacks": {**agent._restored.get("callbacks", {}), **agent._callbacks.get_state()},
    }


def _core(agent: Agent) -> dict[str, Any]:
    """Return the state but for the memory, the environments and the callbacks."""
    layout = _layout(agent)
    return {
        "variables": {name: networks.get_weights(network) for name, network in agent.networks().items()},
        "hyperparameters": {name: float(value) for name, value in agent.hyperparameters.items()},
        "optimizers": {name: optimizers.get_state(agent.optimizers[name], layout) for name in agent.optimizer_names},
        "counters": {name: getattr(agent, name) for name in _COUNTERS},
        "loss": agent.loss_mean.get_state(),
        "generators": agent.generators.get_state(),
        "explorer": agent.explorer.get_state(),
        "normalizers": None if agent.normalizers is None else agent.normalizers.get_state(),
        "polyak": agent.schedule.polyak,
    }


def set_state(agent: Agent, state: Any, *, malformed: type[ValueError] = ValueError) -> None:
    """Take what `get_state` returned.

    Raises:
        ValueError: if the state does not fit this agent; nothing is changed then.
        malformed: if it is no state of an agent at all; nothing is changed then.
    """
    try:
        _check(agent, state)
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError) as error:
        raise malformed(f"the state of the agent is malformed: {error!r}") from error
    before = _core(agent)
    try:
        _take_core(agent, state)
        _take_replay(agent, state)
    except BaseException as error:
        _take_core(agent, before)
        if isinstance(error, ValueError) or not isinstance(error, Exception):
            raise
        raise malformed(f"the state of the agent is malformed: {error!r}") from error
    agent_lanes.drop(agent)
    agent._callbacks = type(agent._callbacks)()
    agent._restored = {"lanes": state["lanes"], "callbacks": dict(state["callbacks"]), "source": None}
    agent.acting.stale = True


def _check(agent: Agent, state: Any) -> None:
    """Raise what `set_state` says, or what reading a malformed state raises; taking it may still find more."""
    _check_weights(agent.networks(), state["variables"])
    _check_names("hyperparameters", state["hyperparameters"], agent.hyperparameters)
    _check_names("optimizers", state["optimizers"], agent.optimizer_names)
    layout = _layout(agent)
    for name in agent.optimizer_names:
        optimizers.check_state(agent.optimizers[name], state["optimizers"][name], layout)
    if not all(type(value) is float for value in state["hyperparameters"].values()):
        raise TypeError(f"the hyperparameters are {state['hyperparameters']!r}")
    for name in _COUNTERS:
        if type(state["counters"][name]) is not int or state["counters"][name] < 0:
            raise TypeError(f"the counter {name} is {state['counters'][name]!r}")
    last, total, count = (state["loss"][name] for name in ("last", "sum", "count"))
    if not isinstance(last, float | None) or type(total) is not float or type(count) is not int or count < 0:
        raise TypeError(f"the mean loss is {state['loss']!r}")
    if type(state["polyak"]) is not bool or not isinstance(state["replay"], dict | None):
        raise TypeError("polyak is no bool, or replay no dict")
    _check_on_policy(agent, state)
    if not all(isinstance(known, dict) for known in state["callbacks"].values()):
        raise TypeError("the states of the callbacks are no dicts")
    if state["lanes"] is not None:
        check_lanes(state["lanes"], agent.source)


def _check_on_policy(agent: Agent, state: Any) -> None:
    if (state["normalizers"] is None) != (agent.normalizers is None):
        raise ValueError("the state normalises observations or rewards, or the agent does, but not both")
    if not isinstance(state["rollout"], dict | None) or (state["rollout"] is None) != (agent.on_policy is None):
        raise TypeError(f"the state of the rollout is {type(state['rollout']).__name__}")


def _take_core(agent: Agent, state: dict[str, Any]) -> None:
    layout = _layout(agent)
    for name in agent.optimizer_names:
        optimizers.set_state(agent.optimizers[name], state["optimizers"][name], layout)
    for name, network in agent.networks().items():
        networks.set_weights(network, state["variables"][name])
    # How the target moves is a setting, not a state: a coefficient means nothing where hard copies are made.
    settings = () if state["polyak"] == agent.schedule.polyak else ("tau",)
    for name, value in state["hyperparameters"].items():
        if name not in settings:
            agent.hyperparameters[name].restore(value)
    for name in _COUNTERS:
        setattr(agent, name, state["counters"][name])
    agent.loss_mean.set_state(state["loss"])
    agent.explorer.set_state(state["explorer"])
    if agent.normalizers is not None:
        agent.normalizers.set_state(state["normalizers"])
    agent.generators.set_state(state["generators"])
    agent.explorer.generator = agent.generators("exploration")


def _take_replay(agent: Agent, state: dict[str, Any]) -> None:
    if agent.on_policy is not None:
        agent.on_policy.rollout.set_state(state["rollout"])
    if agent.replay is None:
        return
    if state["replay"] is not None:
        agent.replay.set_state(state["replay"])
        return
    # The memory stays as it is, so the episodes in flight do not follow from what it holds.
    for lane in range(len(state["lanes"]["lanes"]) if state["lanes"] else 0):
        agent.replay.interrupt(lane)


def document(agent: Agent, *, replay: bool) -> dict[str, Any]:
    """Return what a file holds: how to build the agent, and its state.

    Raises:
        ValueError: if `replay` is no bool.
    """
    check_bool("replay", replay)
    config = agent.get_config()
    config.update({"env": None} if "env" in config else {})
    arguments = dict(agent._setup.arguments) if agent._setup else {}
    if "optimizer" in arguments:
        chosen = {name: agent.optimizers[name] for name in agent.optimizer_names}
        arguments["optimizer"] = {
            name: optimizers.plain(optimizer) if isinstance(optimizer, keras.optimizers.Optimizer) else optimizer
            for name, optimizer in chosen.items()
        }
    return {
        "class": type(agent).__name__,
        "environment": agent.source.describe(),
        "config": saving.Arguments(config),
        "compile": saving.Arguments(arguments),
        "state": get_state(agent, replay=replay),
    }


def build(file: dict[str, Any], custom_objects: dict[str, type] | None) -> Agent:
    """Build the agent that a document describes, with classes from `custom_objects` and the registry alone.

    Raises:
        ValueError: if `custom_objects` is no dict, or the document does not describe an agent.
    """
    if not isinstance(custom_objects, Mapping | None):
        raise ValueError(f"custom_objects must be a dict of classes by their names, or None, got {custom_objects!r}")
    _check_document(file)
    kind = registry.lookup(file["class"], custom_objects)
    from noterl.agent import Agent

    if not (isinstance(kind, type) and issubclass(kind, Agent)):
        raise ValueError(f"the file names {file['class']!r} as its agent, which is no noterl.Agent")
    config, arguments = (saving.build(file[name], custom_objects) for name in ("config", "compile"))
    if "env" in config:  # else it makes one itself
        config["env"] = envs.EnvSource.from_description(file["environment"])
    try:
        agent = kind.from_config(config)
        agent.compile(**arguments)
    except (ImportError, ValueError):
        raise
    except Exception as error:  # arguments out of a file may make any constructor fail, in any way
        raise saving.FileError(f"the file's arguments do not fit the class {file['class']}: {error!r}") from error
    return agent


def restore(agent: Agent, file: dict[str, Any]) -> None:
    """Bring an agent that a script has built to the state in a document."""
    _check_document(file)
    if file["class"] != type(agent).__name__:
        raise ValueError(f"the file holds an agent of the class {file['class']}, not {type(agent).__name__}")
    agent.build()
    set_state(agent, file["state"], malformed=saving.FileError)


def weights(agent: Agent) -> dict[str, np.ndarray]:
    """Return the networks' weights by "<network>/<position>", and by "normalizers/..." how their inputs are scaled."""
    found = {
        f"{name}/{position:03d}": weight
        for name, network in agent.networks().items()
        for position, weight in enumerate(networks.get_weights(network))
    }
    moments = {} if agent.normalizers is None else agent.normalizers.arrays()
    return {**found, **{f"{_MOMENTS}{name}": array for name, array in moments.items()}}


def set_weights(agent: Agent, arrays: dict[str, np.ndarray]) -> None:
    """Take what `weights` returned."""
    expected = weights(agent)
    received = {name: array.shape for name, array in arrays.items()}
    if received != {name: array.shape for name, array in expected.items()}:
        raise ValueError(f"the file's weights do not fit the agent: it holds {received}")
    if agent.normalizers is not None:
        moments = {name: array for name, array in arrays.items() if name.startswith(_MOMENTS)}
        agent.normalizers.set_arrays({name.removeprefix(_MOMENTS): array for name, array in moments.items()})
    for name, network in agent.networks().items():
        networks.set_weights(network, [arrays[key] for key in expected if key.rpartition("/")[0] == name])
    agent.mark_stale()


def describe(agent: Agent) -> str:
    """Return the summary that `Agent.summary` prints."""
    lines = [
        f"{type(agent).__name__}: {agent.observation_space} -> {agent.action_space}",
        f"backend {backends.choose()} on {backends.current().device_name()}; "
        f"acting in {'NumPy' if agent.acting.in_numpy else 'the compiled forward pass'}",
    ]
    for name, network in agent.networks().items():
        held = networks.variables(network)
        count = sum(int(np.prod(variable.shape)) for variable in held)
        shapes = " ".join("x".join(map(str, variable.shape)) or "scalar" for variable in held)
        lines.append(f"  {name}: {type(network).__name__}, {count:,} values ({shapes})")
    for name in agent.optimizer_names:
        lines.append(f"  {name}: {type(agent.optimizers[name]).__name__}")
    if agent.normalizers is not None:
        lines.append(f"  normalises {agent.normalizers}")
    lines.append(f"  {_described_memory(agent)}")
    lines.append(f"  {agent.steps:,} steps, {agent.episodes:,} episodes, {agent.updates:,} updates")
    return "\n".join(lines)


def _described_memory(agent: Agent) -> str:
    rollouts = f"rollouts of {agent.rollout_steps:,} steps in each environment, {agent.epochs:,} epochs on each"
    if agent.replay is None:
        return rollouts
    memory = agent.replay
    held = f"replay: {len(memory):,} of {memory.capacity:,} transitions, {memory.nbytes / 2**20:,.1f} MiB allocated"
    return held if agent.on_policy is None else f"{rollouts}, kept in a {held}"


def _layout(agent: Agent) -> optimizers.Layout:
    convert = getattr(backends.current(), "to_keras_layout", None)
    found = list(agent.networks().values())

    def layout(variables: Sequence[keras.Variable]) -> list[tuple[int, ...] | None]:
        return [None] * len(variables) if convert is None else convert(variables, found)

    return layout


def _check_names(what: str, saved: Any, expected: Iterable[str]) -> None:
    if sorted(saved) != sorted(expected):
        raise ValueError(f"the state holds the {what} {sorted(saved)}, the agent has {sorted(expected)}")


def _check_weights(found: dict[str, Any], saved: dict[str, Any]) -> None:
    _check_names("networks", saved, found)
    for name, network in found.items():
        expected = [weight.shape for weight in networks.get_weights(network)]
        received = [weight.shape for weight in saved[name]]
        if expected != received:
            raise ValueError(f"the network {name!r} has weights of the shapes {expected}, the state holds {received}")


def _check_document(file: Any) -> None:
    kinds = {"class": str, "environment": dict, "config": dict, "compile": dict, "state": dict}
    if not isinstance(file, dict) or file.keys() != kinds.keys():
        raise saving.FileError("the file is one of noterl's, but does not hold an agent")
    for name, kind in kinds.items():
        if not isinstance(file[name], kind):
            raise saving.FileError(f"what the file says of its agent is malformed: {name} is no {kind.__name__}")
