"""Environments with several agents (PettingZoo's parallel API, or lists) with gymnasium's interface.

Observations and actions are the vectors of `Team`. An agent that has left keeps the last observation and receives no
reward. Actions of this agent are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from noterl.envs.ends import check_end
from noterl.envs.multi_agent.team import Team
from noterl.envs.spaces import is_space, parts_of, show
from noterl.envs.wrappers.classic import ClassicEnv, accepted_keywords

Array = np.ndarray[Any, Any]

# The result of a reset: observations by agent index, which agents are present [agents], and the info
_Reset = tuple[Mapping[int, Any], Array, dict[str, Any]]

# The result of a step: observations by agent index; rewards, terminations, and which agents act in the next step, each
# [agents]; and the info
_Step = tuple[Mapping[int, Any], Array, Array, Array, dict[str, Any]]

# (rewards [agents], terminations [agents]) -> the rewards to learn from: one for all, or one for each agent
TeamReward = Callable[[Array, Array], Any]


class Outcome(NamedTuple):
    """The outcome of a step for each agent, as arrays `[agents]`.

    Attributes:
        earned: the environment's rewards.
        reward: the rewards to learn from.
        terminated: whether the agent's task has ended, in this step or before.
        present: whether the agent took part in the step.
        remaining: whether the agent has a value after the step, because the agent acts in the next step, or was
            truncated and would have continued.
    """

    earned: Array
    reward: Array
    terminated: Array
    present: Array
    remaining: Array


def own_rewards(rewards: Array, terminations: Array) -> Array:
    """Return each agent's own reward, the default `team_reward`."""
    return rewards


def rewards_to_learn_from(team_reward: TeamReward, earned: Array, terminations: Array) -> Array:
    """Return the reward that each agent learns from, `[agents]`.

    Raises:
        ValueError: if `team_reward` returns neither a number nor one for each agent.
    """
    reward = np.asarray(team_reward(earned, terminations), np.float64)
    if reward.shape not in ((), earned.shape):
        raise ValueError(
            f"team_reward must return a number, or one for each of the {len(earned)} agents, got {reward!r}"
        )
    return np.broadcast_to(reward, earned.shape)


