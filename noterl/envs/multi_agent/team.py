"""Several agents in one environment: who they are, and how their observations and actions lie in one vector each.

Owns: that layout. Everything between the environment and an algorithm (lanes, memory, files, compiled calls) handles
the one vector of observations and the one of actions; an algorithm for several agents takes them apart again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from noterl.envs.observation import View
from noterl.envs.spaces import convert

Array = np.ndarray[Any, Any]


class Team:
    """The agents of an environment, in order.

    An agent's part of the observation vector is what its network sees (`noterl.envs.observation`); its part of the
    action vector holds the numbers of its action; for a Discrete space, its index, which starts at zero.

    Args:
        names: of the agents.
        observation_spaces: one for each, as the environment has them.
        action_spaces: likewise.

    Attributes:
        observation_space: the agents' spaces as a Tuple.
        action_space: likewise.
        joined_observation_space: the Box of all observations side by side.
        joined_action_space: the Box of all actions side by side.
        seen_shapes: the shape of what each agent's network sees.

    Raises:
        ValueError: if there are not as many spaces as names, or a space is of a kind that is not supported.

    Example:
    >>> import numpy as np
    >>> from gymnasium.spaces import Box, Discrete
    >>> from noterl.envs.multi_agent.team import Team
    >>> team = Team(["speaker", "listener"], [Discrete(3), Box(-1, 1, (2,))], [Discrete(3), Box(-1, 1, (2,))])
    >>> vector = np.zeros(team.joined_observation_space.shape, np.float32)
    >>> team.write_observations({0: 2, 1: np.array([0.5, -0.5])}, vector)
    >>> vector.tolist()
    [0.0, 0.0, 1.0, 0.5, -0.5]
    >>> team.actions(np.array([1, 0.25, 0.75], np.float32))
    (1, array([0.25, 0.75], dtype=float32))
    """

    def __init__(self, names: Sequence[str], observation_spaces: Sequence[Any], action_spaces: Sequence[Any]) -> None:
        self.names = tuple(map(str, names))
        if not self.names or not len(names) == len(observation_spaces) == len(action_spaces):
            raise ValueError(
                f"env: there must be an observation space and an action space for each agent, got "
                f"{len(observation_spaces)} and {len(action_spaces)} for the agents {list(self.names)}"
            )
        if len(set(self.names)) < len(self.names):
            raise ValueError(f"env: agents must have names of their own, got {list(self.names)}")
        self.observation_space = _tuple("observation_space", self.names, observation_spaces)
        self.action_space = _tuple("action_space", self.names, action_spaces)
        self._views = tuple(map(View, self.observation_space))
        self.seen_shapes = tuple(tuple(view.space.shape) for view in self._views)
        self._seen = columns([int(np.prod(shape)) for shape in self.seen_shapes])
        self._acted = columns([int(np.prod(space.shape or ())) for space in self.action_space])
        self.joined_observation_space = self._joined_observation_space()
        self.joined_action_space = self._joined_action_space()

    def __len__(self) -> int:
        return len(self.names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Team) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self.names)

    def __repr__(self) -> str:
        return f"Team({', '.join(self.names)})"

    def write_observations(self, observations: Mapping[int, Any], vector: Array) -> None:
        """Write the observations of some agents, as the environment gave them, into `vector [D]`.

        Raises:
            ValueError: naming the agent, if its observation has not the shape of its space.
        """
        for index, observation in observations.items():
            view = self._views[index]
            if view.axes(observation, f"the observation of agent {self.names[index]!r}"):
                raise ValueError(
                    f"the observation of agent {self.names[index]!r} must have the shape {view.whole.shape}, got "
                    f"{np.shape(observation)}"
                )
            vector[self._seen[index]] = view(observation).reshape(-1)

    def joined_observations(self, observations: Sequence[Any]) -> Array:
        """Return the vectors `[N, D]` of a batch of each agent's observations, or `[D]` of one.

        Raises:
            ValueError: if they are not so many as there are agents, or not of their shapes.
        """
        if not isinstance(observations, tuple | list) or len(observations) != len(self):
            raise ValueError(
                f"observation must hold one for each of the agents {list(self.names)}, got {observations!r}"
            )
        named = list(zip(self._views, observations, self.names, strict=True))
        axes = {view.axes(observation, f"observation of agent {name!r}") for view, observation, name in named}
        if len(axes) > 1:
            raise ValueError("observation must be one of every agent, or a batch of every agent, not some of each")
        seen = [view(observation) for view, observation in zip(self._views, observations, strict=True)]
        parts = [part.reshape(*part.shape[: axes.copy().pop()], -1) for part in seen]
        return np.concatenate(parts, axis=-1, dtype=self.joined_observation_space.dtype)

    def seen(self, vectors: Any, reshape: Callable[[Any, tuple[int, ...]], Any] = np.reshape) -> tuple[Any, ...]:
        """Return what each agent's network sees `[B, *shape]` of vectors `[B, D]`, tensors or arrays."""
        return tuple(
            part if len(shape) == 1 else reshape(part, (-1, *shape))
            for part, shape in zip((vectors[:, place] for place in self._seen), self.seen_shapes, strict=True)
        )

    def acted(self, vectors: Any, reshape: Callable[[Any, tuple[int, ...]], Any] = np.reshape) -> tuple[Any, ...]:
        """Return each agent's actions `[B, *shape]` of vectors `[B, W]`, all as the vectors' type."""
        return tuple(
            reshape(vectors[:, place], (-1, *(space.shape or ())))
            for place, space in zip(self._acted, self.action_space, strict=True)
        )

    def joined_actions(self, actions: Sequence[Array]) -> Array:
        """Return the vectors `[N, W]` of the agents' actions, `[N, *shape]` each."""
        return np.concatenate([np.reshape(part, (len(part), -1)) for part in actions], axis=-1, dtype=np.float32)

    def actions(self, vector: Array) -> tuple[Any, ...]:
        """Return the agents' actions, as the environment has them, of one vector `[W]`."""
        return tuple(_action(vector[place], space) for place, space in zip(self._acted, self.action_space, strict=True))

    def batched_actions(self, vectors: Array) -> tuple[Array, ...]:
        """Return each agent's actions `[N, *shape]`, as the environment has them, of vectors `[N, W]`."""
        return tuple(_within(part, space) for part, space in zip(self.acted(vectors), self.action_space, strict=True))

    def _key(self) -> tuple[Any, ...]:
        return self.names, self.observation_space, self.action_space

    def _joined_observation_space(self) -> spaces.Box:
        size = self._seen[-1].stop
        if all(view.dtype == np.uint8 for view in self._views):
            return spaces.Box(0, 255, (size,), np.uint8)
        return spaces.Box(-np.inf, np.inf, (size,), np.float32)

    def _joined_action_space(self) -> spaces.Box:
        low, high = (
            np.concatenate([np.reshape(_bound(space, side), -1) for space in self.action_space]) for side in (0, 1)
        )
        return spaces.Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)


