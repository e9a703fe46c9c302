"""Recording an expert's episodes.

Paper: Laskey et al., "DART: Noise Injection for Robust Imitation Learning", 2017, for `noise`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from noterl import envs
from noterl.agent import Agent, BaseAgent
from noterl.data.tables import stack_observations
from noterl.envs.checking.checker import Checker
from noterl.envs.observation import copy_observation
from noterl.envs.rewards import unclipped
from noterl.imitation.demonstrations import Demonstrations
from noterl.noise import NoiseProcess
from noterl.random import Generators
from noterl.training.evaluation import warn_if_long
from noterl.utils.checks import check_bool, check_positive
from noterl.utils.files import PathLike, check_writable
from noterl.utils.masks import ACTION_MASK


def record(
    agent: Agent | Callable[[Any], Any],
    env: Any = None,
    *,
    episodes: int = 10,
    path: PathLike | None = None,
    seed: int | None = None,
    deterministic: bool = True,
    noise: NoiseProcess | None = None,
) -> Demonstrations:
    """Play episodes and return demonstrations; the agent does not learn, and training is not affected.

    If the environment reports `info["action_mask"]`, an agent takes legal actions only. A function receives no mask.

    Args:
        agent: the expert: an agent, or a function that returns the action for an observation.
        env: environment to play in; by default a new copy of the agent's training environment.
        episodes: number of episodes.
        path: also write the demonstrations to this file.
        seed: seed of the environments; by default the agent's seed, or 0 for a function. Episodes start in other
            states than in `evaluate`.
        deterministic: whether an agent acts without exploration.
        noise: disturbs the executed actions of a bounded Box space; the demonstrations hold the expert's own actions.
            So the demonstrations show how the expert recovers, and a clone learns to recover. As for agents, the noise
            is added to actions that are scaled to [-1, 1]. The process itself does not change.

    Raises:
        ValueError: if an argument is not one of the allowed values, or the environment has several agents.
        OSError: if `path` cannot be written.

    Example:
    >>> from noterl.imitation import record
    >>> from noterl.noise import GaussianWhiteNoiseProcess
    >>> noise = GaussianWhiteNoiseProcess(sigma=0.5)
    >>> data = record(lambda observation: [0.0], "Pendulum-v1", episodes=1, noise=noise)
    >>> len(data), float(data.episodes[0].actions.max())
    (200, 0.0)
    """
    check_positive("episodes", episodes)
    check_bool("deterministic", deterministic)
    is_agent = isinstance(agent, BaseAgent)
    if not is_agent and (not callable(agent) or isinstance(agent, type)):
        raise ValueError(f"agent must be a noterl.Agent or a function observation -> action, got {agent!r:.80}")
    if env is None and not is_agent:
        raise ValueError("env must be an environment if the expert is a function, got None")
    if path is not None:
        # Before the episodes, which would be lost if the file could not be written.
        check_writable(path)
    expert = _Expert(agent, deterministic)
    # A generator of its own name, so that the episodes differ from the ones of `evaluate`.
    seeds = Generators((agent.generators.seed if isinstance(agent, BaseAgent) else 0) if seed is None else seed)
    numbers = seeds("demonstrations").integers(2**31, size=int(episodes)).tolist()
    with contextlib.ExitStack() as closing:
        source = agent.spaces.source if env is None else envs.resolve(env)  # type: ignore[union-attr]
        if env is not None:
            closing.callback(source.close)
        if source.team is not None:
            raise ValueError(f"env must have one agent, got several: {', '.join(source.team.names)}")
        disturbance = None
        if noise is not None:
            disturbance = _Disturbance(noise, source.action_space, seeds("demonstrations/noise"))
        environment = closing.enter_context(contextlib.closing(source.make_evaluation()))
        checker = Checker(source.observation_space)
        played = [
            _play(environment, source.observation_space, checker, expert, disturbance, number) for number in numbers
        ]
    demonstrations = Demonstrations(
        *zip(*played, strict=True), observation_space=source.observation_space, action_space=source.action_space
    )
    if path is not None:
        demonstrations.save(path)
    return demonstrations


class _Expert:
    """Acts with an agent or a function in one episode after another.

    Args:
        agent: an agent, or a function that returns the action for an observation.
        deterministic: whether an agent acts without exploration.
    """

    def __init__(self, agent: Any, deterministic: bool) -> None:
        self._agent = agent
        self._deterministic = deterministic
        self._is_agent = isinstance(agent, BaseAgent)
        self._state: Any = None

    def reset(self) -> None:
        """Called when an episode starts: the policy has no state yet."""
        self._state = None

    def __call__(self, observation: Any, info: Mapping[str, Any]) -> Any:
        """Return the action for an observation and `info`."""
        agent = self._agent
        if not self._is_agent:
            return agent(observation)
        mask = info.get(ACTION_MASK) if agent.head.takes_mask else None
        options = {"deterministic": self._deterministic, "action_mask": mask}
        if not agent.state_spec:
            return agent.act(observation, **options)
        action, self._state = agent.act(observation, self._state, **options)
        return action


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


def _play(
    environment: Any,
    space: Space[Any],
    checker: Checker,
    expert: _Expert,
    disturbance: _Disturbance | None,
    seed: int,
) -> tuple[Any, list[Any], list[float], bool]:
    """Play one episode; return the observations, the expert's actions, the rewards, and whether it terminated."""
    observation, info = checker.reset(environment.reset(seed=seed), 0, 0)
    expert.reset()
    if disturbance is not None:
        disturbance.reset()
    # Copies, because an environment may change the arrays that it returned.
    observations: list[Any] = [copy_observation(space, observation)]
    actions: list[Any] = []
    rewards: list[float] = []
    terminated = truncated = False
    while not (terminated or truncated):
        action = expert(observation, info)
        # The action is stored before the noise: the demonstrations hold what the expert chose.
        actions.append(action.copy() if hasattr(action, "copy") else action)
        executed = action if disturbance is None else disturbance(action)
        result = environment.step(executed)
        observation, reward, terminated, truncated, info = checker.step(result, 0, len(actions))
        warn_if_long(len(actions))
        observations.append(copy_observation(space, observation))
        # The environment's reward, also if a wrapper clips it.
        rewards.append(unclipped(reward, info))
    return stack_observations(space, observations), actions, rewards, bool(terminated)
