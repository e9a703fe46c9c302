"""What `Doctor` measures of an agent: recent transitions, weights, activations and predicted values."""

from __future__ import annotations

import contextlib
from collections import namedtuple
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, cast

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.linalg import norm

from noterl import backends, networks
from noterl.acting import numpy_layers
from noterl.callback import AgentView
from noterl.envs.rewards import unclipped
from noterl.heads import Q
from noterl.hyperparameters import discount_factor
from noterl.learning.gradient_noise import compile_measurement
from noterl.networks.graph import Graph, UnsupportedNetworkError, Weight, add_network
from noterl.training.play import value_method
from noterl.types import Batch

MOST_ROWS = 512
# Transitions `[n, ...]`, by environment. `continues` is whether the next row is the next step of the same episode.
Rows = namedtuple("Rows", "observation action reward next_observation terminated ended continues")
CLIPS = ("global_clipnorm", "clipnorm", "clipvalue")


def recent_rows(agent: AgentView) -> Rows | None:
    """Return the newest transitions; of a rollout, those of the current policy. None if there are too few."""
    learning: Any = agent
    rollout = learning._parts.learner.rollout
    if rollout is None:
        ring = agent.replay.storage
        newest = ring.stored_indices()[-MOST_ROWS:]
        rows = newest[np.argsort(ring.lane[newest], kind="stable")]
        following = np.append(rows[1:], ring.capacity)
        terminated = ring.terminated[rows]
        ends = terminated, terminated | ring.truncated[rows], ring.successor[rows] == following
        encode: Any = np.asarray if agent.spaces.team else agent.spaces.encoder
        observations, next_observations = encode(ring.observations(rows)), encode(ring.next_observations(rows))
        return Rows(observations, ring.action[rows], ring.reward[rows], next_observations, *ends)
    # A quarter of a rollout is enough, because rollouts may be short.
    if 4 * rollout.round < rollout.length:
        return None
    part = slice(max(0, rollout.round - max(1, MOST_ROWS // rollout.num_envs)), rollout.round)
    valid = rollout.valid[part].T
    continues = ~rollout.ended[part]
    continues[-1] = False
    columns = tuple(getattr(rollout, name)[part] for name in Rows._fields[:-1])
    return Rows(*(column.swapaxes(0, 1)[valid] for column in (*columns, continues)))


class Probe:
    """Measures an agent.

    Args:
        agent: the agent, whose present weights are the first ones.
        most_steps: how many steps may be played in a copy of the environment.
    """

    def __init__(self, agent: AgentView, most_steps: int) -> None:
        self.agent: AgentView = agent
        self._space: Any = agent.spaces.source.action_space
        self._is_box: bool = isinstance(self._space, Box) and self._space.is_bounded()
        self._updates: int = agent.updates
        self._old: dict[str, Any] = self._vectors()
        self._range: Any = np.inf, -np.inf  # of the observations so far
        self._before: tuple[Any, ...] | None = None
        self._constant: dict[str, float] = {}
        # The environment may have no copy, or refuse a seed, or an action that its mask forbids.
        with contextlib.suppress(Exception):
            self._constant = self._play(most_steps) if most_steps else {}

    def measure(self, rows: Rows) -> dict[str, float]:
        """Return the measured values, by name; NaN for what the agent lacks."""
        agent = self.agent
        limits = (getattr(optimizer, name, None) for optimizer in agent.optimizers.values() for name in CLIPS)
        values = self._constant | {name: float(value) for name, value in agent.hyperparameters.items()}
        values.pop("temperature", None)  # SAC logs the weight of the entropy; IQL's temperature is another quantity
        values |= {"updates_so_far": agent.updates - self._updates, "episodes_so_far": agent.episodes}
        values["updates_before"] = self._updates
        values |= {"batch_size": agent.update_batch_size, "gradient_limit": min(filter(None, limits), default=np.nan)}
        values["epsilon"] = getattr(agent.policy, "epsilon", lambda step: np.nan)(agent.steps)
        values |= {"capacity": getattr(agent.replay, "capacity", np.nan), "starts": agent.schedule.learning_starts}
        values |= self._movement() | self._data(rows)
        if rows.observation.ndim == 2 and agent.spaces.normalizers is agent.spaces.team is None:
            values |= self._activations(rows.observation)
            values |= {} if getattr(agent, "state_spec", None) else self._predictions(rows)
        return values

    def _play(self, most_steps: int) -> dict[str, float]:
        """Return the mean return of random actions or of the best constant one, and whether large actions differ."""
        with contextlib.closing(self.agent.new_environment()) as environment:
            space = environment.action_space
            space.seed(0)
            actions: Any = range(space.n) if isinstance(space, Discrete) and space.n <= 6 else ()
            actions = (space.high, space.high / 2) if self._is_box else actions
            steps = most_steps // (len(actions) + 1)
            chosen = [lambda action=action: action for action in actions]
            played = [_play(environment, choose, steps) for choose in (*chosen, space.sample)]
        values = {"reference": float(np.fmax.reduce([mean for _, mean in played]))}
        return values | ({"large_actions_differ": abs(played[0][0] - played[1][0])} if self._is_box else {})

    def _vectors(self) -> dict[str, Any]:
        """Return the weights of each network as a vector."""
        weights = {name: networks.get_weights(network) for name, network in self.agent.networks().items()}
        # A single array is not a network, but a variable such as a temperature.
        return {name: np.concatenate([*map(np.ravel, arrays)]) for name, arrays in weights.items() if len(arrays) > 1}

    def _movement(self) -> dict[str, float]:
        """Return how far networks are from their first weights, relative to the norm of these."""
        moved = {key: float(norm(now - self._old[key]) / norm(self._old[key])) for key, now in self._vectors().items()}
        target = [value for name, value in moved.items() if "target" in name]
        trained = [value for name, value in moved.items() if "target" not in name]
        movement = {"least_movement": min(trained), "most_movement": max(trained)}
        return movement | {"target_movement": min(target or [np.nan])}

    def _data(self, rows: Rows) -> dict[str, float]:
        """Return statistics of observations, actions, rewards and ends."""
        observations = rows.observation.reshape(len(rows.reward), -1)
        low = np.minimum(self._range[0], observations.min(axis=0))
        high = np.maximum(self._range[1], observations.max(axis=0))
        self._range = low, high
        spaces = self.agent.spaces
        size = np.abs(rows.reward)
        # A scale that a normalizer removes does not matter.
        reward_unit = np.nan if getattr(spaces.normalizers, "reward", None) else 1.0
        values = {"reward_mean": rows.reward.mean(), "reward_size": reward_unit * size.mean()}
        values |= {"reward_largest": reward_unit * size.max()}
        values |= {"terminated": rows.terminated.sum(), "truncated": (rows.ended & ~rows.terminated).sum()}
        # Networks scale the pixels of images, of which many never change; and of a one-hot code, most numbers are 0.
        if rows.observation.ndim == 2 and spaces.team is None and spaces.encoder.is_identity:
            scales = np.sqrt(np.square(observations, dtype=np.float64).mean(axis=0))
            observation_unit = np.nan if getattr(spaces.normalizers, "observation", None) else 1.0
            values |= {"constant_share": (low == high).mean(), "observation_scale": observation_unit * scales.max()}
        if self._is_box:
            distance = np.minimum(rows.action - self._space.low, self._space.high - rows.action)
            values["actions_at_bounds"] = (distance < 0.001 * (self._space.high - self._space.low)).mean()
        return values

    def _activations(self, observations: Any) -> dict[str, float]:
        """Return the shares of dead and of saturated units, in the hidden layer with the most."""
        shares = {"relu": 0.0, "tanh": 0.0}
        for network in self.agent.networks().values():
            graph = Graph()
            results = [observations.astype(np.float32)]
            graph.add("input", name="observation", shape=observations.shape[1:], dtype=observations.dtype)
            # A critic of actions has a longer input, and not every network is a graph.
            with contextlib.suppress(UnsupportedNetworkError, ValueError):
                add_network(graph, network, 0)
                for node in graph.nodes[1:]:
                    arrays = [array.value() if isinstance(array, Weight) else array for array in node.arrays.values()]
                    inputs = (results[place] for place in node.inputs)
                    output = getattr(numpy_layers, node.kind)(*inputs, *arrays, **node.settings)
                    results.append(output)
                    if node.kind in shares:
                        idle = (output <= 0).all(axis=0) if node.kind == "relu" else np.abs(output) > 0.99
                        shares[node.kind] = max(shares[node.kind], float(idle.mean()))
        return {"dead_share": shares["relu"], "saturated_share": shares["tanh"]}

    def _predictions(self, rows: Rows) -> dict[str, float]:
        """Return how predicted values fit returns, and whether values and policy move in the right direction."""
        estimates = self._estimates(rows)
        if "value" not in estimates:
            return {}
        discount = discount_factor(self.agent)
        predicted = estimates["value"]
        errors = rows.reward + discount * estimates["next_value"] * ~rows.terminated - predicted
        advantages = errors.copy()
        for k in np.flatnonzero(rows.continues)[::-1]:
            errors[k] += discount * errors[k + 1]
            advantages[k] += 0.95 * discount * advantages[k + 1]
        values = {"value_mean": predicted.mean(), "value_largest": np.abs(predicted).max()}
        values["explained_variance"] = 1 - errors.var() / ((predicted + errors).var() + 1e-8)
        if self._before is not None:
            old, old_log_prob, old_advantages = self._before
            change = self._estimates(old)["log_prob"] - old_log_prob
            # Of a constant, the correlation is not defined.
            if change.std() > 0 and old_advantages.std() > 0:
                values["policy_direction"] = np.corrcoef(change, old_advantages)[0, 1]
        self._before = (rows, estimates["log_prob"], advantages) if "log_prob" in estimates else None
        return values

    @cached_property
    def _program(self) -> Callable[[Batch], dict[str, Any]]:
        """A compiled function of transitions, which returns what `_estimate` does."""
        learner = cast(Any, self.agent)._parts.learner
        has_log_prob = learner.rollout is not None and hasattr(self.agent, "log_prob")
        return compile_measurement(learner, partial(_estimate, self.agent, has_log_prob), "doctor", training=False)

    def _estimates(self, rows: Rows) -> dict[str, Any]:
        """Return arrays `[n]`: the values of observations and next observations, and log-probabilities of actions.

        Names are missing for an agent that has no such function.
        """
        count = len(rows.reward)
        # A backend compiles a program for each number of rows, so the rows are repeated up to a fixed number.
        size = max(count, MOST_ROWS)
        observation, action, reward, next_observation = (
            np.resize(array, (size, *array.shape[1:])) for array in rows[:4]
        )
        batch = Batch(observation, action, reward, next_observation, reward, reward, reward, {})
        return {name: backends.current().fetch(array)[:count] for name, array in self._program(batch).items()}


def _estimate(agent: Any, has_log_prob: bool, batch: Batch) -> dict[str, Any]:
    """Return what `Probe._estimates` returns, as tensors."""
    observations = {"value": batch.observation, "next_value": batch.next_observation}
    value = value_method(agent)
    if value is not None:
        estimates = {name: value(observation) for name, observation in observations.items()}
    elif isinstance(agent.head, Q):
        largest = partial(backends.ops.max, axis=-1)
        estimates = {name: largest(agent.forward(observation)) for name, observation in observations.items()}
    else:
        return {}
    return estimates | ({"log_prob": agent.log_prob(batch.observation, batch.action)} if has_log_prob else {})


def _play(environment: Any, choose: Callable[[], Any], steps: int) -> tuple[float, float]:
    """Return the sum of the rewards in so many steps, and the mean return of complete episodes; NaN if none."""
    total = earned = 0.0
    returns = []
    environment.reset(seed=0)
    for _ in range(steps):
        _, reward, *ends, info = environment.step(choose())
        total += float(reward)
        earned += unclipped(reward, info)  # as in the returns of training
        if any(ends):
            returns.append(earned)
            earned = 0.0
            environment.reset()
    return total, float(np.mean(returns)) if returns else np.nan
