"""Data sets in replay memories, from which updates sample, alone or beside the agent's own memory."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import keras
import numpy as np

from noterl.algorithm import Algorithm
from noterl.data.rows import digest
from noterl.envs import EnvSource
from noterl.hyperparameters import discount_factor
from noterl.learning.device_observations import DeviceObservations
from noterl.learning.expert_data import with_agent_spaces
from noterl.learning.info_fields import with_next
from noterl.learning.learner import Learner
from noterl.registry import Configurable
from noterl.replay import Replay, Sample
from noterl.replay.columns import map_leaves
from noterl.types import Batch

_CHUNK = 2**14  # observations whose statistics are computed at once


def check_learns_from_data(algorithm: Algorithm, data: Any, argument: str = "dataset") -> Any:
    """Return a data set for an agent that can learn from data sets.

    Raises:
        ValueError: if the agent cannot learn from data sets, or has other spaces.
    """
    reasons = {
        "learns from rollouts of its current policy, and data come from other policies": algorithm.memory != "replay",
        "has several agents, and data are of one": algorithm.multi_agent,
        "has a state_spec, and data have no states of a policy": bool(algorithm.state_spec),
        "stores what its forward returns, and data lack this": bool(algorithm.extra_spec),
    }
    for reason, applies in reasons.items():
        if applies:
            raise ValueError(f"{argument} must be None for {type(algorithm).__name__}, which {reason}")
    return with_agent_spaces(algorithm, data, argument)


def with_rewards_of(source: EnvSource, data: Any) -> Any:
    """Return a data set with clipped rewards if agents see such ones in the environments of the source."""
    return data.clipped if source.clips_rewards else data


class DataMemory:
    """A data set in a replay memory that has the settings of an agent's own memory, except for the capacity.

    `fit(dataset=)` makes one for the data and one for the validation data.

    Args:
        learner: the agent's learner, which is built.
        data: a `noterl.Dataset`.
        identity: of the data; empty for validation data.
        settings: arguments of `Replay` that replace the agent's.

    Attributes:
        identity: of the data, which a resumed run compares.
        replay: the memory.
    """

    def __init__(self, learner: Learner, data: Any, identity: str = "", **settings: Any) -> None:
        template = learner.replay
        assert template is not None
        self.identity: str = identity
        # A sampler belongs to one memory, so parts are copied.
        config = {
            name: value.from_config(value.get_config()) if isinstance(value, Configurable) else value
            for name, value in template.get_config().items()
        }
        self.replay: Replay = Replay(**{**config, "capacity": len(data), **settings})
        follow_settings(self.replay.sampler, template.sampler)
        source = learner.algorithm.spaces.source
        self.replay.build(source.observation_space, source.action_space, next_actions=learner.algorithm.next_actions)
        self.replay.storage.fill(data)
        self.replay.add_fields(with_next(learner.info_spec))
        if self.replay.relabel is not None:
            self.replay.relabel.attach(learner.algorithm, source)
        if template.device_copy is not None:
            self.replay.device_copy = DeviceObservations(self.replay, learner.variables[0])

    def get_state(self, *, replay: bool) -> dict[str, Any]:
        """Return the identity of the data and, with `replay`, the state of the sampler; not the data."""
        return {"identity": self.identity, "sampler": self.replay.sampler.get_state() if replay else None}

    def set_state(self, state: dict[str, Any], *, is_resumed: bool) -> None:
        """Restore what `get_state` returned, if the state is of the same data; ignore the state of other data.

        Raises:
            ValueError: if a run resumes with other data, or the state is malformed.
        """
        if state["identity"] == self.identity:
            if state["sampler"] is not None:
                self.replay.sampler.check_state(state["sampler"], len(self.replay))
                self.replay.sampler.set_state(state["sampler"])
        elif is_resumed:
            raise ValueError("dataset must hold the data of the run that is resumed, but the data differ")


def follow_settings(sampler: Any, template: Any) -> None:
    """Set the settings of a sampler, such as `beta`, to those of the agent's sampler, which callbacks may change."""
    for name in sampler.settable:
        setattr(sampler, name, getattr(template, name, getattr(sampler, name)))


def identity_of(data: Any) -> str:
    """Return a hash of everything in a data set that updates may depend on.

    Arrays may change in place between two fits, so each `fit(dataset=)` computes the hash.
    """
    return digest(data.observations, data.actions, data.rewards, data.lengths, data.terminated)


