"""Recording the episodes of an agent or a function.

Paper: Laskey et al., "DART: Noise Injection for Robust Imitation Learning", 2017, for `noise`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from noterl import envs
from noterl.acting.policy_state import State, stacked
from noterl.algorithm import Algorithm
from noterl.data.files import check_target
from noterl.envs.checking.checker import Checker
from noterl.envs.ends import warn_if_long
from noterl.envs.observation import copy_observation
from noterl.envs.rewards import unclipped
from noterl.envs.source import resolve_like
from noterl.heads import one_of
from noterl.noise import NoiseProcess
from noterl.random import Generators, check_seed
from noterl.replay.columns import map_leaves
from noterl.utils.checks import check_bool, check_positive
from noterl.utils.masks import ACTION_MASK, read_mask

# Observations, actions and rewards, and whether the environment terminated the episode.
_Played = tuple[Any, list[Any], list[float], bool]


def play(agent: Any, env: Any, path: Any, steps: Any, episodes: Any, seed: Any, deterministic: Any, noise: Any) -> Any:
    """Play episodes and return the arguments of a `Dataset`; `Dataset.record` documents the arguments.

    Raises:
        ValueError: if an argument is not one of the allowed values, or the environment has several agents.
        OSError: if `path` cannot be written.
    """
    check_positive("steps", steps, none=True)
    check_positive("episodes", episodes, none=True)
    if steps is None and episodes is None:
        raise ValueError("steps or episodes must be given, got None for both")
    check_bool("deterministic", deterministic)
    check_seed(seed)
    is_agent = isinstance(agent, Algorithm)
    if not is_agent and (not callable(agent) or isinstance(agent, type)):
        raise ValueError(f"agent must be a noterl.Agent or a function observation -> action, got {agent!r:.80}")
    if env is None and not is_agent:
        raise ValueError("env must be an environment if a function acts, got None")
    # A generator of its own name, so that the episodes differ from the ones of `evaluate`.
    generators = Generators((agent.generators.seed if is_agent else 0) if seed is None else seed)
    seeds = generators("demonstrations")
    with contextlib.ExitStack() as closing:
        if env is None:
            source = agent.spaces.source
        else:
            # An agent needs the spaces for which it was built.
            source = resolve_like(env, agent.spaces.source) if is_agent else envs.resolve(env)
            closing.callback(source.close)
        if source.team is not None:
            raise ValueError(f"env must have one agent, got several: {', '.join(source.team.names)}")
        if path is not None:
            # Before the episodes, which would be lost if the file could not be written.
            check_target(path, source.observation_space)
        disturbance = None
        if noise is not None:
            disturbance = _Disturbance(noise, source.action_space, generators("demonstrations/noise"))
        policy = _Policy(agent, None if deterministic else generators("exploration of recording"))
        environment = closing.enter_context(contextlib.closing(source.make_evaluation()))
        checker = Checker(source.observation_space)
        played: list[_Played] = []
        steps_left = math.inf if steps is None else steps
        while steps_left and len(played) != episodes:
            start = int(seeds.integers(2**31))
            played.append(_play_episode(environment, checker, source, policy, disturbance, start, steps_left))
            steps_left -= len(played[-1][1])
    columns = zip(("observations", "actions", "rewards", "terminated"), zip(*played, strict=True), strict=True)
    return {**dict(columns), "observation_space": source.observation_space, "action_space": source.action_space}


class _Policy:
    """Acts by an agent or a function in one episode after another; training is not affected.

    Args:
        agent: the agent or function.
        generator: of an agent's exploration; None to act without exploration.
    """

    def __init__(self, agent: Any, generator: np.random.Generator | None) -> None:
        self._agent = agent
        self._actor: Any = None
        self._explorer: Any = None
        self._state: State = {}
        if isinstance(agent, Algorithm):
            self._actor = agent._parts.actor  # type: ignore[attr-defined]
            agent._reads.check()
            self._actor.mark_stale()
            if generator is not None:
                # One copy for all episodes, because noise may depend on the steps before.
                self._explorer = self._actor.explorer.copy_with_generator(generator)

    def reset(self) -> None:
        """Called when an episode starts: the policy has no state yet, and the noise begins again."""
        if self._actor is not None:
            self._state = stacked([self._actor.start])
        if hasattr(self._explorer, "reset"):
            self._explorer.reset()

    def __call__(self, observation: Any, info: Mapping[str, Any]) -> Any:
        """Return the action for an observation and `info`."""
        agent = self._agent
        if self._actor is None:
            return agent(observation)
        mask = None
        if ACTION_MASK in info and self._actor.head.takes_mask:
            mask = read_mask(info[ACTION_MASK], agent.action_space)[None]
        # A batch of one row.
        observations = agent.spaces.encoder.stack([observation])
        actions, self._state = self._actor.act(observations, agent.steps, self._explorer, mask, self._state)
        return one_of(actions, 0, agent.action_space)


class _Disturbance:
    """Adds noise to the actions of a bounded Box space.

    Args:
        noise: is copied.
        space: of the actions.
        generator: of the copy.

    Raises:
        ValueError: if the noise does not fit the space.
    """

    def __init__(self, noise: NoiseProcess, space: Space[Any], generator: np.random.Generator) -> None:
        if not isinstance(noise, NoiseProcess):
            raise ValueError(f"noise must be one of noterl.noise, or None, got {noise!r:.80}")
        if not isinstance(space, spaces.Box) or not space.is_bounded():
            raise ValueError(f"noise needs a Box action space with finite bounds, got {space}: pass noise=None")
        if noise.size != np.prod(space.shape, dtype=int):
            raise ValueError(f"noise must have the size of an action of {space}, got {noise!r} of size {noise.size}")
        self._space = space
        self._noise = noise.copy_with_generator(generator)

    def reset(self) -> None:
        """Called when an episode starts."""
        self._noise.reset()

    def __call__(self, action: Any) -> np.ndarray[Any, Any]:
        """Return the action to execute."""
        space = self._space
        # Half of the width: the noise is for actions between -1 and 1.
        change = (space.high - space.low) / 2 * self._noise.sample().reshape(space.shape)
        return np.clip(action + change, space.low, space.high).astype(space.dtype)


def _play_episode(
    environment: Any, checker: Checker, source: Any, policy: _Policy, disturbance: Any, seed: int, steps: float
) -> _Played:
    """Play one episode, of at most `steps` steps."""
    space = source.observation_space
    observation, info = checker.reset(environment.reset(seed=seed), 0, 0)
    policy.reset()
    if disturbance is not None:
        disturbance.reset()
    # Copies, because an environment may change the arrays that it returned.
    observations: list[Any] = [copy_observation(space, observation)]
    actions: list[Any] = []
    rewards: list[float] = []
    terminated = truncated = False
    while not (terminated or truncated or len(actions) == steps):
        action = policy(observation, info)
        # The action is stored before the noise: the data hold what the policy chose.
        actions.append(action.copy() if hasattr(action, "copy") else action)
        executed = action if disturbance is None else disturbance(action)
        result = environment.step(executed)
        observation, reward, terminated, truncated, info = checker.step(result, 0, len(actions))
        warn_if_long(len(actions))
        observations.append(copy_observation(space, observation))
        # The environment's reward, also if a wrapper clips it.
        rewards.append(unclipped(reward, info))
    stacked_observations = map_leaves(lambda *leaves: np.stack(leaves), *observations)
    return stacked_observations, actions, rewards, bool(terminated)
