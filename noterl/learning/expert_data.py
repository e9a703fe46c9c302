"""Rows of demonstrations in the form of an agent's batches, and the sampling of these rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from noterl.envs.spaces import same_layout
from noterl.replay.columns import action_layout
from noterl.types import ActionData

if TYPE_CHECKING:
    from noterl.algorithm import Algorithm


class ExpertData:
    """The demonstrated observations and actions, as an agent's updates receive them; for cloning and GAIL.

    Args:
        algorithm: the agent.
        data: the demonstrations.

    Attributes:
        observation: encoded, but not normalized, `[n, ...]`.
        action: `[n, ...]`.

    Raises:
        ValueError: if `data` are not demonstrations, or were made in another kind of environment.
    """

    def __init__(self, algorithm: Algorithm, data: Any) -> None:
        check_demonstrations(data)
        if algorithm.multi_agent:
            raise ValueError(f"demonstrations are of one agent, but {type(algorithm).__name__} has several")
        data = with_agent_spaces(algorithm, data, "demonstrations")
        self._algorithm = algorithm
        # Encoded once, because the encoding does not change during training.
        observations, actions = data.pairs()
        encoder = algorithm.spaces.encoder
        self.observation: np.ndarray = encoder(observations).astype(encoder.dtype, copy=False)
        self.action: Any = actions.astype(action_layout(algorithm.action_space).batch_dtype, copy=False)

    def __len__(self) -> int:
        return len(self.action)

    def sample_indices(self, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
        """Return uniformly random rows; any grouping of calls yields the same rows in the same order."""
        return (generator.random(shape) * len(self)).astype(np.int64)

    def gather(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the observations of these rows, normalized by the agent's current statistics, and the actions."""
        observation = self.observation[indices]
        normalizers = self._algorithm.spaces.normalizers
        # Normalized when gathered, because the statistics change during training.
        if normalizers is not None:
            observation = normalizers.normalize_observation(observation)
        return observation, self.action[indices]


def with_agent_spaces(algorithm: Algorithm, data: Any, argument: str) -> Any:
    """Return the data for an agent, whose spaces replace spaces that were inferred from the values of a file.

    Raises:
        ValueError: if the data were made in another kind of environment; the error names both spaces.
    """
    ours = algorithm.observation_space
    if "inferred_spaces" in getattr(data, "origin", ()):
        data = data.with_spaces(ours, algorithm.action_space)
    theirs = data.observation_space
    if not same_layout(ours, theirs):
        raise ValueError(f"{argument} must have the agent's observation_space, {ours}, got {theirs}")
    if algorithm.action_space != data.action_space:
        raise ValueError(
            f"{argument} must have the agent's action_space, {algorithm.action_space}, got {data.action_space}"
        )
    return data


def check_demonstrations(data: Any) -> ActionData:
    """Return the demonstrations unchanged.

    Raises:
        ValueError: if `data` are not demonstrations.
    """
    if not isinstance(data, ActionData) or isinstance(data, type):
        raise ValueError(f"demonstrations must be a noterl.Dataset, got {data!r:.80}")
    return data
