"""What the author of an algorithm writes: networks, `forward`, and `loss` or `update`."""

from __future__ import annotations

import functools
import inspect
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from gymnasium.spaces import Space

from noterl import backends, distribute, envs, networks
from noterl.backends import keras, ops
from noterl.backends.reads import Reads
from noterl.heads import Head
from noterl.hyperparameters import Hyperparameter
from noterl.noise import NoiseProcess
from noterl.policies import LinearEpsGreedyPolicy, Policy
from noterl.random import Generators, construction, seed_layers
from noterl.registry import Configurable
from noterl.schedules import Schedule
from noterl.types import Batch, Counters
from noterl.utils import words
from noterl.utils.checks import check_bool

# Units of a layer up to which a CPU trains networks on vectors as fast as an accelerator does: see docs/speed.md.
_WIDEST = 256


class RunningUpdater(Protocol):
    """What makes an update: `noterl.learning.updater.Updater`.

    Attributes:
        algorithm: the agent whose update is made.
        trained: the variables that the default `update` trains.
    """

    algorithm: Algorithm
    trained: list[Any]

    def minimize(
        self, loss_fn: Callable[..., Any], trained: Any, optimizer: str, args: tuple[Any, ...]
    ) -> tuple[Any, Any]:
        """Take one gradient step; see `Algorithm.minimize`."""


# A context variable and not an attribute: TensorFlow's replicas run one agent's update in several threads.
_running: ContextVar[RunningUpdater | None] = ContextVar("running", default=None)


@contextmanager
def running(updater: RunningUpdater) -> Iterator[None]:
    """Inside the context, `Algorithm.minimize` uses this updater."""
    token = _running.set(updater)
    try:
        yield
    finally:
        _running.reset(token)


class Defaults(NamedTuple):
    """The values that `compile` uses for arguments that are not passed: an algorithm's recommended settings."""

    learning_rate: float = 1e-3
    capacity: int = 100_000
    batch_size: int | str = 64
    learning_starts: int = 1_000
    update_every: int | str = 1
    updates: int | str = 1
    target_update: int | float | None = 500
    target_unit: str = "steps"
    policy: Policy | None = None
    noise: NoiseProcess | None = None
    optimizer: Any = None
    n_step: int = 1
    sampler: Any = None