def fix_statistics(algorithm: Algorithm, data: Any) -> None:
    """Compute the statistics of the normalizers from a data set; the ones of observations then stay fixed.

    Statistics that exist already are kept. Each `fit(dataset=)` calls this function before training.
    """
    normalizers = algorithm.spaces.normalizers
    if normalizers is None:
        return
    statistics = normalizers.observation
    if statistics is not None:
        # Each episode has one more observation than steps. If statistics exist, no observations are added.
        count = len(data) + len(data.lengths)
        for first in range(0, 0 if statistics.count else count, _CHUNK):
            rows = map_leaves(lambda array: array[first : first + _CHUNK], data.observations)  # noqa: B023
            statistics.update(np.asarray(algorithm.spaces.encoder(rows), np.float32))
        statistics.is_fixed = True
    if normalizers.reward is not None and not normalizers.reward.count:
        # Rewards are divided by the standard deviation of the running discounted return; see `normalization`.
        gamma = discount_factor(algorithm)
        returns: list[float] = []
        for episode in data.episodes:
            returns += accumulate(episode.rewards.tolist(), lambda discounted, reward: gamma * discounted + reward)
        normalizers.reward.update(np.array(returns))


@dataclass(eq=False)
class MixedSample:
    """The samples of two memories for the same updates; like a `Sample`.

    Attributes:
        own: of the agent's memory, `[K, B - D]`.
        data: of the data set, `[K, D]`.
        gamma: the discount of one step.
    """

    own: Sample
    data: Sample
    gamma: float | None = None

    def __len__(self) -> int:
        return len(self.own)

    def __getitem__(self, updates: Any) -> MixedSample:
        return MixedSample(self.own[updates], self.data[updates], self.gamma)


def rows_of_data(share: float, batch_size: int) -> int:
    """Return how many transitions of a mixed batch come from the data set: at least one, and not all."""
    return min(max(round(share * batch_size), 1), batch_size - 1)


class MixedMemory:
    """The agent's own memory and a data set: each batch holds transitions of both; used like a `Replay` by learners.

    `fit(env, dataset=)` makes one. The learner samples from it during this `fit` (`ReplayLearner.learning_from`).

    Args:
        own: the agent's memory.
        data: the memory of the data set.
        share: the share of the data set in each batch, above 0 and below 1.
    """

    def __init__(self, own: Replay, data: Replay, share: float) -> None:
        self.own: Replay = own
        self.data: Replay = data
        self.sampler: Any = own.sampler
        self.feedback_fields: tuple[str, ...] = own.feedback_fields
        self.device_copy: Any = own.device_copy
        self.gather_ahead: Any = own.gather_ahead
        self._share = share

    def num_sampleable(self, at_most: int) -> int:
        """Return `at_most` if a batch of this size can be sampled, otherwise 0."""
        rows = rows_of_data(self._share, at_most)
        counts = (self.own, at_most - rows), (self.data, rows)
        return at_most if all(count and memory.num_sampleable(count) >= count for memory, count in counts) else 0

    def sample(self, updates: int, batch_size: int, *, generator: np.random.Generator) -> MixedSample:
        """Sample both memories; see `Replay.sample`."""
        rows = rows_of_data(self._share, batch_size)
        follow_settings(self.data.sampler, self.own.sampler)
        own = self.own.sample(updates, batch_size - rows, generator=generator)
        return MixedSample(own, self.data.sample(updates, rows, generator=generator))

    def gather(self, sample: MixedSample, *, gamma: float) -> Batch:
        """Return the batches `[K, B, ...]`, with the transitions of the agent's memory first."""
        pairs = zip(self.own.gather(sample.own, gamma=gamma), self.data.gather(sample.data, gamma=gamma), strict=True)
        return Batch(*(map_leaves(_joined, *pair) for pair in pairs))

    def feedback(self, sample: MixedSample, values: dict[str, Any]) -> None:
        """Pass the feedback to both memories; see `Replay.feedback`."""
        rows = sample.own.indices.shape[1]
        self.own.feedback(sample.own, {name: value[:, :rows] for name, value in values.items()})
        self.data.feedback(sample.data, {name: value[:, rows:] for name, value in values.items()})


def _joined(own: Any, data: Any) -> Any:
    """Return arrays `[K, B, ...]`, of NumPy or on the device, one after the other along axis 1."""
    join = np.concatenate if isinstance(own, np.ndarray) else keras.ops.concatenate
    return join([own, data], axis=1)
