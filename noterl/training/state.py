"""The state of an agent as nested dicts, and the document that a file holds.

Weights and optimizer slots have Keras's layout, so a file does not depend on the backend.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

from noterl import backends, networks, saving
from noterl.algorithm import Algorithm
from noterl.backends import keras
from noterl.collect.checks import check_state as check_lanes
from noterl.explorer import Explorer
from noterl.learning import optimizers
from noterl.learning.info_fields import remove_info, set_info_spec, store_info
from noterl.learning.learner import Learner
from noterl.networks.access import native_modules
from noterl.networks.config import stored
from noterl.training.parts import Parts
from noterl.utils.checks import check_bool
from noterl.utils.masks import ACTION_MASK, mask_spec
from noterl.utils.schema import Array, DictOf, Int, ListOf, check

_NORMALIZERS = "normalizers/"
_COUNTERS = ("steps", "updates", "episodes", "episodes_begun", "epochs", "epoch_updates", "data_updates")


def get_state(parts: Parts, *, replay: bool) -> dict[str, Any]:
    """Return everything that training depends on; during a `fit`, this is called between two steps.

    Worker processes complete their phase first, and the generators of the agent receive the workers' states.

    Args:
        parts: the parts of the agent.
        replay: whether the contents of the replay memory are included.
    """
    learner = parts.learner
    lanes = parts.session.lanes_state()  # first, because worker processes return the state of generators with it
    return {
        **_core_state(parts),
        "masked": ACTION_MASK in learner.info_spec,
        "replay": learner.replay.get_state() if replay and learner.replay is not None else None,
        "dataset": parts.saved_data if parts.data is None else parts.data.get_state(replay=replay),
        "rollout": None if learner.rollout is None else learner.rollout.get_state(),
        "acting_policy": learner.acting_policy,
        "lanes": lanes,
        # With restored states that no callback has received.
        "callbacks": {**parts.session.restored_callbacks, **parts.session.callbacks.get_state()},
    }


def _core_state(parts: Parts, *, allocate: bool = True) -> dict[str, Any]:
    """Return the state without the memory, the environments and the callbacks.

    If `allocate` is False, the states of optimizers without slots are incomplete: only `_set_core_state` accepts these.
    """
    algorithm = parts.algorithm
    learner = parts.learner
    layout = _layout(algorithm)
    normalizers = algorithm.spaces.normalizers
    return {
        "variables": {name: networks.get_weights(network) for name, network in algorithm.networks().items()},
        # Not below "variables", because modules of torch have no such states.
        "seeds": {
            name: [backends.current().fetch(seed) for seed in networks.seed_states(network)]
            for name, network in algorithm.networks().items()
        },
        "hyperparameters": {name: float(value) for name, value in algorithm.hyperparameters.items()},
        "optimizers": {
            name: optimizer.get_state(layout, allocate=allocate) for name, optimizer in learner.deferred.items()
        },
        "counters": {name: getattr(parts.counters, name) for name in _COUNTERS},
        "loss": parts.session.metrics.get_state(),
        "generators": algorithm.generators.get_state(),
        "explorer": parts.actor.explorer.get_state(),
        "worker_explorers": [_without_generator(explorer) for explorer in parts.actor.worker_explorers],
        "normalizers": None if normalizers is None else normalizers.get_state(),
        "polyak": learner.schedule.polyak,
        "schedule": learner.schedule.changes(),
        "reward_model": None if learner.reward_model is None else learner.reward_model.get_state(allocate=allocate),
    }


def _without_generator(explorer: Explorer) -> dict[str, Any]:
    """Return the state of a worker's policy or noise, whose copy in the worker has another generator."""
    return {name: value for name, value in explorer.get_state().items() if name != "generator"}


# The parts of the core state that each process of a run has itself.
_OF_PROCESS = ("generators", "explorer", "worker_explorers", "loss")


def shared_state(parts: Parts) -> dict[str, Any]:
    """Return what is equal in all processes of a run, with the seed and the generators of the global batch."""
    state = {name: value for name, value in _core_state(parts).items() if name not in _OF_PROCESS}
    return {**state, "generators": parts.algorithm.generators.shared_state()}


