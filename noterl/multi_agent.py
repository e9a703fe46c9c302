"""Agents for environments of several agents.

Lanes, memory and compiled calls handle one vector with all observations and one with all actions (see
`noterl.envs.multi_agent.team`). `MultiAgent` splits the arrays for `forward` and `update`, and joins the arrays for
acting.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from noterl import heads
from noterl.acting.policy_state import read_state
from noterl.agent import BaseAgent
from noterl.backends import ops
from noterl.types import Batch
from noterl.utils.checks import check_bool


class MultiAgent(BaseAgent):
    """Base of algorithms that train several agents at once, in PettingZoo's parallel environments or in lists.

    `MultiAgent` is a sibling of `Agent`, not a subclass: both are a `noterl.agent.BaseAgent`.

    Like `Agent`, but per agent: `observation_space` and `action_space` are Tuples; `observation_size` and `action_size`
    are tuples. `forward(observation, agent)` is called for one agent, by its number. The batch fields observation,
    action, reward, next_observation and discount are tuples with one entry for each agent; `weight` and `index` are
    common to all agents. In `batch.extra`, `present[i]` `[B]` is 1 if agent i takes part in the step, else 0.
    `remaining[i]` `[B]` is 1 if agent i also has a value in the next observation, else 0. A loss should leave out the
    rows in which its agent is not present.

    Args:
        env: an environment of several agents, a function that makes one, or a pair of Tuple spaces.
        seed: see `Agent`.
        normalize_observation: False; only a single agent's observations are normalized.
        normalize_reward: False; only a single agent's rewards are normalized.

    Raises:
        ValueError: if `env` is none of these, or the algorithm does not support its spaces.

    Attributes:
        names: the names of the agents, in order.
    """

    multi_agent = True
    action_spaces: tuple[str, ...] = ("Box", "Discrete", "MultiDiscrete")
    head: Any = heads.Joint()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the agents, in order."""
        return self._team.names

    @property
    def _team(self) -> Any:
        return self.spaces.team

    def forward(self, observation: Any, agent: int) -> Any:
        """Return the output of one agent's network for its observations `[B, ...]`."""
        raise NotImplementedError(f"{type(self).__name__} must define forward(observation, agent)")

    def team_reward(self, rewards: np.ndarray, terminations: np.ndarray) -> Any:
        """Return the reward that the agents learn from: one number for all, or one for each; by default their own.

        The mean over the agents is the `reward` of logs and evaluations. The logs also hold the return of each agent's
        own rewards.

        Args:
            rewards: the rewards of the environment, `[agents]`; 0 for agents that have left.
            terminations: bool `[agents]`, True for agents that terminated in this step or before.
        """
        return rewards

    @property
    def observation_size(self) -> tuple[int, ...]:
        """Number of values that each agent's network receives."""
        return tuple(int(np.prod(shape)) for shape in self.spaces.network_shape)

    @property
    def action_size(self) -> tuple[int, ...]:
        """Number of choices, or of values, in each agent's action."""
        return tuple(part.size for part in self.head.parts)

    def act(
        self,
        observation: Any,
        state: Any = None,
        *,
        starts: Any = None,
        deterministic: bool = True,
        action_mask: Any = None,
    ) -> tuple[Any, ...]:
        """Return every agent's action, a tuple, for a tuple, a list or (by name) a dict of their observations.

        Batches of observations, `[N, ...]` of every agent, give batches of actions. See `Agent.act`.

        Raises:
            ValueError: if there is not one observation of the right shape for each agent, for a bad `deterministic`, or
                if there is an `action_mask` or a state, which several agents do not support.
        """
        check_bool("deterministic", deterministic)
        read_state(state, starts, {}, 1)
        if action_mask is not None:
            raise ValueError(f"action_mask must be None for several agents, got {action_mask!r}")
        if isinstance(observation, Mapping):
            # PettingZoo's ids may be ints; `names` holds their text.
            observation = {str(name): part for name, part in observation.items()}
            if set(observation) != set(self.names):
                raise ValueError(f"observation must have an entry for each of {self.names}, got {list(observation)}")
            observation = [observation[name] for name in self.names]
        joint = self._team.joined_observations(observation)
        actions, _ = self._parts.act_encoded(np.atleast_2d(joint), deterministic)
        return self._team.actions(actions[0]) if joint.ndim == 1 else self._team.batched_actions(actions)

    def _joint_forward(self, observation: Any) -> Any:
        """Return the outputs of all agents side by side, for their observations side by side; for acting."""
        observations = self._team.split_observations(observation, ops.reshape)
        return ops.concatenate([self.forward(part, agent) for agent, part in enumerate(observations)], axis=-1)

    def _per_agent_batch(self, batch: Batch) -> Batch:
        """Return a batch whose fields are tuples with an entry for each agent, as `loss` and `update` receive it."""
        extra = dict(batch.extra)
        for name in ("present", "remaining"):
            extra[name] = self._columns(extra[name])
        return batch._replace(
            observation=self._team.split_observations(batch.observation, ops.reshape),
            action=self._team.split_actions(batch.action, ops.reshape),
            reward=self._columns(batch.reward),
            next_observation=self._team.split_observations(batch.next_observation, ops.reshape),
            discount=self._columns(batch.discount),
            extra=extra,
        )

    def _columns(self, values: Any) -> tuple[Any, ...]:
        return tuple(values[:, agent] for agent in range(len(self.names)))
