"""The contract of an algorithm, and what the loop asks of one.

Owns: networks, optimizers and live hyperparameters of an agent, and building them once everything is known. `Agent` in
`agent.py` adds what users call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from noterl import backends, envs, networks
from noterl.acting.numpy_forward import Actor
from noterl.backends.common import GroupResult, split_loss
from noterl.envs.observation import View
from noterl.heads import Head, random_actions
from noterl.hyperparameters import Hyperparameter, discount_factor
from noterl.learning import dry_run as building
from noterl.learning import optimizers
from noterl.learning import update as updating
from noterl.learning.dry_run import find_networks, unique
from noterl.learning.rollout_learner import OnPolicy
from noterl.learning.schedule import Due, LossMean, UpdateSchedule
from noterl.noise import Explorer, NoiseProcess
from noterl.normalization import Normalizers, TeamNormalizers
from noterl.policies import LinearEpsGreedyPolicy, Policy
from noterl.random import Generators, construction
from noterl.registry import Configurable
from noterl.schedules import Schedule
from noterl.training.loop import LARGEST_CALL, call_size
from noterl.types import Batch

import keras  # isort: skip  (noterl.backends has chosen by now)


class Defaults(NamedTuple):
    """What `compile` takes for the arguments it is not given: an algorithm's published settings."""

    learning_rate: float = 1e-3
    capacity: int = 100_000
    batch_size: int | str = 64
    learning_starts: int = 1_000
    update_every: int | str = 1
    updates: int | str = 1
    target_update: int | float | None = 500
    policy: Policy | None = None
    noise: NoiseProcess | None = None
    optimizer: Any = None


