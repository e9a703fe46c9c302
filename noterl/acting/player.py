"""Playing episodes outside of training, in environments that are stepped one by one."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from noterl.acting.policy_state import NO_STATE, State, rows_of, stacked
from noterl.envs import EnvSource
from noterl.envs.checking.checker import Checker
from noterl.envs.ends import warn_if_long
from noterl.envs.rewards import unclipped
from noterl.explorer import Explorer
from noterl.heads import one_of
from noterl.utils.interrupts import check_signals
from noterl.utils.masks import ACTION_MASK, mask_spec, read_mask


@dataclass
class Episode:
    """One episode so far.

    Attributes:
        seed: the seed of the environment.
        lane: the number of the environment.
        reward: the return.
        last_reward: the reward of the newest step.
        length: number of steps so far.
        observation: the newest observation.
        mask: the legal actions, bool `[A]`; None if the environment does not report masks.
        state: the state of the policy before the next step, `[...]` by name.
        earned: the return of each of several agents, `[agents]`; 0 for one agent.
        success: `is_success` at the end; None if this episode does not report success.
        info: its method `add` receives the `info` of each step; None for no use of `info`.
        terminated: whether the environment has terminated the episode.
    """

    seed: int
    lane: int = 0
    reward: float = 0.0
    last_reward: float = 0.0
    length: int = 0
    observation: Any = None
    mask: np.ndarray | None = None
    state: State = field(default_factory=dict)
    earned: Any = 0.0
    success: float | None = None
    info: Any = None
    terminated: bool = False


class Player(NamedTuple):
    """How an agent or a function plays outside of training; each evaluation, `play` and recording makes a player.

    Attributes:
        algorithm: the agent, or a function that chooses the actions.
        actor: chooses the actions of an agent; None for a function.
        source: makes the environments.
        checker: checks the observations and rewards.
    """

    algorithm: Any
    actor: Any
    source: EnvSource
    checker: Checker

    def make_environment(self, render_mode: str | None = None) -> Any:
        """Return an environment to play in, which the caller closes; several agents get the agent's `team_reward`."""
        environment: Any = self.source.make_evaluation(render_mode=render_mode)
        team_reward = getattr(self.algorithm, "team_reward", None)
        if team_reward is not None:
            environment.team_reward = team_reward
        return environment

    def act(self, episodes: list[Episode], explorer: Explorer | None = None) -> list[Any]:
        """Return an agent's action in each episode, without exploration if `explorer` is None.

        The next state of the policy is stored in each episode.
        """
        observations = self.algorithm.spaces.encoder.stack([episode.observation for episode in episodes])
        states: State = stacked([episode.state for episode in episodes])
        actions, states = self.actor.act(observations, self.algorithm.steps, explorer, self._masks(episodes), states)
        for episode, state in zip(episodes, rows_of(states, len(episodes)), strict=True):
            episode.state = state
        return [one_of(actions, row, self.source.action_space) for row in range(len(episodes))]

    def _masks(self, episodes: list[Episode]) -> np.ndarray | None:
        """Return the legal actions in each episode, `[N, A]`; None if no environment reports masks."""
        if all(episode.mask is None for episode in episodes):
            return None
        ((shape, dtype, default),) = mask_spec(self.source.action_space).values()
        # An environment that reports no mask allows every action.
        everything = np.full(shape, default, dtype)
        return np.stack([everything if episode.mask is None else episode.mask for episode in episodes])

    def _mask(self, info: Mapping[str, Any], terminated: bool = False) -> np.ndarray | None:
        """Return the legal actions; None if the environment does not report masks, or the player takes no masks."""
        if ACTION_MASK not in info or self.actor is None or not self.actor.head.takes_mask:
            return None
        return read_mask(info[ACTION_MASK], self.source.action_space, terminated=terminated)

    def begin(self, episode: Episode, environment: Any) -> None:
        """Reset the environment and store the first observation in `episode`."""
        result = environment.reset(seed=episode.seed)
        episode.observation, info = self.checker.reset(result, episode.lane, 0)
        episode.mask = self._mask(info)
        episode.state = NO_STATE if self.actor is None else self.actor.start

    def play_step(self, episode: Episode, environment: Any, action: Any) -> bool:
        """Step the environment, record the step in `episode` and return whether the episode is over."""
        check_signals()
        result = environment.step(copy.copy(action))  # the environment may change it in place
        episode.length += 1
        warn_if_long(episode.length)
        episode.observation, reward, *ends, info = self.checker.step(result, episode.lane, episode.length)
        terminated, truncated = map(bool, ends)
        # Results hold the rewards before noterl's wrappers clip rewards.
        episode.last_reward = unclipped(reward, info)
        episode.reward += episode.last_reward
        if self.source.team is not None:
            episode.earned = episode.earned + environment.outcome.earned
        if episode.info is not None:
            episode.info.add(info)
        episode.mask = self._mask(info, terminated)
        if not (terminated or truncated):
            return False
        success = info.get("is_success")
        episode.success = None if success is None else float(success)
        episode.terminated = terminated
        return True