def set_shared_state(parts: Parts, state: dict[str, Any], rank: int) -> None:
    """Restore the `shared_state` of the process with rank 0 in another process."""
    core = _core_state(parts)
    # Episodes of this process continue with their numbers, so it must not use one of them again.
    begun = max(core["counters"]["episodes_begun"], state["counters"]["episodes_begun"])
    counters = {**state["counters"], "episodes_begun": begun}
    _set_core_state(parts, {**core, **state, "counters": counters, **{name: core[name] for name in _OF_PROCESS}})
    parts.algorithm.generators.join(state["generators"], rank, parts.counters.steps)
    parts.actor.mark_stale()


def set_state(parts: Parts, state: Any) -> None:
    """Restore a state that `get_state` returned; a learner that is not built keeps the parts for `build`.

    Raises:
        ValueError: if the state is malformed or does not fit this agent; the agent is then unchanged.
    """
    before = _core_state(parts, allocate=False)  # restored if the new state turns out not to fit
    state = {"dataset": None, "seeds": {}, **state} if isinstance(state, Mapping) else state
    learner = parts.learner
    memories = _memories(learner)
    info_spec = learner.info_spec
    try:
        _check(parts, state)
        _set_core_state(parts, state)
        # `fit` adds masks if environments report some.
        if state["masked"] and ACTION_MASK not in learner.info_spec:
            store_info(learner, mask_spec(parts.algorithm.action_space))
        elif not state["masked"] and ACTION_MASK in learner.info_spec:
            remove_info(learner, [ACTION_MASK])
        _set_memory_state(learner, state)
    except BaseException as error:
        if learner.info_spec is not info_spec:
            for part, attributes in memories:
                vars(part).clear()
                vars(part).update(attributes)
            set_info_spec(learner, info_spec)
        _set_core_state(parts, before)
        # The contents of a file may raise any error; callers expect a ValueError.
        if isinstance(error, ValueError) or not isinstance(error, Exception):
            raise
        raise ValueError(f"the state of the agent is malformed: {error!r}") from error
    parts.data = None
    parts.saved_data = state["dataset"]
    parts.session.restore(state["lanes"], state["callbacks"])
    parts.actor.mark_stale()


def _check(parts: Parts, state: Any) -> None:
    """Raise a ValueError if the state does not fit, as far as this can be checked before anything changes."""
    algorithm = parts.algorithm
    learner = parts.learner
    model = learner.reward_model
    model_shapes = [] if model is None else [Array(np.float32, variable.shape) for variable in model.variables]
    schema = {
        "variables": {
            name: [Array(shape=weight.shape) for weight in networks.get_weights(network)]
            for name, network in algorithm.networks().items()
        },
        "seeds": DictOf(ListOf(Array(shape=(2,)))),
        "hyperparameters": dict.fromkeys(algorithm.hyperparameters, float),
        "optimizers": dict.fromkeys(learner.deferred, dict),
        # Files of older versions have no counts of epochs.
        "counters": (dict.fromkeys(_COUNTERS, Int(0, 2**63 - 1)), dict.fromkeys(_COUNTERS[:4], Int(0, 2**63 - 1))),
        "loss": {"last": DictOf(float), "sums": DictOf([float, Int(1)])},
        "generators": dict,
        "explorer": dict,
        "worker_explorers": [dict] * len(parts.actor.worker_explorers),
        "normalizers": None if algorithm.spaces.normalizers is None else dict,
        "polyak": bool,
        "schedule": DictOf((int, str)),
        "reward_model": None if model is None else {"variables": model_shapes, "optimizer": dict},
        "masked": bool,
        "replay": (dict, None),
        "dataset": (None, {"identity": str, "sampler": (dict, None)}),
        "rollout": None if learner.rollout is None else dict,
        "acting_policy": None if learner.rollout is None else (str, None),
        "lanes": (dict, None),
        "callbacks": DictOf(dict),
    }
    check(state, schema)
    layout = _layout(algorithm)
    for name, optimizer in learner.deferred.items():
        optimizer.check_state(state["optimizers"][name], layout)
    if model is not None:
        model.check_state(state["reward_model"])
    # The lanes must have the fields that the agent will store after the restore, with or without masks.
    if state["lanes"] is not None:
        extra = {name: (shape, np.float32) for name, shape in learner.actor_fields.items()}
        masks = mask_spec(algorithm.action_space) if state["masked"] else {}
        spec = {name: entry for name, entry in learner.info_spec.items() if name != ACTION_MASK}
        further = parts.actor.start, algorithm.head.size
        check_lanes(state["lanes"], algorithm.spaces.source, extra, {**spec, **masks}, *further)


