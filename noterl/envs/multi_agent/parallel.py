"""Environments of several agents behind gymnasium's interface: PettingZoo's parallel ones, and those of lists.

Owns: who is there at which step, and what leaving early means. The one environment that comes out gives the vectors
that `Team` lays out. An agent that has left keeps its last observation, earns nothing and its actions go nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from noterl.envs.multi_agent.team import Team
from noterl.envs.spaces import is_space, parts_of, show
from noterl.envs.wrappers.classic import ClassicEnv

Array = np.ndarray[Any, Any]

# Observations by index, who is there [agents], and the info of a reset
_Begun = tuple[Mapping[int, Any], Array, dict[str, Any]]

# (rewards [agents], terminations [agents]) -> what is learned from: a number for all, or one for each
TeamReward = Callable[[Array, Array], Any]


class Outcome(NamedTuple):
    """What a step brought each agent, `[agents]` each.

    `earned` is the environment's reward, `reward` what is learned from. `terminated` says whose task ended, in this
    step or before; `present` who took part in the step, and `remaining` who takes part in what the next observation is
    worth: an agent that was cut off (truncated) does, because it would have gone on.
    """

    earned: Array
    reward: Array
    terminated: Array
    present: Array
    remaining: Array


class _Step(NamedTuple):
    """What an environment said, agents by index or `[agents]`; `going` are those that act in the next step."""

    observations: Mapping[int, Any]
    rewards: Array
    terminations: Array
    going: Array
    info: dict[str, Any]


class TeamEnv(gymnasium.Env[Any, Any]):
    """Base: one environment of vectors around one of several agents.

    Args:
        env: the environment.
        team: its agents.

    Attributes:
        team: its agents.
        team_reward: makes what is learned from of the rewards; each agent its own by default. The reward of a step is
            the mean of that over the agents.
        outcome: of the last step.
    """

    def __init__(self, env: Any, team: Team) -> None:
        self.env, self.team = env, team
        self.observation_space, self.action_space = team.joined_observation_space, team.joined_action_space
        self.metadata = dict(getattr(env, "metadata", None) or {})
        self.render_mode = getattr(env, "render_mode", None)
        self.team_reward: TeamReward = lambda rewards, terminations: rewards
        self._present = np.ones(len(team), np.bool_)
        self._terminated = np.zeros(len(team), np.bool_)
        self._observations = np.zeros(self.observation_space.shape, self.observation_space.dtype)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Begin an episode; agents that are not there yet see zeros."""
        observations, self._present, info = self._begin(seed, options)
        self._terminated = np.zeros(len(self.team), np.bool_)
        return self._seen(np.zeros_like(self._observations), observations), info

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Let the agents that are there act; the episode is over when none is left."""
        step = self._advance(self.team.actions(action))
        present, self._present = self._present, step.going
        over = not step.going.any()
        self._terminated = self._terminated & ~step.going | present & step.terminations
        earned = np.where(present, step.rewards, 0.0)
        reward = self._learned(earned)
        remaining = present & ~self._terminated | step.going
        self.outcome = Outcome(earned, reward, self._terminated, present, remaining)
        ended = over and not remaining.any()
        observation = self._seen(self._observations.copy(), step.observations)
        return observation, float(reward.mean()), ended, over and not ended, step.info

    def _learned(self, earned: Array) -> Array:
        reward = np.asarray(self.team_reward(earned, self._terminated), np.float64)
        if reward.shape not in ((), earned.shape):
            raise ValueError(
                f"team_reward must return a number, or one for each of the {len(self.team)} agents, got {reward!r}"
            )
        return np.broadcast_to(reward, earned.shape)

    def _seen(self, vector: Array, observations: Mapping[int, Any]) -> Array:
        self.team.write_observations(observations, vector)
        self._observations = vector
        return vector

    def render(self) -> Any:
        """Draw the environment."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        if callable(getattr(self.env, "close", None)):
            self.env.close()

    def _begin(self, seed: int | None, options: dict[str, Any] | None) -> _Begun:
        """Reset; return the observations, who is there, and the info."""
        raise NotImplementedError

    def _advance(self, actions: tuple[Any, ...]) -> _Step:
        """Step with the actions of all agents, of which only those that are there count."""
        raise NotImplementedError


