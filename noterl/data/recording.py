"""Recording the episodes of an agent or a function.

Paper: Laskey et al., "DART: Noise Injection for Robust Imitation Learning", 2017, for `noise`.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from noterl import envs
from noterl.acting.player import Episode, Player
from noterl.algorithm import Algorithm
from noterl.data.files import check_target
from noterl.data.rows import stacked
from noterl.envs.checking.checker import Checker
from noterl.envs.observation import copy_observation
from noterl.envs.source import resolve_like
from noterl.noise import NoiseProcess
from noterl.random import Generators, check_seed
from noterl.utils.checks import check_bool, check_positive

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
        player = _player_of(agent, source)
        explorer = None
        if is_agent and not deterministic:
            # One copy for all episodes, because noise may depend on the steps before.
            explorer = player.actor.explorer.copy_with_generator(generators("exploration of recording"))
        environment = closing.enter_context(contextlib.closing(player.make_environment()))
        played: list[_Played] = []
        steps_left = math.inf if steps is None else steps
        while steps_left and len(played) != episodes:
            start = int(seeds.integers(2**31))
            played.append(_play_episode(player, environment, agent, explorer, disturbance, start, steps_left))
            steps_left -= len(played[-1][1])  # one step for each action
    columns = zip(("observations", "actions", "rewards", "terminated"), zip(*played, strict=True), strict=True)
    return {**dict(columns), "observation_space": source.observation_space, "action_space": source.action_space}


def _player_of(agent: Any, source: Any) -> Player:
    """Return what plays by an agent or a function in the environments of a source."""
    actor = None
    if isinstance(agent, Algorithm):
        actor = agent._parts.actor  # type: ignore[attr-defined]
        # Attributes and weights may have changed since the actor's last call.
        agent._reads.check()
        actor.mark_stale()
    return Player(agent, actor, source, Checker(source.observation_space))


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
    player: Player, environment: Any, agent: Any, explorer: Any, disturbance: Any, seed: int, steps: float
) -> _Played:
    """Play one episode, of at most `steps` steps; return the observations, actions, rewards and `terminated`."""
    space = player.source.observation_space
    episode = Episode(seed)
    player.begin(episode, environment)
    # The noise begins again in each episode.
    for part in (explorer, disturbance):
        if hasattr(part, "reset"):
            part.reset()
    # Copies, because an environment may change the arrays that it returned.
    observations: list[Any] = [copy_observation(space, episode.observation)]
    actions: list[Any] = []
    rewards: list[float] = []
    is_over = False
    while not is_over and episode.length < steps:
        action = agent(episode.observation) if player.actor is None else player.act([episode], explorer)[0]
        # The action is stored before the noise: the data hold what the policy chose.
        actions.append(action.copy() if hasattr(action, "copy") else action)
        executed = action if disturbance is None else disturbance(action)
        is_over = player.play_step(episode, environment, executed)
        observations.append(copy_observation(space, episode.observation))
        rewards.append(episode.last_reward)
    return stacked(observations), actions, rewards, episode.terminated
