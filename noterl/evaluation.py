"""The value of a policy from a data set, without an environment.

Paper: Le, Voloshin and Yue, "Batch policy learning under constraints" (2019), algorithm 3: fitted Q evaluation. Hao et
al., "Bootstrapping fitted Q-evaluation for off-policy inference" (2021), algorithm 1: its interval.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from noterl import backends, heads, losses, networks
from noterl.agent import Agent, Defaults
from noterl.backends import keras, ops
from noterl.data import Dataset
from noterl.hyperparameters import discount_factor
from noterl.learning.expert_data import with_agent_spaces
from noterl.learning.runner import UpdateRunner
from noterl.networks.critics import build_critics, q_values
from noterl.replay import Replay
from noterl.types import Batch, Counters, StopRequest, map_arrays
from noterl.utils.checks import check_positive

# Rows that the policy or the critics receive at once.
_CHUNK = 1024


class Estimate(NamedTuple):
    """The value of a policy, and the bounds of its interval.

    Attributes:
        value: the mean over episodes of the estimated discounted return from the first observation.
        low: the 2.5 % quantile over the bootstrap samples.
        high: the 97.5 % quantile.
    """

    value: float
    low: float
    high: float


def fqe(agent: Agent, dataset: Any, *, updates: int = 10_000, bootstrap: int = 20, seed: int = 0) -> Estimate:
    """Estimate the discounted return of an agent's deterministic policy from a data set; the agent does not change.

    Critics learn the values of the policy from the transitions (fitted Q evaluation). The policy chooses the next
    actions, truncated episodes are bootstrapped, and the discount is the agent's `gamma`. One critic learns from all
    episodes and gives `value`. Each of the others learns from episodes that are drawn with replacement. The interval
    holds the error of a finite data set, but not that of actions that the data lack.

    Args:
        agent: the agent.
        dataset: a `noterl.Dataset` with episodes that the agent has not learned from, or what `Dataset.load` takes.
        updates: gradient updates of all critics.
        bootstrap: the number of samples of episodes; use 100 for a report.
        seed: of the samples, the batches and the initial weights.

    Raises:
        ValueError: if an argument is not one of the allowed values, if the agent has a state, or if the data set has
            other spaces or fewer than two episodes.

    Example:
    >>> import noterl
    >>> from noterl.evaluation import fqe
    >>> agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    >>> data = noterl.Dataset.record(agent, episodes=5)
    >>> estimate = fqe(agent, data, updates=20, bootstrap=3)
    >>> estimate.low <= estimate.high
    True
    """
    check_positive("updates", updates)
    check_positive("bootstrap", bootstrap)
    if agent.state_spec:
        raise ValueError(f"agent must have no state, got the state_spec {agent.state_spec!r} of {type(agent).__name__}")
    dataset = with_agent_spaces(agent, dataset if isinstance(dataset, Dataset) else Dataset.load(dataset), "dataset")
    episodes = len(dataset.lengths)
    if episodes < 2:
        raise ValueError(f"dataset must have at least two episodes, because episodes are drawn, got {episodes}")
    counts = np.random.default_rng(seed).multinomial(episodes, np.full(episodes, 1 / episodes), bootstrap)
    counts = np.concatenate([np.ones((1, episodes)), counts]).astype(np.float32)  # [N, E], the first for the data
    policy = _vectors(agent.action_space, _chunked(agent.act, len(dataset) + episodes, dataset.observations))
    evaluator = _FittedQ(agent, policy.shape[1], len(counts), *_scale(dataset, discount_factor(agent)), seed)
    evaluator.learn(dataset, policy, counts.T, updates)
    # The first observation of each episode; each episode before has one observation more than steps.
    first = np.cumsum(dataset.lengths + 1) - dataset.lengths - 1
    values = evaluator.values(map_arrays(lambda array: array[first], dataset.observations), policy[first])  # [E, N]
    means = (values * counts.T).sum(axis=0) / episodes
    low, high = np.quantile(means[1:], (0.025, 0.975))
    return Estimate(float(means[0]), float(low), float(high))


class _FittedQ(Agent):
    """Critics of another agent's policy; the action of a transition is a field of the memory. Each `fqe` makes one.

    Args:
        agent: the agent whose policy is evaluated.
        size: A, the values of an action as a vector.
        critics: N, the number of critics.
        mean: of the returns in the data; initial values are near it.
        deviation: of these returns; critics learn values in this unit.
        seed: of batches and weights.
    """

    def __init__(self, agent: Agent, size: int, critics: int, mean: float, deviation: float, seed: int) -> None:
        # Without actions of its own, because each kind of action space is a vector here.
        source = agent.observation_space, spaces.Discrete(1)
        super().__init__(source, seed=seed, normalize_observation=not agent.is_image)
        self.head: Any = heads.Categorical().bind(self.action_space)
        self.info_spec: Any = {
            "action_vector": ((size,), np.float32, 0),
            "policy_vector": ((size,), np.float32, 0),
            "count": ((critics,), np.float32, 0),
        }
        self.gamma: float = discount_factor(agent)
        self.mean, self.deviation = mean, deviation

        def build(layers: Any) -> networks.Network:
            return networks.default_critic(self.spaces.network_space, layers, size)

        self.critics: list[Any] = build_critics([None] * critics, (64, 64), build, (self.observation_size + size,))
        self.target_critics: list[Any] = [networks.clone(critic) for critic in self.critics]

    def defaults(self) -> Defaults:
        """Return the settings; the target follows fast, because the policy that it evaluates does not change."""
        return Defaults(target_update=0.05)

    def forward(self, observation: Any) -> Any:
        """Return the first critic's values `[B, 1]` of zeros; the agent never acts."""
        zeros = ops.zeros((observation.shape[0], self.info_spec["action_vector"][0][0]))
        return ops.expand_dims(q_values(self.critics[:1], observation, zeros)[0], 1)

    def update(self, batch: Batch) -> tuple[dict[str, Any], dict[str, Any]]:
        """Update all critics."""
        loss, _ = self.minimize(self.loss, self.critics, "optimizer", batch)
        return {"loss": loss}, {}

    def loss(self, batch: Batch) -> Any:
        """Return the sum over critics of the mean squared errors of standardized values.

        A transition counts as often as the critic's bootstrap sample holds its episode.
        """
        following = q_values(self.target_critics, batch.next_observation, batch.extra["next_policy_vector"])
        total = 0.0
        for k, q in enumerate(q_values(self.critics, batch.observation, batch.extra["action_vector"])):
            target = losses.td_target(batch.reward, batch.discount, self.mean + self.deviation * following[k])
            error = q - (target - self.mean) / self.deviation
            total = total + losses.weighted_mean(losses.squared(error), batch.extra["count"][:, k])
        return total

    def update_target(self) -> None:
        """Move the target networks."""
        for critic, target in zip(self.critics, self.target_critics, strict=True):
            networks.copy(critic, target)

    def learn(self, dataset: Dataset, policy: np.ndarray, counts: np.ndarray, updates: int) -> None:
        """Store the transitions and make the updates.

        Args:
            dataset: the data.
            policy: the policy's actions for all observations of the data, `[transitions + episodes, A]`.
            counts: how often each critic's sample holds an episode, `[E, N]`.
            updates: the number of updates.
        """
        size = min(64, updates)  # of a compiled call
        batch_size = min(256, len(dataset))
        # With a constant rate, the last updates move the values by more than the width of an interval.
        optimizer = keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(1e-3, updates))
        replay = Replay(len(dataset))
        self.compile(optimizer, replay=replay, batch_size=batch_size, update_every=size, updates=size)
        learner: Any = self._parts.build()[0]
        # The memory's own actions are 0, because "action_vector" has the actions.
        storage = learner.replay.storage
        no_actions = {"actions": np.zeros(len(dataset), np.int64), "action_space": self.action_space}
        storage.fill(dataset.from_config({**dataset.get_config(), **no_actions}))
        # Each episode has one observation more than transitions.
        rows = np.arange(len(dataset)) + np.repeat(np.arange(len(dataset.lengths)), dataset.lengths)
        fields = {
            "action_vector": _vectors(dataset.action_space, dataset.actions),
            "policy_vector": policy[rows],
            "count": np.repeat(counts, dataset.lengths, axis=0),
        }
        following = {**fields, "policy_vector": policy[rows + 1]}
        for name, values in fields.items():
            storage.extra[name][:] = values
            storage.extra[f"next_{name}"][:] = following[name]
        statistics = getattr(self.spaces.normalizers, "observation", None)
        if statistics is not None:
            statistics.update(np.asarray(self.spaces.encoder(dataset.observations), np.float32))
        runner = UpdateRunner(learner, Counters(), StopRequest())
        while runner.counters.updates < updates:
            runner.run(min(size, updates - runner.counters.updates))

    def values(self, observations: Any, actions: np.ndarray) -> np.ndarray:
        """Return the critics' values of these observations and action vectors, `[n, N]`."""
        rows = np.asarray(self.spaces.encoder(observations))
        if self.spaces.normalizers is not None:
            rows = self.spaces.normalizers.normalize_observation(rows)

        def evaluate(*pair: np.ndarray) -> np.ndarray:
            return backends.current().fetch(ops.stack(q_values(self.critics, *pair), axis=1))

        return self.mean + self.deviation * _chunked(evaluate, len(rows), rows, actions)


def _scale(dataset: Dataset, gamma: float) -> tuple[float, float]:
    """Return mean and standard deviation of the discounted returns from each step of the data."""
    returns: list[float] = []
    for episode in dataset.episodes:
        rewards = reversed(episode.rewards.tolist())
        returns += accumulate(rewards, lambda following, reward: reward + gamma * following)
    return float(np.mean(returns)), float(np.std(returns)) or 1.0


def _vectors(space: spaces.Space[Any], actions: Any) -> np.ndarray:
    """Return actions `[n, ...]` as vectors: one-hot for Discrete, otherwise their values."""
    if isinstance(space, spaces.Discrete):
        return np.eye(int(space.n), dtype=np.float32)[np.asarray(actions) - int(space.start)]
    return np.asarray(actions, np.float32).reshape(len(actions), -1)


def _chunked(function: Callable[..., np.ndarray], count: int, *arrays: Any) -> np.ndarray:
    """Return what a function of rows returns for all `count` rows of arrays, or of dicts of arrays."""
    results = []
    for first in range(0, count, _CHUNK):
        part = slice(first, first + _CHUNK)
        results.append(function(*(map_arrays(lambda array: array[part], rows) for rows in arrays)))  # noqa: B023
    return np.concatenate(results)