class ParallelEnv(TeamEnv):
    """A parallel environment of PettingZoo.

    Args:
        env: an object with PettingZoo's interface; the package is not needed.

    Raises:
        ValueError: if it does not know its agents or their spaces.
    """

    def __init__(self, env: Any) -> None:
        names = list(env.possible_agents)
        team = Team(names, *([space(name) for name in names] for space in (env.observation_space, env.action_space)))
        super().__init__(env, team)
        self._names = names
        self._index = {name: index for index, name in enumerate(names)}

    def _begin(self, seed: int | None, options: dict[str, Any] | None) -> _Begun:
        observations, infos = self.env.reset(seed=seed, options=options)
        return self._by_index(observations), self._going(), {"agents": infos}

    def _advance(self, actions: tuple[Any, ...]) -> _Step:
        given = {name: actions[index] for name, index in self._index.items() if self._present[index]}
        observations, rewards, terminations, _, infos = self.env.step(given)
        return _Step(
            self._by_index(observations),
            np.array([rewards.get(name, 0.0) for name in self._names], np.float64),
            np.array([terminations.get(name, False) for name in self._names], np.bool_),
            self._going(),
            {"agents": infos},
        )

    def _by_index(self, observations: Mapping[Any, Any]) -> dict[int, Any]:
        return {self._index[name]: observation for name, observation in observations.items()}

    def _going(self) -> Array:
        going = np.zeros(len(self.team), np.bool_)
        going[[self._index[name] for name in self.env.agents]] = True
        return going


class ListEnv(TeamEnv):
    """An environment whose `step` takes a list of actions, and returns lists of observations, rewards and ends.

    Of `step` gymnasium's form and the older one (observations, rewards, ends, info) are understood; rewards and ends
    may also be one for all agents. It is given the actions of all agents, also of those that are done.

    Args:
        env: an object with `reset` and `step`, whose two spaces are lists, tuples or Tuple spaces.

    Raises:
        ValueError: if there are not as many spaces for observations as for actions.
    """

    def __init__(self, env: Any) -> None:
        parts = [_parts(space) for space in (env.observation_space, env.action_space)]
        known = getattr(env, "possible_agents", None) or range(len(parts[0]))
        super().__init__(env, Team([str(name) for name in known], *parts))
        self.spec = env.spec if isinstance(env, gymnasium.Env) else None
        self._beginning = env if isinstance(env, gymnasium.Env) else _Classic(env, self.team)

    def _begin(self, seed: int | None, options: dict[str, Any] | None) -> _Begun:
        observations, info = self._beginning.reset(seed=seed, options=options)
        self._present = np.ones(len(self.team), np.bool_)
        return self._by_index(observations), self._present, info

    def _advance(self, actions: tuple[Any, ...]) -> _Step:
        result = self.env.step(list(actions))
        if len(result) == 4:
            observations, rewards, over, info = result
            late = info.get("TimeLimit.truncated", False) if isinstance(info, dict) else False
            truncations = self._all(over) & self._all(late)
            terminations = self._all(over) & ~truncations
        else:
            observations, rewards, terminations, truncations, info = result
            terminations, truncations = self._all(terminations), self._all(truncations)
        going = self._present & ~terminations & ~truncations
        earned = np.broadcast_to(np.asarray(rewards, np.float64), (len(self.team),))
        named = info if isinstance(info, dict) else {"agents": info}
        return _Step(self._by_index(observations), earned, terminations, going, named)

    def _all(self, flags: Any) -> Array:
        return np.broadcast_to(np.asarray(flags, np.bool_), (len(self.team),))

    def _by_index(self, observations: Any) -> dict[int, Any]:
        if len(observations) != len(self.team):
            raise ValueError(f"env: it has {len(self.team)} agents, but gave {len(observations)} observations")
        return {index: seen for index, seen in enumerate(observations) if self._present[index]}


class _Classic(ClassicEnv):
    """Resets an environment of lists that is not gymnasium's, whatever its `reset` takes and returns."""

    def __init__(self, env: Any, team: Team) -> None:
        self.env, self.observation_space = env, team.observation_space
        self._refused: set[str] = set()


def as_team(env: Any) -> TeamEnv | None:
    """Return an environment of several agents as one of vectors; None if it is not one of several agents.

    Raises:
        ValueError: if it is one, but not in a form that is understood.
    """
    if isinstance(env, TeamEnv | type):
        return env if isinstance(env, TeamEnv) else None
    if not all(callable(getattr(env, name, None)) for name in ("reset", "step")):
        return None
    if hasattr(env, "agent_iter") and hasattr(env, "last"):
        raise ValueError(
            f"env: {show(env)} lets its agents act in turn (PettingZoo's AEC), where all must act at once; use its "
            "parallel_env, or pettingzoo.utils.aec_to_parallel"
        )
    if hasattr(env, "possible_agents") and callable(getattr(env, "observation_space", None)):
        return ParallelEnv(env)
    of_lists = all(_parts(getattr(env, name, None)) for name in ("observation_space", "action_space"))
    return ListEnv(env) if of_lists else None


def _parts(space: Any) -> list[Any]:
    """Return the spaces in a list, tuple or Tuple of them; an empty list for anything else."""
    if isinstance(space, list | tuple):
        return list(space) if all(map(is_space, space)) else []
    return list(parts_of(space).values()) if is_space(space) and isinstance(space, spaces.Tuple) else []