def numbered(observation_space: Any, action_space: Any) -> Team:
    """Return the team of agents that have no names but their numbers."""
    names = [str(number) for number in range(len(observation_space))]
    return Team(names, list(observation_space), list(action_space))


def _tuple(role: str, names: Sequence[str], parts: Sequence[Any]) -> spaces.Tuple:
    return spaces.Tuple([convert(part, f"{role} of agent {name!r}") for name, part in zip(names, parts, strict=True)])


def columns(sizes: Sequence[int]) -> list[slice]:
    """Return where parts of these sizes lie that stand side by side."""
    ends = list(itertools.accumulate(sizes))
    return [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def _bound(space: Space[Any], side: int) -> Any:
    if isinstance(space, spaces.Box):
        return (space.low, space.high)[side]
    if isinstance(space, spaces.MultiBinary):
        return np.full(space.shape, side)
    sizes: Any = space
    return side * ((sizes.nvec if isinstance(space, spaces.MultiDiscrete) else sizes.n) - 1)


def _action(numbers: Array, space: Space[Any]) -> Any:
    if isinstance(space, spaces.Discrete):
        return int(numbers[0])
    return _within(numbers.reshape(space.shape or ()), space)


def _within(actions: Array, space: Space[Any]) -> Array:
    """Return actions as the space's type: a bound of float64 may lie next to the float32 that stands for it."""
    typed = actions.astype(space.dtype)
    return np.clip(typed, space.low, space.high) if isinstance(space, spaces.Box) else typed