def _set_core_state(parts: Parts, state: dict[str, Any]) -> None:
    """Restore a state of `_core_state`; also called with the old state if a later part of a new state does not fit."""
    algorithm = parts.algorithm
    learner = parts.learner
    layout = _layout(algorithm)
    for name, optimizer in learner.deferred.items():
        optimizer.set_state(state["optimizers"][name], layout)
    for name, network in algorithm.networks().items():
        networks.set_weights(network, state["variables"][name])
        # A file of another backend may have other generators, or integers of another size.
        for variable, seed in zip(networks.seed_states(network), state["seeds"].get(name, []), strict=False):
            variable.assign(seed.astype(variable.dtype))
    if learner.reward_model is not None:
        learner.reward_model.set_state(state["reward_model"])
    learner.schedule.set_changes(state["schedule"])
    # Polyak averaging is a setting, not a state: its coefficient does not apply to an agent with hard copies.
    not_restored = () if state["polyak"] == learner.schedule.polyak else ("tau",)
    for name, value in state["hyperparameters"].items():
        if name not in not_restored:
            algorithm.hyperparameters[name].restore(value)
    for name in _COUNTERS:
        setattr(parts.counters, name, state["counters"].get(name, 0))
    parts.session.metrics.set_state(state["loss"])
    parts.actor.explorer.set_state(state["explorer"])
    for explorer, saved in zip(parts.actor.worker_explorers, state["worker_explorers"], strict=True):
        explorer.set_state({**saved, "generator": explorer.generator.bit_generator.state})
    if algorithm.spaces.normalizers is not None:
        algorithm.spaces.normalizers.set_state(state["normalizers"])
    algorithm.generators.set_state(state["generators"])
    # The explorer draws from a generator of the agent.
    parts.actor.explorer.generator = algorithm.generators("exploration")


def _memories(learner: Learner) -> list[tuple[Any, dict[str, Any]]]:
    """Return the objects that hold fields of `info` or are allocated with these, and copies of all attributes."""
    replay = learner.replay
    holders: list[Any] = [learner.rollout]
    if replay is not None:
        holders += [replay, replay.sampler, replay.relabel, replay.storage if replay.nbytes else None]
    return [(part, dict(vars(part))) for part in holders if part is not None]


def _set_memory_state(learner: Learner, state: dict[str, Any]) -> None:
    """Restore the rollout and the replay memory; if an error is raised, both are unchanged."""
    rollout = learner.rollout
    before = {} if rollout is None else dict(vars(rollout))  # restoring replaces the arrays
    try:
        if rollout is not None:
            rollout.set_state(state["rollout"])
        if learner.replay is not None and state["replay"] is not None:
            learner.replay.restore_later(state["replay"])
    except BaseException:
        if rollout is not None:
            vars(rollout).update(before)
        raise
    learner.acting_policy = state["acting_policy"]
    if learner.replay is None or state["replay"] is not None:
        return
    # The memory keeps its contents, which the restored episodes in flight do not continue.
    for lane in range(len(state["lanes"]["lanes"]) if state["lanes"] else 0):
        learner.replay.interrupt(lane)