class TeamEnv(gymnasium.Env[Any, Any]):
    """Base class of wrappers around an environment with several agents: observations and actions are vectors.

    Args:
        env: the environment.
        team: the agents.

    Attributes:
        team: the agents.
        team_reward: returns the rewards to learn from; by default each agent's own. `step` returns the mean.
        outcome: the outcome of the last step for each agent.
    """

    def __init__(self, env: Any, team: Team) -> None:
        self.env: Any = env
        self.team: Team = team
        self.observation_space: Any = team.joined_observation_space
        self.action_space: Any = team.joined_action_space
        self.metadata: dict[Any, Any] = dict(getattr(env, "metadata", None) or {})
        self.render_mode: Any = getattr(env, "render_mode", None)
        self.team_reward: TeamReward = own_rewards
        self._present = np.ones(len(team), np.bool_)
        self._terminated = np.zeros(len(team), np.bool_)
        self._observations = np.zeros(self.observation_space.shape, self.observation_space.dtype)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start an episode; the observations of agents that are not present are zeros."""
        observations, self._present, info = self._reset(seed, options)
        self._terminated = np.zeros(len(self.team), np.bool_)
        return self._write(np.zeros_like(self._observations), observations), info

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Step with the actions of the present agents; the episode ends when none is left.

        The episode is terminated if no agent remains (see `Outcome`), otherwise truncated.
        """
        observations, rewards, terminations, active, info = self._advance(self.team.actions(action))
        present = self._present
        self._present = active
        over = not active.any()
        # An agent may come back after its end, and its flag is then cleared.
        self._terminated = self._terminated & ~active | present & terminations
        earned = np.where(present, rewards, 0.0)
        reward = rewards_to_learn_from(self.team_reward, earned, self._terminated)
        remaining = present & ~self._terminated | active
        self.outcome: Outcome = Outcome(earned, reward, self._terminated, present, remaining)
        ended = over and not remaining.any()
        # A copy: the caller keeps the last observation, and agents that have left keep their part of it.
        observation = self._write(self._observations.copy(), observations)
        return observation, float(reward.mean()), ended, over and not ended, info

    def _write(self, vector: Array, observations: Mapping[int, Any]) -> Array:
        """Write the observations into the vector, store the vector and return it."""
        self.team.write_observations(observations, vector)
        self._observations = vector
        return vector

    def render(self) -> Any:
        """Render the environment."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        if callable(getattr(self.env, "close", None)):
            self.env.close()

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> _Reset:
        """Reset; return the observations by agent index, which agents are present, and the info."""
        raise NotImplementedError

    def _advance(self, actions: tuple[Any, ...]) -> _Step:
        """Step with the actions of all agents; actions of absent agents have no effect."""
        raise NotImplementedError


class ParallelEnv(TeamEnv):
    """An environment with PettingZoo's parallel API.

    Args:
        env: an object with this interface; PettingZoo need not be installed.

    Raises:
        ValueError: if two agents have the same name, or a space is of an unsupported kind.
    """

    def __init__(self, env: Any) -> None:
        names = list(env.possible_agents)
        team = Team(names, *([space(name) for name in names] for space in (env.observation_space, env.action_space)))
        super().__init__(env, team)
        self._index = {name: index for index, name in enumerate(names)}

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> _Reset:
        observations, infos = self.env.reset(seed=seed, options=options)
        return self._by_index(observations), self._active(), {"agents": infos}

    def _advance(self, actions: tuple[Any, ...]) -> _Step:
        # PettingZoo's environments expect actions of present agents only.
        present = {name: actions[index] for name, index in self._index.items() if self._present[index]}
        observations, rewards, terminations, _, infos = self.env.step(present)
        earned = np.array([rewards.get(name, 0.0) for name in self._index], np.float64)
        ends = [terminations.get(name, False) for name in self._index]
        check_end("terminations", ends, len(ends))
        return self._by_index(observations), earned, np.array(ends, np.bool_), self._active(), {"agents": infos}

    def _by_index(self, observations: Mapping[Any, Any]) -> dict[int, Any]:
        return {self._index[name]: observation for name, observation in observations.items()}

    def _active(self) -> Array:
        active = np.zeros(len(self.team), np.bool_)
        active[[self._index[name] for name in self.env.agents]] = True
        return active


class ListEnv(TeamEnv):
    """An environment whose `step` accepts a list of actions and returns lists of observations, rewards and ends.

    `step` may return gymnasium's five values or the older four (observations, rewards, dones, info). Rewards and ends
    may also be one value for all agents. `step` receives the actions of all agents, including agents that have left.

    Args:
        env: an object with `reset` and `step`, whose two spaces are lists, tuples or Tuple spaces.

    Raises:
        ValueError: if the numbers of agents, observation spaces and action spaces differ, or if a space is of an
            unsupported kind.
    """

    def __init__(self, env: Any) -> None:
        agent_spaces = [_parts(space) for space in (env.observation_space, env.action_space)]
        names = getattr(env, "possible_agents", None) or range(len(agent_spaces[0]))
        super().__init__(env, Team([str(name) for name in names], *agent_spaces))
        self.spec: Any = env.spec if isinstance(env, gymnasium.Env) else None
        self._resetting = env if isinstance(env, gymnasium.Env) else _Classic(env, self.team)

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> _Reset:
        observations, info = self._resetting.reset(seed=seed, options=options)
        self._present = np.ones(len(self.team), np.bool_)
        return self._by_index(observations), self._present, info

    def _advance(self, actions: tuple[Any, ...]) -> _Step:
        result = self.env.step(list(actions))
        if len(result) == 4:
            observations, rewards, over, info = result
            # As in classic gym, whose `done` also means a time limit.
            late = info.get("TimeLimit.truncated", False) if isinstance(info, dict) else False
            truncations = self._all(over) & self._all(late)
            terminations = self._all(over) & ~truncations
        else:
            observations, rewards, terminations, truncations, info = result
            terminations = self._all(terminations)
            truncations = self._all(truncations)
        active = self._present & ~terminations & ~truncations
        earned = np.broadcast_to(np.asarray(rewards, np.float64), (len(self.team),))
        named = info if isinstance(info, dict) else {"agents": info}
        return self._by_index(observations), earned, terminations, active, named

    def _all(self, flags: Any) -> Array:
        check_end("the ends of episodes", flags, len(self.team) if np.ndim(flags) else 1)
        return np.broadcast_to(np.asarray(flags, np.bool_), (len(self.team),))

    def _by_index(self, observations: Any) -> dict[int, Any]:
        if len(observations) != len(self.team):
            raise ValueError(f"env: it has {len(self.team)} agents, but returned {len(observations)} observations")
        return {index: observation for index, observation in enumerate(observations) if self._present[index]}


class _Classic(ClassicEnv):
    """Gives the `reset` of an environment with lists gymnasium's interface."""

    def __init__(self, env: Any, team: Team) -> None:
        self.env = env
        self.observation_space = team.observation_space
        self._accepted = accepted_keywords(env)


def as_team(env: Any) -> TeamEnv | None:
    """Return an environment with several agents as a `TeamEnv`; None for any other object.

    Raises:
        ValueError: if the agents act in turn, or if `ParallelEnv` or `ListEnv` does not accept it.
    """
    if isinstance(env, TeamEnv | type):
        return env if isinstance(env, TeamEnv) else None
    if not all(callable(getattr(env, name, None)) for name in ("reset", "step")):
        return None
    # Only the AEC API has both; it must be recognized before the parallel one, with which it shares names.
    if hasattr(env, "agent_iter") and hasattr(env, "last"):
        raise ValueError(
            f"env: the agents of {show(env)} act in turn (PettingZoo's AEC API), but all must act at once; use its "
            "parallel_env, or pettingzoo.utils.aec_to_parallel. AlphaZero plays a noterl.envs.games.Game"
        )
    if hasattr(env, "possible_agents") and callable(getattr(env, "observation_space", None)):
        return ParallelEnv(env)
    of_lists = all(_parts(getattr(env, name, None)) for name in ("observation_space", "action_space"))
    return ListEnv(env) if of_lists else None


def _parts(space: Any) -> list[Any]:
    """Return the spaces in a list, tuple or Tuple; an empty list for anything else."""
    if isinstance(space, list | tuple):
        return list(space) if all(map(is_space, space)) else []
    return list(parts_of(space).values()) if is_space(space) and isinstance(space, spaces.Tuple) else []