class Algorithm(Configurable):
    """What an agent is made of; see `noterl.Agent` for its attributes."""

    memory: str = "replay"
    rollout_steps: int = 128
    epochs: int = 4
    replays_rollouts: bool = True
    extra_spec: Mapping[str, tuple[tuple[int, ...], Any]] = {}
    head: Head
    optimizer_names: tuple[str, ...] = ("optimizer",)
    action_spaces: tuple[str, ...] = ("Discrete", "MultiDiscrete", "Box")
    observation_spaces: tuple[str, ...] = ("Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict")
    random_spec: Mapping[str, tuple[tuple[int, ...], str]] = {}
    multi_agent: bool = False
    update_period: int = 1
    target_period: int = 1

    policy: Policy | None
    noise: NoiseProcess | None
    replay: Any
    on_policy: OnPolicy | None = None
    normalizers: Normalizers | TeamNormalizers | None = None
    schedule: UpdateSchedule
    jit_compile: bool | str
    steps_per_execution: int | str
    acting: Actor
    generators: Generators
    stop_reason: str | None
    _followers: Sequence[Callable[[int], None]] = ()

    def __init__(self, env: Any, *, seed: int | None = None) -> None:
        if seed is not None and seed != self.generators.seed:
            self.generators.reseed(seed)
        self.source = env if isinstance(env, envs.EnvSource) else envs.resolve(env)
        self.observation_space, self.action_space = building.checked_spaces(self)
        self.view = View(self.source.observation_space)
        self.observation_dtype = self.view.dtype  # of what networks see: bytes stay bytes, all else is float32
        if hasattr(type(self), "head"):
            self.head = building.bound_head(self)
        self.steps = self.updates = self.episodes = self.episodes_begun = 0
        self.stop_training, self.stop_reason = False, None
        self.trace_counts = {"update": 0, "forward": 0}
        self.loss_mean = LossMean()
        self.optimizers: dict[str, Any] = {}
        self.hyperparameters: dict[str, Hyperparameter] = {}
        self.tau = self.hyperparameter("tau", 1.0, minimum=0.0, maximum=1.0)
        self.lanes: Any = None
        self._sampling = Explorer()
        self._built = False
        # The losses of the update in progress, and while optimizers are built what each of them trains.
        self._minimized: list[Any] | None = None
        self._discovered: dict[str, list[keras.Variable]] | None = None
        self._returned: Sequence[updating.Returned] = ()
        self._trained: list[keras.Variable] = []
        self.backend_state: dict[str, Any] = {}  # what a backend keeps for this agent
        self._groups: dict[tuple[int, ...], tuple[Sequence[Any], list[keras.Variable]]] = {}

    @classmethod
    def _initialize(cls, instance: Any, args: tuple, kwargs: dict) -> None:
        """Build the agent while the generators that layers draw from are seeded by its own seed."""
        instance.generators = Generators(instance._config.get("seed"))
        with construction(instance.generators.seed):
            instance.__init__(*args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        current = self.__dict__.get(name)
        if isinstance(current, Hyperparameter) and not isinstance(value, Hyperparameter):
            current.assign(value)
        else:
            building.refuse_lost_network(name, value)
            self.__dict__[name] = value

    def enter(self, environment: Any) -> None:
        """Take note of an environment that was made to evaluate in."""

    def outputs(self, observation: Any) -> Any:
        """Return what `forward` gives for observations `[B, ...]`; of several agents side by side."""
        return self.forward(observation)

    def forward(self, observation: Any) -> Any:
        """Return the network's output for observations `[B, ...]`: what head, policy and noise act on."""
        raise NotImplementedError(f"{type(self).__name__} must define forward(observation)")

    def presented(self, batch: Batch) -> Batch:
        """Return a batch `[B, ...]` as `update` is given it."""
        return batch

    def loss(self, batch: Batch) -> Any:
        """Return a scalar loss, or `(loss, feedback)` with feedback `[B]` for the memory, such as `td_error`."""
        raise NotImplementedError(f"{type(self).__name__} must define loss(batch), or update(batch)")

    def update(self, batch: Batch) -> tuple[dict[str, Any], dict[str, Any]]:
        """Make one gradient update and return `(logs, feedback)`; override it for several optimizers.

        With an `update_period` of n it is called as `update(batch, index)`, the index being `updates % n`.
        """
        loss, feedback = self.minimize(
            self.loss, self._trained or self.trained_variables(), self.optimizer_names[0], batch
        )
        return {"loss": loss}, feedback or {}

    def prepare(self, rollout: Batch) -> dict[str, Any]:
        """Return fields `[T, N, ...]` that the updates on a rollout `[T, N, ...]` find in `batch.extra`.

        For `memory = "rollout"`. It runs once for each rollout, compiled, before the first update on it.
        `rollout.extra["continues"]` is 1 where the lane's next row follows from a row, and 0 where an episode or the
        rollout ends.
        """
        return {}

    def enough(self, logs: dict[str, Any]) -> Any:
        """Return whether an update that logs this was one too many on this rollout; None if none ever is.

        Such an update is undone, and there are no more of them until the next rollout.
        """
        return None

    def update_target(self) -> None:
        """Move target networks: called at `target_update` steps, or for Polyak averaging after every update.

        `noterl.networks.copy(network, target)` moves a target the whole way, or by Polyak's coefficient, `self.tau`.
        """

    def defaults(self) -> Defaults:
        """Return what `compile` takes for the arguments it is not given.

        An agent that defines `update_target` has its target copied every 500 steps, or it would never learn from it.
        """
        moves_target = type(self).update_target is not Algorithm.update_target
        policy = LinearEpsGreedyPolicy() if "q" in self.head.acts_on else None
        return Defaults(policy=policy, target_update=500 if moves_target else None)

    def hyperparameter(
        self, name: str, value: float | Schedule, *, minimum: float | None = None, maximum: float | None = None
    ) -> Hyperparameter:
        """Return a live scalar: a host value and a device variable, always equal; see `Hyperparameter`.

        A schedule of `noterl.schedules` may stand for the value; it is read before each group of updates.

        Raises:
            ValueError: if the name is taken or the value is no finite number within the bounds.
        """
        if name in self.hyperparameters:
            raise ValueError(f"name: the hyperparameter {name!r} is already there")
        self.hyperparameters[name] = Hyperparameter(value, name, minimum=minimum, maximum=maximum)
        return self.hyperparameters[name]

    def minimize(self, loss_fn: Callable[..., Any], trained: Any, optimizer: str, *args: Any) -> tuple[Any, Any]:
        """Take one gradient step: the only place where a gradient is taken.

        Args:
            loss_fn: called with `args`; returns a scalar, or a pair of a scalar and anything.
            trained: a network, a list of networks or of variables.
            optimizer: which of `optimizer_names`.
            *args: passed on.

        Returns:
            `(loss, aux)`; `aux` is {} where the function returned a scalar alone.
        """
        if optimizer not in self.optimizers:
            raise ValueError(f"optimizer must be one of {', '.join(self.optimizers)}, got {optimizer!r}")
        variables = self._variables_of(trained if isinstance(trained, list | tuple) else [trained])
        if not variables:
            raise ValueError(f"trained holds nothing that is trainable, in minimize with the optimizer {optimizer!r}")
        if self._discovered is not None:
            self._discovered.setdefault(optimizer, []).extend(variables)
            return split_loss(loss_fn(*args))
        loss, aux = backends.current().minimize(self, loss_fn, variables, self.optimizers[optimizer], args)
        if self._minimized is not None:
            self._minimized.append(loss)
        return loss, aux

    @property
    def observation_size(self) -> int:
        """Number of values that networks see of an observation."""
        return int(np.prod(self.observation_shape))

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Shape of what networks see of an observation; `noterl.envs.observation` says what that is for each space."""
        return tuple(self.view.space.shape)

    @property
    def action_size(self) -> int:
        """Number of Discrete actions, or of values in a Box action."""
        space = self.action_space
        return int(space.n) if isinstance(space, spaces.Discrete) else int(np.prod(space.shape or ()))

    @property
    def is_image(self) -> bool:
        """Whether observations are bytes of images that `noterl.networks.nature_cnn` takes."""
        return self.observation_dtype == np.uint8 and networks.is_image_shape(self.observation_shape)

    def networks(self) -> dict[str, Any]:
        """Return the agent's networks, variables and seed generators by the names of their attributes."""
        return find_networks(self.__dict__)

    def trained_variables(self) -> list[keras.Variable]:
        """Return the variables that the default `update` trains: all that are trainable, target networks are not."""
        return unique(
            variable for network in self.networks().values() for variable in networks.trainable_variables(network)
        )

    def due(self, before: int, ended: int) -> Due:
        """Return what falls due as the environment steps have come from `before` to `steps`, and episodes ended."""
        if self.on_policy is not None:
            return Due(self.on_policy.updates if self.on_policy.rollout.is_full else 0, False)
        return self.schedule.due(before, self.steps, ended, self.drawable)

    @property
    def store(self) -> Any:
        """The memory that transitions go to: the rollout, or the replay memory."""
        return self.replay if self.on_policy is None else self.on_policy.rollout

    @property
    def drawn_from(self) -> Any:
        """The memory that batches are drawn from, and feedback goes to."""
        return self.replay if self.on_policy is None else self.on_policy.memory

    def drawable(self) -> int:
        """Return how many transitions can be sampled; if only a batch is needed, counting stops at its size."""
        return self.replay.num_sampleable(None if self.schedule.updates == "pass" else self.schedule.batch_size)

    def draw(self, updates: int) -> Any:
        """Draw the rows `[K, B]` of the memory for a group of updates."""
        if self.on_policy is not None:
            return self.on_policy.draw(updates)
        size, generator = self.schedule.batch_size, self.generators("sampler")
        if self.schedule.updates != "pass":
            drawn = self.replay.sample(updates, size, generator=generator)
        else:
            drawn = self.replay.sample_pass(size, generator=generator)
            while len(drawn) < updates:  # several passes fall due at once where several episodes end in one tick
                drawn = drawn.joined(self.replay.sample_pass(size, generator=generator))
        # Settled for the whole group: into how many calls it is cut must not matter.
        drawn.gamma = discount_factor(self)
        return drawn

    def gather(self, drawn: Any) -> Any:
        """Return the batches `[K, B, ...]` of what was drawn, under the discount of that moment.

        Of a rollout, which lies on the device already, these are the rows themselves.
        """
        if self.on_policy is not None:
            return self.on_policy.gather(drawn)
        batch = self.replay.gather(drawn, gamma=drawn.gamma)
        if not self.view.plain:
            seen = {name: self.view(getattr(batch, name)) for name in ("observation", "next_observation")}
            batch = batch._replace(**seen)
        return batch if self.normalizers is None else self.normalizers.replayed(batch)

    def _variables_of(self, group: Sequence[Any]) -> list[keras.Variable]:
        """Return the trained variables of networks; looked up once for each group of them."""
        key = tuple(map(id, group))
        if key not in self._groups:
            found = unique(variable for network in group for variable in networks.trainable_variables(network))
            self._groups[key] = (group, found)  # holding the group keeps its ids from being used again
        return self._groups[key][1]

    def follow_schedules(self) -> None:
        """Bring what follows a schedule to its value at this step; the loop does so before a group of updates.

        Rules of optimizers that were set as plain attributes become live here.
        """
        for follow in self._followers:
            follow(self.steps)

    def call_size(self, updates: int) -> int:
        """Return how many of a group's updates one compiled call makes."""
        if self.on_policy is not None and self.steps_per_execution == "auto":
            return updates if self.replay is None else min(updates, LARGEST_CALL)
        return call_size(updates, self.steps_per_execution, self.schedule.updates)

    def run_updates(self, batch: Any, count: int) -> GroupResult:
        """Make `count` updates on the first of the batches, as `gather` returned them, in one compiled call."""
        if self.on_policy is not None:
            return self.on_policy.run(batch, count)
        return self._update(updating.with_random_numbers(self, batch, count), count)

    def update_once(self, batch: Batch, index: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
        """Make the update of this index within `update_period`; what backends compile."""
        return updating.update_once(self, batch, index)

    def choose_actions(self, observations: np.ndarray, waiting: np.ndarray | None = None) -> np.ndarray:
        """Return the actions of a round `[N, ...]`; those before `learning_starts` are uniformly random.

        Args:
            observations: `[N, ...]`.
            waiting: lanes `[N]` whose step does not count, if there are any.
        """
        early = self.schedule.learning_starts - self.steps
        if early <= 0:
            return self.select(observations, False, self.explorer, self.steps)
        random = min(early, count := len(observations))
        if waiting is not None:
            random = int(np.searchsorted(np.cumsum(~waiting), random, side="right"))
        if random == count:
            return self._random_actions(count)
        actions = self.select(observations, False, self.explorer, self.steps)
        actions[:random] = self._random_actions(random)
        return actions

    @property
    def explorer(self) -> Explorer:
        """What explores: the policy, the noise, or the generator that the head's own distribution draws from."""
        if self.policy is not None:
            return self.policy
        return self._sampling if self.noise is None else self.noise

    def act_on(self, observations: np.ndarray, deterministic: bool, explorer: Explorer, step: int) -> np.ndarray:
        """Return the actions `[N, ...]` that an environment is given for observations `[N, ...]`."""
        return self.head.executed(self.select(observations, deterministic, explorer, step))

    def select(self, observations: np.ndarray, deterministic: bool, explorer: Explorer, step: int) -> np.ndarray:
        """Return what the head chooses `[N, ...]` for observations `[N, ...]`, before `Head.executed`."""
        if self.normalizers is not None:
            observations = self.normalizers.seen(observations)
        if observations.dtype != self.observation_dtype:
            observations = observations.astype(self.observation_dtype)
        values = self.acting(observations)
        return self.head.deterministic(values) if deterministic else self.head.explore(values, explorer, step)

    def mark_stale(self) -> None:
        """Note that weights may have changed outside an update, so that acting fetches them again."""
        if self._built:
            self.acting.stale = True

    def _random_actions(self, count: int) -> np.ndarray:
        return random_actions(self.action_space, count, self.generators("random_actions"))

    def build(self) -> None:
        """Allocate the memory, build the optimizers and compile, once; everything is known when training starts."""
        if self._built:
            return
        updating.check(self)
        building.build_store(self)
        building.build_optimizers(self)
        self.all_variables = building.variables(self)
        if self.on_policy is not None:
            self.on_policy.build()
        else:
            self._update = backends.current().compile_update(self, self.jit_compile)
        self._followers = [live.follow for live in self.hyperparameters.values() if live.schedule is not None]
        self._followers += [part for one in self.optimizers.values() for part in optimizers.followers(one)]
        with building.naming_network(self):
            self.acting = Actor(self)  # type: ignore[arg-type]
        self._built = True