def document(parts: Parts, *, replay: bool) -> dict[str, Any]:
    """Return the document that a file holds: how to build the agent, and the agent's state.

    Raises:
        ValueError: if `replay` is not a bool.
    """
    check_bool("replay", replay)
    algorithm = parts.algorithm
    config = stored({name: None if name == "env" else value for name, value in algorithm.get_config().items()})
    arguments = dict(parts.settings.arguments)
    if replay and parts.learner.replay is not None:  # the default capacity depends on the machine
        arguments["replay"] = parts.learner.replay
    if "optimizer" in arguments:
        arguments["optimizer"] = {
            name: optimizers.copy_without_state(optimizer)
            if isinstance(optimizer, keras.optimizers.Optimizer)
            else optimizer
            for name, optimizer in parts.learner.optimizers.items()
        }
    return {
        "class": type(algorithm).__name__,
        "environment": algorithm.spaces.source.describe(),
        "config": saving.Arguments(config),
        "compile": saving.Arguments(dict(sorted(arguments.items()))),  # a loaded agent gives the same file
        "threads": update_threads(parts),
        "state": get_state(parts, replay=replay),
    }


def copied_state(parts: Parts) -> dict[str, Any]:
    """Return the whole state, which shares no arrays with the agent."""
    state = get_state(parts, replay=True)
    return {**state, "replay": copy.deepcopy(state["replay"])}  # the memory returns views of its arrays


def replace_state(parts: Parts, state: dict[str, Any]) -> None:
    """Restore a state that `copied_state` returned; a learner that is not built keeps arrays, so it gets a copy.

    Raises:
        RuntimeError: while `fit` is running.
        ValueError: if the state does not fit; the agent is then unchanged.
    """
    parts.session.refuse_while_training("set_state")
    parts.declared()
    with parts.session.guard.closed():
        set_state(parts, state if parts.learner.is_built else copy.deepcopy(state))


def set_document(parts: Parts, document: Any) -> None:
    """Restore a document that `noterl.saving.read` returned; `Agent.restore` documents the errors."""
    parts.session.refuse_while_training("set_document")
    check_document(document)
    name = type(parts.algorithm).__name__
    if document["class"] != name:
        raise ValueError(f"the file holds an agent of the class {document['class']}, not {name}")
    parts.declared()
    with parts.session.guard.closed():
        set_state(parts, document["state"])


def check_document(file: Any) -> None:
    """Check the entries of a document, but not the contents.

    Raises:
        noterl.saving.FileError: if `file` is not the document of an agent.
    """
    schema = {"class": str, "environment": dict, "config": dict, "compile": dict, "threads": Int(0), "state": dict}
    try:
        check(file, schema, "the agent")
    except ValueError as error:
        raise saving.FileError(f"the file does not hold an agent of noterl: {error}") from error


def get_weights(algorithm: Algorithm) -> dict[str, np.ndarray]:
    """Return the weights by "<network>/<position>", and the statistics of normalizers by "normalizers/..."."""
    weights = {
        f"{name}/{position:03d}": weight
        for name, network in algorithm.networks().items()
        for position, weight in enumerate(networks.get_weights(network))
    }
    normalizers = algorithm.spaces.normalizers
    statistics = {} if normalizers is None else normalizers.arrays()
    return {**weights, **{f"{_NORMALIZERS}{name}": array for name, array in statistics.items()}}


def shared_weights(algorithm: Algorithm) -> dict[str, str]:
    """Return the names of weights that an earlier network also holds, with the names in the first network."""
    firsts: dict[int, str] = {}
    shared = {}
    for name, network in algorithm.networks().items():
        for position, variable in enumerate(networks.weight_variables(network)):
            key = f"{name}/{position:03d}"
            first = firsts.setdefault(id(variable), key)
            if first != key:
                shared[key] = first
    return shared


