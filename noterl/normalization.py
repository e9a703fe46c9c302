"""Running normalisation of observations and rewards, as part of an agent.

Owns: the running moments, and when they move. Where rollouts are learned from, those of observations stand still while
one is collected and learned from, so that the policy that acted is the one whose log-probabilities are taken; they move
afterwards, and those of rewards before. Where a replay memory is learned from, both move with every transition; the
memory keeps what the environment gave, and batches are normalised as they are drawn. In evaluation nothing moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from noterl.envs.multi_agent.team import columns
from noterl.types import Batch, Transition
from noterl.utils.checks import check_bool

Array = np.ndarray[Any, Any]

# As in Stable-Baselines3: what is normalised is clipped to this, and this is added to variances.
CLIP, EPSILON = 10.0, 1e-8


class Moments:
    """Mean and variance of all values so far, by the parallel algorithm of Chan, Golub and LeVeque (1979).

    Args:
        shape: of one value.

    Attributes:
        mean: `[*shape]`, 0 before the first value.
        variance: `[*shape]`, the population's; 1 before the first value.
        count: how many values.

    Example:
    >>> import numpy as np
    >>> from noterl.normalization import Moments
    >>> moments = Moments(())
    >>> moments.update(np.array([1.0, 3.0]))
    >>> moments.update(np.array([5.0]))
    >>> float(moments.mean), round(float(moments.variance), 3), moments.count
    (3.0, 2.667, 3)
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.mean, self.variance, self.count = np.zeros(shape), np.ones(shape), 0

    def update(self, values: Array) -> None:
        """Take more values `[n, *shape]` into account."""
        if len(values):
            values = np.asarray(values, np.float64)
            self._join(values.mean(axis=0), values.var(axis=0), len(values))

    def add(self, value: Any) -> None:
        """Take one more value `[*shape]` into account."""
        self._join(np.asarray(value, np.float64), 0.0, 1)

    def _join(self, mean: Array, variance: Array | float, added: int) -> None:
        total, shift = self.count + added, mean - self.mean
        squares = self.variance * self.count + variance * added + np.square(shift) * (self.count * added / total)
        self.mean = self.mean + shift * (added / total)
        self.variance, self.count = squares / total, total

    def get_state(self) -> dict[str, Any]:
        """Return everything."""
        return {"mean": self.mean.copy(), "variance": self.variance.copy(), "count": self.count}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take what `get_state` returned.

        Raises:
            ValueError: if it is of values of another shape; nothing is changed then.
        """
        arrays = [np.array(state[name], np.float64) for name in ("mean", "variance")]
        if any(array.shape != self.mean.shape for array in arrays) or type(state["count"]) is not int:
            raise ValueError(f"the state of the normaliser does not fit: {state!r}")
        (self.mean, self.variance), self.count = arrays, state["count"]


class Normalizers:
    """What an agent normalises.

    Observations become `clip((x - mean) / sqrt(variance + 1e-8), -10, 10)`. Rewards are divided by the standard
    deviation of the running discounted return, which keeps their sign, and clipped likewise.

    Args:
        shape: of an observation, or None to leave observations alone.
        reward: whether rewards are normalised.
    """

    def __init__(self, shape: tuple[int, ...] | None, reward: bool) -> None:
        self.observation = None if shape is None else Moments(shape)
        self.reward = Moments(()) if reward else None
        self._returns = np.zeros(0)  # [N], the discounted return of each lane so far

    def normalize_observation(self, observations: Array) -> Array:
        """Return observations `[..., *shape]` as networks see them, float32.

        They are rounded to float32 first, as memories keep them: what is acted on is what is learned from.
        """
        moments = self.observation
        if moments is None:
            return observations
        scaled = (observations.astype(np.float32, copy=False) - moments.mean) / np.sqrt(moments.variance + EPSILON)
        return np.clip(scaled, -CLIP, CLIP).astype(np.float32)

    def normalize_reward(self, rewards: Array) -> Array:
        """Return rewards `[...]` as losses see them, float32."""
        if self.reward is None:
            return rewards
        return np.clip(rewards / np.sqrt(self.reward.variance + EPSILON), -CLIP, CLIP).astype(np.float32)

    def rollout(self, batch: Batch, gamma: float) -> Batch:
        """Return a rollout `[T, N, ...]` normalised, with returns discounted by gamma, and take it into account."""
        counted, before = batch.weight > 0, batch
        batch = self._with_seen(batch)
        if self.observation is not None:
            self.observation.update(before.observation[counted])
        if self.reward is not None:
            self.reward.update(self._discounted(batch, gamma)[counted])
        return self._with_scaled(batch)

    def replayed(self, batch: Batch) -> Batch:
        """Return batches `[K, B, ...]` of a replay memory normalised; the rewards of n steps are clipped as one."""
        return self._with_scaled(self._with_seen(batch))

    def update(self, transition: Transition, gamma: float) -> None:
        """Take a transition that goes to a replay memory into account."""
        if self.observation is not None:
            self.observation.add(np.asarray(transition.observation, np.float32))
        if self.reward is not None:
            lane = transition.lane
            if lane >= len(self._returns):
                self._returns = np.append(self._returns, np.zeros(lane + 1 - len(self._returns)))
            self._returns[lane] = gamma * self._returns[lane] + transition.reward
            self.reward.add(self._returns[lane])

    def interrupt(self, lane: int) -> None:
        """Begin the discounted return of a lane anew: its next transition does not follow from the last one."""
        if lane < len(self._returns):
            self._returns[lane] = 0.0

    def _with_seen(self, batch: Batch) -> Batch:
        return batch._replace(
            observation=self.normalize_observation(batch.observation),
            next_observation=self.normalize_observation(batch.next_observation),
        )

    def _with_scaled(self, batch: Batch) -> Batch:
        return batch._replace(reward=self.normalize_reward(batch.reward))

    def _discounted(self, batch: Batch, gamma: float) -> Array:
        """Return the discounted return so far at each step `[T, N]`; an episode's end begins it anew."""
        steps, lanes = batch.reward.shape
        running = self._returns if len(self._returns) == lanes else np.zeros(lanes)
        found, ended = np.empty((steps, lanes)), batch.extra["ended"] > 0
        for t in range(steps):
            counted = batch.weight[t] > 0
            running = np.where(counted, gamma * running + batch.reward[t], running)
            found[t] = running
            running = np.where(ended[t], 0.0, running)
        self._returns = running
        return found

    def get_state(self) -> dict[str, Any]:
        """Return everything."""
        state = {name: None if found is None else found.get_state() for name, found in self._named()}
        return {**state, "returns": self._returns.copy()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take what `get_state` returned.

        Raises:
            ValueError: if it normalises other things.
        """
        for name, found in self._named():
            if (state[name] is None) != (found is None):
                raise ValueError(f"the state normalises {name}s, or the agent does, but not both")
        for name, found in self._named():
            if found is not None:
                found.set_state(state[name])
        self._returns = np.array(state["returns"], np.float64)

    def arrays(self) -> dict[str, Array]:
        """Return the moments by "observation/mean" and so on: what belongs to the networks' weights."""
        kept = [(name, found) for name, found in self._named() if found is not None]
        return {f"{name}/{key}": np.asarray(value) for name, found in kept for key, value in found.get_state().items()}

    def set_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Take what `arrays` returned, of the same shapes."""
        values = {name: int(array) if name.endswith("/count") else array for name, array in arrays.items()}
        for name, found in self._named():
            if found is not None:
                found.set_state({key: values[f"{name}/{key}"] for key in ("mean", "variance", "count")})

    def __str__(self) -> str:
        return " and ".join(f"{name}s" for name, found in self._named() if found is not None)

    def _named(self) -> list[tuple[str, Moments | None]]:
        return [("observation", self.observation), ("reward", self.reward)]


class TeamNormalizers:
    """What several agents normalise: each its own observations and rewards, by its own moments.

    Only steps in which an agent takes part move its moments.

    Args:
        sizes: how many values each agent's network sees.
        observation: whether observations are normalised.
        reward: whether rewards are, those that are learned from.

    Attributes:
        agents: the normalisers of each.
    """

    def __init__(self, sizes: Sequence[int], observation: bool, reward: bool) -> None:
        self.agents = [Normalizers((size,) if observation else None, reward) for size in sizes]
        self._parts = list(zip(self.agents, columns(sizes), strict=True))

    def normalize_observation(self, observations: Array) -> Array:
        """Return the agents' observations side by side `[..., D]` as networks see them, float32."""
        return np.concatenate(
            [one.normalize_observation(observations[..., place]) for one, place in self._parts], axis=-1
        )

    def replayed(self, batch: Batch) -> Batch:
        """Return batches `[K, B, ...]` of a replay memory normalised, rewards `[K, B, agents]`."""
        rewards = [one.normalize_reward(batch.reward[..., agent]) for agent, one in enumerate(self.agents)]
        seen = self.normalize_observation(batch.observation), self.normalize_observation(batch.next_observation)
        return batch._replace(observation=seen[0], next_observation=seen[1], reward=np.stack(rewards, axis=-1))

    def update(self, transition: Transition, gamma: float) -> None:
        """Take a transition that goes to the memory into account."""
        several: Any = transition.extra  # `noterl.replay.returns.TEAM_FIELDS`
        for agent, (one, place) in enumerate(self._parts):
            if several["present"][agent]:
                own = {"observation": transition.observation[place], "reward": several["reward"][agent]}
                one.update(transition._replace(**own), gamma)

    def interrupt(self, lane: int) -> None:
        """Begin the discounted returns of a lane anew."""
        for one in self.agents:
            one.interrupt(lane)

    def get_state(self) -> dict[str, Any]:
        """Return everything."""
        return {str(agent): one.get_state() for agent, one in enumerate(self.agents)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take what `get_state` returned.

        Raises:
            ValueError: if it is of another number of agents, or normalises other things.
        """
        if set(state) != set(self.get_state()):
            raise ValueError(f"the state normalises for {len(state)} agents, but there are {len(self.agents)}")
        for agent, one in enumerate(self.agents):
            one.set_state(state[str(agent)])

    def arrays(self) -> dict[str, Array]:
        """Return the moments by "0/observation/mean" and so on: what belongs to the networks' weights."""
        return {
            f"{agent}/{name}": array for agent, one in enumerate(self.agents) for name, array in one.arrays().items()
        }

    def set_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Take what `arrays` returned, of the same shapes."""
        for agent, one in enumerate(self.agents):
            one.set_arrays({name: arrays[f"{agent}/{name}"] for name in one.arrays()})

    def __str__(self) -> str:
        return f"{self.agents[0]} of each agent"


def attach(agent: Any, observation: bool = False, reward: bool = False) -> None:
    """Let an agent normalise; for its constructor, after `super().__init__` and before networks are built.

    Args:
        agent: of which networks will see normalised observations, and losses normalised rewards.
        observation: whether observations are normalised.
        reward: whether rewards are.

    Raises:
        ValueError: if observations are images, which networks scale themselves.
    """
    check_bool("normalize_observation", observation)
    check_bool("normalize_reward", reward)
    if not observation and not reward:
        return
    if observation and agent.is_image:
        raise ValueError("normalize_observation is for vectors; networks scale images themselves")
    if agent.multi_agent:
        agent._set(_normalizers=TeamNormalizers(agent.observation_size, observation, reward))
    else:
        agent._set(_normalizers=Normalizers(agent.observation_shape if observation else None, reward))
    if observation:
        agent._set(observation_dtype=np.dtype(np.float32))  # of bytes, too
