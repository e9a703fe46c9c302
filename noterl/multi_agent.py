"""Agents of an environment of several agents: what `Agent` is for one.

Owns: tuples. Lanes, memory and compiled calls handle one vector of all observations and one of all actions (see
`noterl.envs.multi_agent.team`); here they are split for `update` and joined for acting.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from noterl import heads, networks
from noterl.agent import Agent
from noterl.backends import ops
from noterl.types import Batch
from noterl.utils.checks import check_bool


class MultiAgent(Agent):
    """Base of algorithms that learn with several agents at once, in PettingZoo's parallel environments or in lists.

    As for `Agent`, but per agent: `observation_space` and `action_space` are Tuples, `observation_size` and
    `action_size` tuples; `forward(observation, agent)` is asked for one agent, by its number; the fields observation,
    action, reward, next_observation and discount of a batch are tuples, `weight` and `index` are the rows'. In
    `batch.extra`, `present[i]` and `remaining[i]` `[B]` are 1 where agent i takes part in the step, and in the state of
    the next observation; losses should leave out the rows in which their agent is not present.

    Args:
        env: an environment of several agents, a function that makes one, or a pair of Tuple spaces.
        seed: see `Agent`.

    Raises:
        ValueError: if `env` is none of these, or of a kind of space that the algorithm does not take.

    Attributes:
        names: of the agents, in order.
    """

    memory = "replay"
    multi_agent = True
    action_spaces = ("Box", "Discrete", "MultiDiscrete")
    head: Any = heads.Joint()

    def __init__(self, env: Any, *, seed: int | None = None) -> None:
        super().__init__(env, seed=seed)
        assert self.source.team is not None, "an environment of one agent was refused"
        self._team: Any = self.source.team
        self.names: tuple[str, ...] = self.source.team.names

    def forward(self, observation: Any, agent: int) -> Any:  # type: ignore[override]
        """Return the output of one agent's network for its observations `[B, ...]`."""
        raise NotImplementedError(f"{type(self).__name__} must define forward(observation, agent)")

    def team_reward(self, rewards: np.ndarray, terminations: np.ndarray) -> Any:
        """Return what the agents learn from: one number that all of them share, or one for each; by default their own.

        The mean of it over the agents is the `reward` of logs and evaluations; what each agent earned is logged beside.

        Args:
            rewards: the environment's, `[agents]`; 0 for those who have left.
            terminations: who is done, in this step or before, bool `[agents]`.
        """
        return rewards

    @property
    def observation_size(self) -> tuple[int, ...]:  # type: ignore[override]
        """Number of values that each agent's network sees."""
        return tuple(int(np.prod(shape)) for shape in self._team.seen_shapes)

    @property
    def observation_shape(self) -> tuple[Any, ...]:
        """Shape of what each agent's network sees."""
        return self._team.seen_shapes

    @property
    def is_image(self) -> bool:
        """Whether some agent's observations are bytes of an image."""
        seen = zip(self._team.observation_space, self._team.seen_shapes, strict=True)
        return any(space.dtype == np.uint8 and networks.is_image_shape(shape) for space, shape in seen)

    @property
    def action_size(self) -> tuple[int, ...]:  # type: ignore[override]
        """Number of choices, or of values, in each agent's action."""
        return tuple(part.size for part in self.head.parts)

    def act(self, observation: Any, *, deterministic: bool = True) -> tuple[Any, ...]:
        """Return every agent's action, a tuple, for a tuple, a list or (by name) a dict of their observations.

        Batches of observations, `[N, ...]` of every agent, give batches of actions. What is drawn where `deterministic`
        is False comes from a generator of its own, as in `Agent.act`.

        Raises:
            ValueError: if it holds not one for every agent, or not of their shapes, or for a bad `deterministic`.
        """
        check_bool("deterministic", deterministic)
        self.build()
        if isinstance(observation, Mapping):
            if set(observation) != set(self.names):
                raise ValueError(
                    f"observation must hold one for each of the agents {list(self.names)}, got {list(observation)}"
                )
            observation = [observation[name] for name in self.names]
        seen = self._team.joined_observations(observation)
        self.acting.stale = True
        explorer = self.explorer if deterministic else self.explorer.copy_with_generator(self._by_hand)
        actions = self.act_on(np.atleast_2d(seen), deterministic, explorer, self.steps)
        return self._team.actions(actions[0]) if seen.ndim == 1 else self._team.batched_actions(actions)

    def outputs(self, observation: Any) -> Any:
        """Return every agent's output side by side `[B, sum]`, for their observations side by side `[B, D]`."""
        parts = self._team.seen(observation, ops.reshape)
        return ops.concatenate([self.forward(part, agent) for agent, part in enumerate(parts)], axis=-1)

    def seen_parts(self, observation: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return each agent's observations `[N, ...]` of those side by side `[N, D]`."""
        return self._team.seen(observation)

    def presented(self, batch: Batch) -> Batch:
        """Return a batch with a tuple for each field that is per agent."""
        extra = dict(batch.extra)
        for name in ("present", "remaining"):
            extra[name] = self._unstacked(extra[name])
        return batch._replace(
            observation=self._team.seen(batch.observation, ops.reshape),
            action=self._team.acted(batch.action, ops.reshape),
            reward=self._unstacked(batch.reward),
            next_observation=self._team.seen(batch.next_observation, ops.reshape),
            discount=self._unstacked(batch.discount),
            extra=extra,
        )

    def enter(self, environment: Any) -> None:
        """Let an environment pay what the agents learn from."""
        environment.team_reward = self.team_reward

    def _unstacked(self, values: Any) -> tuple[Any, ...]:
        return tuple(values[:, agent] for agent in range(len(self.names)))