class Algorithm(Configurable):
    """Base of `noterl.Agent`: the declarations and methods of an algorithm; `Agent` documents the attributes."""

    # Declarations: a subclass sets them in its class, or before its networks are built.
    memory: str = "replay"
    head: Any = None
    optimizer_names: tuple[str, ...] = ("optimizer",)
    action_spaces: tuple[str, ...] = ("Discrete", "MultiDiscrete", "MultiBinary", "Box")
    observation_spaces: tuple[str, ...] = ("Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict")
    extra_spec: Mapping[str, tuple[tuple[int, ...], Any]] = {}
    actor_fields: tuple[str, ...] = ()  # the fields of `extra_spec` that the agent's own actor returns
    searches: bool = False  # whether its actor is one that searches
    state_spec: Mapping[str, Any] = {}
    learner_state_spec: Mapping[str, Any] = {}
    sequence_length: int | None = None
    burn_in: int = 0
    state_every: int | None = None
    info_spec: Mapping[str, tuple[tuple[int, ...], Any, Any]] = {}
    random_spec: Mapping[str, tuple[tuple[int, ...], str]] = {}
    next_actions: bool = False
    needs_whole_batch: bool = False  # whether replicas cannot share a batch
    update_period: int = 1
    target_period: int = 1
    rollout_steps: int = 128
    epochs: int = 4
    supports_replay: bool = True
    corrects_staleness: bool = False
    replay_ratio: Any = 4.0
    replay_starts: int = 1_000
    multi_agent: bool = False
    _is_argument = False

    # State of noterl. An annotation without a value reserves a name: see `__setattr__`.
    spaces: networks.Spaces
    observation_space: Space[Any]
    action_space: Space[Any]
    observation_dtype: np.dtype[Any]
    generators: Generators
    hyperparameters: dict[str, Hyperparameter]
    tau: Hyperparameter
    trace_counts: Counter[str]
    _counters: Counters
    _reads: Reads

    def __init__(
        self, env: Any, *, seed: int | None = None, normalize_observation: bool = False, normalize_reward: bool = False
    ) -> None:
        if seed is not None and seed != self.generators.seed:
            self.generators.reseed(seed)
            seed_layers(self.generators.seed)  # a default of the subclass, which `_initialize` does not know
        source = env if isinstance(env, envs.EnvSource) else envs.resolve(env)
        _check_spaces(self, source)
        for text in source.find_statistics():
            warnings.warn(f"env: {text}", UserWarning, stacklevel=4)
        check_bool("normalize_observation", normalize_observation)
        check_bool("normalize_reward", normalize_reward)
        spaces = networks.Spaces(source, normalize_observation, normalize_reward)
        choose_device = backends.current().capabilities.get("choose_device")
        if choose_device is not None:
            choose_device(self._has_small_networks(spaces))
        self._set(
            spaces=spaces,
            observation_space=spaces.observation_space,
            action_space=spaces.action_space,
            observation_dtype=spaces.network_dtype,
            _counters=Counters(),
            hyperparameters={},
            trace_counts=Counter(),
            _reads=Reads(self, lambda name: _owner(type(self), name) is None),
        )
        if self.head is not None:
            self.head = bind_head(self)
        self._set(tau=self.hyperparameter("tau", 1.0, minimum=0.0, maximum=1.0))

    @classmethod
    def _initialize(cls, instance: Any, args: tuple, kwargs: dict) -> None:
        """Check Keras's precision, seed the generators of Keras and torch layers, and call `__init__`."""
        backends.check_precision()
        distribute.start()
        instance._set(generators=Generators(instance.get_config().get("seed")))
        with construction(instance.generators.seed):
            if any(map(_is_of_noterl, cls.__mro__)):
                kwargs = instance._with_networks_of_files(kwargs)
            instance.__init__(*args, **kwargs)
        _check_descriptions(instance.get_config().get("network"), instance.head)

    def _with_networks_of_files(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of the constructor with the paths of networks replaced by networks or descriptions.

        The networks replace the recorded arguments too, so that a saved agent does not need the files.
        """
        argument = arguments.get("network")
        network = networks.resolve_network(argument)
        entries = argument if isinstance(argument, list | tuple) else [argument]
        if not any(isinstance(entry, str | os.PathLike) for entry in entries):
            return arguments
        # Keywords of `**options` are recorded in a nested dict.
        for config in (self._config, *(value for value in self._config.values() if isinstance(value, dict))):
            if config.get("network") == argument:
                config["network"] = network
        return {**arguments, "network": network}

    def _has_small_networks(self, spaces: networks.Spaces) -> bool:
        """Return whether this is an agent of noterl that will build small networks for vectors.

        The backend chooses the device by this answer, before the networks are built.
        """
        config = self.get_config()
        is_own = _is_of_noterl(type(self)) and config.get("network") is None
        # The constructor, which checks the units, has not run yet.
        layers = [config.get(name) for name in ("hidden", "critic_hidden")]
        units = [width for widths in layers if isinstance(widths, list | tuple) for width in widths]
        is_wide = any(isinstance(width, int) and width > _WIDEST for width in units)
        return is_own and not is_wide and not spaces.has_images

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, or the value of a hyperparameter.

        Raises:
            ValueError: if a method or internal attribute of noterl's agents has this name.
        """
        current = self.__dict__.get(name)
        if isinstance(current, Hyperparameter):
            current.assign(value)
            return
        owner = _owner(type(self), name)
        if owner is not None:
            reason = f"{owner} uses it for something else"
            if name == "learning_rate":
                reason = f'agent.set_rule("learning_rate", value) changes {owner}'
            raise ValueError(
                f"{name} cannot be assigned: {reason}; an attribute of your own in {type(self).__name__} needs another "
                f"name, such as my_{name.strip('_')}"
            )
        reads = self.__dict__.get("_reads")
        if reads is not None:
            reads.assign(name, value)
        super().__setattr__(name, value)

    if not TYPE_CHECKING:  # otherwise every name would be an attribute for type checkers

        def __getattr__(self, name: str) -> Any:
            return words.find_again(self, name)

    def _set(self, **values: Any) -> None:
        """Set noterl's own attributes, which `__setattr__` refuses."""
        self.__dict__.update(values)

    def _before_assignment(self, name: str, value: Any) -> None:
        """Called before an attribute is assigned outside of a trace; may refuse the value."""

    def _on_change(self, name: str) -> bool:
        """Return whether programs that have read this attribute, which gets another value, are traced again.

        If an update on torch assigns the attribute, the losses that have read the attribute run eagerly from now on.
        """
        updater = _running.get()
        if updater is None or updater.algorithm is not self:
            return True
        if not self._reads.is_eager:
            self._reads.is_eager = True
            warnings.warn(
                f"the update of {type(self).__name__} assigns {name}, which a loss reads, so that its losses run "
                "eagerly; keep such a state in a keras.Variable and assign its value",
                RuntimeWarning,
                stacklevel=6,
            )
        return False

    # A subclass names its inputs. Type checkers accept every override of this signature.
    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return the network's output for observations `[B, ...]`: the input of head, policy and noise.

        `forward` may return `(output, extra)`, where `extra` holds the fields `[B, ...]` of `extra_spec` by name. These
        fields are stored with each step, and `prepare` and updates receive the fields in `batch.extra`.

        If the class declares a `state_spec`, `forward(observation, state)` also receives the state of the policy,
        `[B, ...]` by name, and returns `(output, new_state)` or `(output, new_state, extra)`. The state is zero at the
        first step of each episode, or what the method `initial_state()` returns, `[...]` by name.
        """
        raise NotImplementedError(f"{type(self).__name__} must define forward(observation)")

    def loss(self, batch: Batch) -> Any:
        """Return a scalar loss, or `(loss, feedback)`.

        Feedback is a dict of values `[B]` for the memory, such as `td_error`, and of scalars, which are logged.
        """
        raise NotImplementedError(f"{type(self).__name__} must define loss(batch), or update(batch)")

    def update(self, batch: Batch) -> tuple[dict[str, Any], dict[str, Any]]:
        """Make one gradient update and return `(logs, feedback)`; override `update` for several optimizers.

        If `update_period` is n above 1, `update` is called as `update(batch, index)` with `index = updates % n`.
        """
        loss, feedback = self.minimize(self.loss, self._updater().trained, self.optimizer_names[0], batch)
        if not isinstance(feedback, dict | None):
            raise ValueError(
                'loss must return a scalar, or (scalar, feedback) with a dict such as {"td_error": error}, got the '
                f"feedback {type(feedback).__name__}"
            )
        scalars = {name: value for name, value in (feedback or {}).items() if len(getattr(value, "shape", ())) == 0}
        return {"loss": loss, **scalars}, feedback or {}

    def prepare(self, rollout: Batch) -> dict[str, Any]:
        """Return fields `[T, N, ...]` of a rollout `[T, N, ...]`, which updates receive in `batch.extra`.

        `prepare` is called if `memory` is "rollout" or "sequences": once for each rollout, compiled, before the first
        update on the rollout. With a `state_spec`, `rollout.extra["state"]` is the state before the first row,
        `[N, ...]` by name. With a `learner_state_spec`, `rollout.extra["learner_state"]` is the entry
        "learner_state" `[N, ...]` that `prepare` returned for the previous rollout; the state is zero at first.
        `rollout.extra["continues"]` `[T, N]` is 1 if the lane's next step continues the same episode, and 0 where an
        episode or the rollout ends. If an older policy has acted (`corrects_staleness`),
        `rollout.extra["acting_outputs"]` `[T, N, ...]` holds the outputs of that policy's `forward`, the input of the
        head.
        Assignments to variables are kept: TRPO updates the policy here, because each rollout has one update of the
        policy and many of the values.
        """
        return {}

    def check_metrics(self, metrics: Mapping[str, float]) -> None:
        """Called at the end of each episode with the means of what updates have logged; may warn of a setting."""

    def stop_epochs(self, logs: dict[str, Any]) -> Any:
        """Return whether the update with these logs ends the updates on this rollout; None if none ever does.

        Such an update is undone, and no update follows before the next rollout.
        """
        return None

    def update_target(self) -> None:
        """Move target networks: with hard copies, or by Polyak averaging every `target_period` updates.

        `noterl.networks.copy(network, target)` copies the weights or, in a step of Polyak averaging, moves the weights
        by the coefficient `self.tau`.
        """

    def defaults(self) -> Defaults:
        """Return the values that `compile` uses for arguments that are not passed.

        By default, an agent that defines `update_target` makes a hard copy every 500 steps. A head of action values
        explores with a `LinearEpsGreedyPolicy`.
        """
        policy = LinearEpsGreedyPolicy() if "q" in self.head.acts_on else None
        return Defaults(policy=policy, target_update=500 if moves_target(self) else None)

    def hyperparameter(
        self, name: str, value: float | Schedule, *, minimum: float | None = None, maximum: float | None = None
    ) -> Any:
        """Add a `Hyperparameter` to `hyperparameters`, and return it: a scalar that can be changed during training.

        The value may be a schedule of `noterl.schedules`, which is evaluated before each group of updates. For type
        checkers, the return type is Any, so that a number can be assigned to the attribute that holds the result.

        Raises:
            ValueError: if the name is taken, or the value is not a finite number within the bounds.
        """
        if name in self.hyperparameters:
            raise ValueError(f"name: the hyperparameter {name!r} exists already")
        self.hyperparameters[name] = Hyperparameter(value, name, minimum=minimum, maximum=maximum)
        return self.hyperparameters[name]

    def minimize(self, loss_fn: Callable[..., Any], trained: Any, optimizer: str, *args: Any) -> tuple[Any, Any]:
        """Take one gradient step of an optimizer.

        Only `noterl.learning.natural_gradient`, whose steps need no optimizer, takes gradients elsewhere.

        Args:
            loss_fn: called with `args`; returns a scalar, or a pair of a scalar and auxiliary values.
            trained: a network, or a list of networks or variables.
            optimizer: one of `optimizer_names`.
            *args: arguments of `loss_fn`.

        Returns:
            `(loss, aux)`; `aux` is {} if `loss_fn` returned only a scalar.

        Raises:
            ValueError: if the optimizer is unknown, or nothing in `trained` is trainable.
            RuntimeError: if the agent is not compiled.
        """
        return self._updater().minimize(loss_fn, trained, optimizer, args)

    def _updater(self) -> RunningUpdater:
        """Return the updater of the update in progress, or outside of updates the agent's own."""
        updater = _running.get()
        return updater if updater is not None and updater.algorithm is self else self._own_updater()

    def _own_updater(self) -> RunningUpdater:
        """Return the updater for calls outside of updates.

        Raises:
            RuntimeError: if there is none.
        """
        raise RuntimeError("minimize: call build() first; it builds the optimizers")

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Shape of an observation for networks, by `noterl.envs.observation`; for several agents, of each."""
        return self.spaces.network_shape

    @property
    def is_image(self) -> bool:
        """Whether observations (of at least one agent) are images that `noterl.networks.nature_cnn` accepts."""
        return self.spaces.is_image

    def networks(self) -> dict[str, Any]:
        """Return the agent's networks, variables and seed generators by the names of the attributes."""
        attributes = {name: value for name, value in vars(self).items() if _owner(type(self), name) is None}
        return networks.find_networks(attributes)

    def trained_variables(self) -> list[Any]:
        """Return the variables that the default `update` trains: all trainable ones, which excludes targets."""
        return networks.unique(
            variable for network in self.networks().values() for variable in networks.trainable_variables(network)
        )

    def _variables(self) -> list[Any]:
        """Return every variable of networks and hyperparameters, each once."""
        variables = [variable for network in self.networks().values() for variable in networks.variables(network)]
        return networks.unique([*variables, *self.hyperparameters.values()])

    @property
    def steps(self) -> int:
        """Environment steps so far."""
        return self._count("steps")

    @property
    def updates(self) -> int:
        """Gradient updates so far."""
        return self._count("updates")

    @property
    def episodes(self) -> int:
        """Finished episodes so far."""
        return self._count("episodes")

    def _count(self, name: str) -> int:
        """Return a counter; raise a RuntimeError in a traced program, where the count would be a constant."""
        count = int(getattr(self._counters, name))
        if backends.current().is_tracing():
            raise RuntimeError(
                f"{name} would be compiled into the update as the constant {count}: use self.hyperparameter with a "
                "schedule of noterl.schedules, whose value follows the environment steps"
            )
        return count

    def _joint_forward(self, observation: Any) -> Any:
        """Return the output of `forward` for observations `[B, ...]`; with several agents, all outputs side by side.

        If `forward` also returns fields, the fields are further columns, in the order of the names.
        """
        return self._columns_of(*self._output_and_fields(observation))

    def _forward_with_state(self, inputs: tuple[Any, dict[str, Any]]) -> tuple[Any, dict[str, Any]]:
        """Return the columns of `_joint_forward` for observations and states `[B, ...]`, and the next states.

        Raises:
            ValueError: if `forward` returns something else than an output, the state of `state_spec` and fields.
        """
        observation, state = inputs
        output, new_state, fields = self._output_state_and_fields(observation, state)
        dtypes = {name: keras.backend.standardize_dtype(value.dtype) for name, value in state.items()}
        columns = self._columns_of(output, fields)
        return columns, {name: ops.cast(new_state[name], dtype) for name, dtype in dtypes.items()}

    def _output_state_and_fields(
        self, observation: Any, state: dict[str, Any]
    ) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        """Return the output, the next state and the fields of `forward`; raises the errors of `_forward_with_state`."""
        returned = self.forward(observation, state)
        name = type(self).__name__
        if not isinstance(returned, tuple) or len(returned) not in (2, 3) or not isinstance(returned[1], dict):
            raise ValueError(
                f"forward of {name}, which has a state_spec, must return (output, new_state) or (output, new_state, "
                f"extra), got {returned!r:.80}"
            )
        output, new_state, *extra = returned
        expected = {name: tuple(value.shape[1:]) for name, value in state.items()}
        shapes = {name: tuple(value.shape[1:]) for name, value in new_state.items()}
        if shapes != expected:
            raise ValueError(f"forward of {name} must return the state of its state_spec, {expected}, got {shapes}")
        return output, new_state, self._checked_fields(*extra) if extra else {}

    def _columns_of(self, output: Any, fields: Mapping[str, Any]) -> Any:
        """Return the output with the fields as further columns, in the order of the names."""
        if not fields:
            return output
        columns = []
        for name in sorted(fields):
            width = int(np.prod(self.extra_spec[name][0]))  # on TensorFlow, the number of rows is not known here
            columns.append(ops.reshape(ops.cast(fields[name], "float32"), (-1, width)))
        return ops.concatenate([output, *columns], axis=-1)

    def _output_and_fields(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        """Return the output of `forward` for observations `[B, ...]`, and the fields beside the output.

        Raises:
            ValueError: if `forward` returns a tuple, but not the fields that `extra_spec` declares.
        """
        returned = self.forward(observation)
        if not isinstance(returned, tuple):
            return returned, {}
        if len(returned) != 2:
            name = type(self).__name__
            raise ValueError(
                f"forward must return an output, or (output, dict of fields); {name} returned {returned!r:.80}"
            )
        output, fields = returned
        return output, self._checked_fields(fields)

    def _checked_fields(self, fields: Any) -> dict[str, Any]:
        """Return the fields of `forward`; raise a ValueError for a field that `extra_spec` does not declare."""
        name = type(self).__name__
        spec = dict(self.extra_spec)
        if not isinstance(fields, dict):
            raise ValueError(
                f"forward must return an output, or (output, dict of fields); {name} returned the fields {fields!r:.80}"
            )
        for field, value in fields.items():
            if field not in spec or tuple(spec[field][0]) != tuple(value.shape[1:]):
                raise ValueError(
                    f"extra_spec of {name} must declare the fields that forward returns, as name -> (shape, dtype): "
                    f"{field!r} with the shape {tuple(value.shape[1:])}, got {spec!r}"
                )
        return fields

    def _per_agent_batch(self, batch: Batch) -> Batch:
        """Return a batch `[B, ...]` in the form that `update` receives."""
        return batch


def composites(algorithm: Algorithm) -> list[Any]:
    """Return the networks of several parts that an algorithm holds as attributes, such as those with a cell."""
    return [value for value in vars(algorithm).values() if isinstance(value, networks.Composite)]


def moves_target(algorithm: Algorithm) -> bool:
    """Return whether the algorithm's class defines `update_target`."""
    return type(algorithm).update_target is not Algorithm.update_target


@functools.cache
def _owner(kind: type, name: str) -> str | None:
    """Return what makes `name` unavailable as an attribute of instances, such as "Agent.fit"; None if nothing does.

    Methods, properties without a setter and annotated state of noterl's classes are unavailable. Declarations (class
    attributes with a plain value) and attributes of the user's own class are available. Methods with which that class
    overrides methods of noterl are not.
    """
    for base in kind.__mro__:
        ours = base.__module__.partition(".")[0] == "noterl"
        if name in vars(base):
            value = vars(base)[name]
            if isinstance(value, property):
                taken = value.fset is None
            else:
                taken = callable(value) or isinstance(value, classmethod | staticmethod | functools.cached_property)
            if ours or not taken:
                return f"{base.__name__.removeprefix('Base')}.{name}" if taken else None
        # The annotations of agents are those of hyperparameters, which a subclass may make with other bounds.
        is_agent = base.__module__.split(".")[1:2] == ["agents"]
        if ours and not is_agent and name in inspect.get_annotations(base):
            return f"{base.__name__.removeprefix('Base')}.{name}"
    return None


def _check_spaces(algorithm: Algorithm, source: envs.EnvSource) -> None:
    """Check the spaces of an environment.

    Raises:
        ValueError: if the algorithm does not support a space, or the number of agents.
    """
    name = type(algorithm).__name__
    check = functools.partial(
        envs.check_spaces, observations=algorithm.observation_spaces, actions=algorithm.action_spaces
    )
    if source.team is None:
        if algorithm.multi_agent:
            raise ValueError(
                f"env: {name} needs an environment of several agents (PettingZoo's parallel API, or lists of "
                f"observations, actions and rewards), got one of a single agent: {source.observation_space}"
            )
        check(name, source.observation_space, source.action_space)
        return
    spaces = source.team.observation_space, source.team.action_space
    if not algorithm.multi_agent:  # raises, because the joined spaces of a team are Tuples
        check(name, *spaces, hint="MADDPG learns with several agents")
    for agent, *agent_spaces in zip(source.team.names, *spaces, strict=True):
        check(f"{name} for the agent {agent!r}", *agent_spaces, bounded_actions=True)


def _is_of_noterl(cls: type) -> bool:
    """Return whether a class is one of noterl's own agents."""
    return cls.__module__.split(".")[:2] == ["noterl", "agents"]


def _check_descriptions(network: Any, head: Any) -> None:
    """Raise a ValueError if a description of networks has outputs with an activation that the head does not apply."""
    if isinstance(network, networks.NetworkDescription):
        network.check_activations(head.output_activation)
    for index, part in enumerate(network if isinstance(network, list | tuple) else ()):
        if isinstance(part, networks.NetworkDescription):
            part.check_activations(head.output_activation, ("actor",) if index == 0 else ("critic",))


def bind_head(algorithm: Algorithm) -> Head:
    """Return the algorithm's head, bound to its action space.

    Raises:
        ValueError: if the class lacks a declaration, or a declaration is not allowed.
    """
    name = type(algorithm).__name__
    head = algorithm.head
    if "action_space" not in vars(algorithm):
        raise ValueError(f"{name}.__init__ must call super().__init__(env, seed=seed) before anything else")
    if not isinstance(head, Head):
        raise ValueError(f"head of {name} must be one of noterl.heads, such as noterl.heads.Q(), got {head!r}")
    if algorithm.memory not in ("replay", "rollout", "sequences"):
        raise ValueError(f"memory of {name} must be 'replay', 'rollout' or 'sequences', got {algorithm.memory!r}")
    if algorithm.multi_agent and algorithm.memory != "replay":
        raise ValueError(f"memory of {name} must be 'replay' for several agents, got {algorithm.memory!r}")
    return head.bind(algorithm.action_space)