def without_shared(algorithm: Algorithm, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return weights of `get_weights`, in which weights that networks share appear once."""
    shared = shared_weights(algorithm)
    return {name: array for name, array in arrays.items() if name not in shared}


def largest_weights(algorithm: Algorithm) -> int:
    """Return the most bytes of a file with the weights: float64, with names and the metadata of other programs."""
    return 2**20 + sum(8 * array.size + 512 for array in get_weights(algorithm).values())


def set_weights(algorithm: Algorithm, arrays: Mapping[str, np.ndarray], *, allow_nonfinite: bool = False) -> None:
    """Set weights that `get_weights` returned.

    Raises:
        ValueError: if the arrays do not fit, or one of them is not finite and `allow_nonfinite` is False; the agent is
            then unchanged.
    """
    check_bool("allow_nonfinite", allow_nonfinite)
    expected = get_weights(algorithm)
    check(dict(arrays), {name: Array(shape=array.shape) for name, array in expected.items()}, "weights")
    # All arrays are checked before anything changes.
    for name, array in arrays.items():
        if array.dtype.kind != expected[name].dtype.kind:
            raise ValueError(f"weights: {name!r} must be of {expected[name].dtype}, got {array.dtype}")
        if not allow_nonfinite and array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(f"weights: {name!r} is not finite; set allow_nonfinite=True to load it nevertheless")
    if algorithm.spaces.normalizers is not None:
        names = [name for name in expected if name.startswith(_NORMALIZERS)]
        algorithm.spaces.normalizers.set_arrays({name.removeprefix(_NORMALIZERS): arrays[name] for name in names})
    for name, network in algorithm.networks().items():
        networks.set_weights(network, [arrays[key] for key in expected if key.rpartition("/")[0] == name])


def torch_weights(algorithm: Algorithm) -> dict[str, np.ndarray]:
    """Return the weights as "<network>.<name in torch>" in torch's layout, and the statistics of normalizers.

    Raises:
        ValueError: if a network is not a module of torch.
    """
    by_name = {}
    for name, network in algorithm.networks().items():
        if not networks.is_module(network):
            raise ValueError(f"layout must be 'keras', because the network {name!r} is not a module of torch")
        for key, array in native_modules().state_dict(network).items():
            by_name[f"{name.replace('/', '.')}.{key}"] = array
    statistics = {name: array for name, array in get_weights(algorithm).items() if name.startswith(_NORMALIZERS)}
    return by_name | statistics


def summary(parts: Parts) -> str:
    """Return the text that `Agent.summary` prints."""
    algorithm = parts.algorithm
    counters = parts.counters
    reason = backends.current().capabilities.get("device_reason", str)()
    lines = [
        f"{type(algorithm).__name__}: {algorithm.observation_space} -> {algorithm.action_space}",
        f"backend {backends.name()}, devices: {', '.join(backends.current().device_names())}",
        f"updates on {backends.current().device_name()}{reason}, acting in "
        f"{'NumPy on the host' if parts.actor.forward.in_numpy else 'the compiled forward pass'}",
        f"threads of updates on the CPU: {update_threads(parts)}",
    ]
    for name, network in algorithm.networks().items():
        held = networks.weight_variables(network)
        count = sum(int(np.prod(variable.shape)) for variable in held)
        shapes = " ".join("x".join(map(str, variable.shape)) or "scalar" for variable in held)
        lines.append(f"  {name}: {type(network).__name__}, {count:,} values ({shapes})")
    for name, optimizer in parts.learner.optimizers.items():
        lines.append(f"  {name}: {type(optimizer).__name__}")
    if algorithm.spaces.normalizers is not None:
        lines.append(f"  normalizes {algorithm.spaces.normalizers}")
    lines.append(f"  {parts.learner.description}")
    lines.append(f"  {counters.steps:,} steps, {counters.episodes:,} episodes, {counters.updates:,} updates")
    return "\n".join(lines)


def update_threads(parts: Parts) -> int:
    """Return the number of threads of updates on the CPU, on which the last bits of results depend."""
    learner = parts.learner
    size = learner.batch_size
    if not size and learner.rollout is not None:  # the number of environments is not known yet
        configured = learner.schedule.batch_size
        size = learner.rollout.length if isinstance(configured, str) else configured
    return backends.current().update_threads(learner.variables, size)


def _layout(algorithm: Algorithm) -> optimizers.Layout:
    return networks.keras_layout(algorithm.networks().values())
