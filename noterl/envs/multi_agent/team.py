"""Teams: the agents of one environment, and the layout of all observations and all actions in one vector each.

Lanes, memories, files and compiled calls handle the two vectors. An algorithm for several agents splits the vectors
again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from noterl.envs.observation import ObservationEncoder, fit_dtype
from noterl.envs.spaces import convert

Array = np.ndarray[Any, Any]
Reshape = Callable[[Any, tuple[int, ...]], Any]  # of tensors or arrays


class Team:
    """The agents of an environment, in order.

    An agent's part of the observation vector is the encoded observation (`noterl.envs.observation`). The agent's part
    of the action vector holds the flattened action; for a Discrete space, this is one number.

    Args:
        names: of the agents.
        observation_spaces: one for each agent.
        action_spaces: one for each agent.

    Attributes:
        encoders: the encoder of each agent's observations.
        observation_space: the agents' spaces as a Tuple.
        action_space: the agents' spaces as a Tuple.
        joined_observation_space: the Box of the observation vector.
        joined_action_space: the Box of the action vector.
        network_shapes: the shape of each agent's encoded observation.
        observation_columns: the columns of each agent's encoded observation in the observation vector.

    Raises:
        ValueError: if the numbers of names and spaces differ, if two names are equal, or if a space is of an
            unsupported kind.

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
        self.names: tuple[str, ...] = tuple(map(str, names))
        if not self.names or not len(names) == len(observation_spaces) == len(action_spaces):
            raise ValueError(
                f"env: there must be an observation space and an action space for each agent, got "
                f"{len(observation_spaces)} and {len(action_spaces)} for the agents {list(self.names)}"
            )
        if len(set(self.names)) < len(self.names):
            raise ValueError(f"env: the names of agents must differ, got {list(self.names)}")
        self.observation_space: Any = _tuple("observation_space", self.names, observation_spaces)
        self.action_space: Any = _tuple("action_space", self.names, action_spaces)
        self.encoders: Sequence[ObservationEncoder] = tuple(map(ObservationEncoder, self.observation_space))
        self.network_shapes: tuple[tuple[int, ...], ...] = tuple(encoder.space.shape for encoder in self.encoders)
        self.observation_columns: list[slice] = columns([int(np.prod(shape)) for shape in self.network_shapes])
        self._action_columns = columns([int(np.prod(space.shape or ())) for space in self.action_space])
        # Bytes only if all agents have bytes: one vector has one dtype, and images in float32 take four times the
        # memory.
        in_bytes = all(encoder.dtype == np.uint8 for encoder in self.encoders)
        low, high, dtype = (0, 255, np.uint8) if in_bytes else (-np.inf, np.inf, np.float32)
        self.joined_observation_space: spaces.Box = spaces.Box(low, high, (self.observation_columns[-1].stop,), dtype)
        lows = np.concatenate([np.reshape(_bound(space, 0), -1) for space in self.action_space], dtype=np.float32)
        highs = np.concatenate([np.reshape(_bound(space, 1), -1) for space in self.action_space], dtype=np.float32)
        self.joined_action_space: spaces.Box = spaces.Box(lows, highs, dtype=np.float32)

    def __len__(self) -> int:
        return len(self.names)

    def __eq__(self, other: object) -> bool:
        ours = self.names, self.observation_space, self.action_space
        return isinstance(other, Team) and ours == (other.names, other.observation_space, other.action_space)

    def write_observations(self, observations: Mapping[int, Any], vector: Array) -> None:
        """Write the observations of some agents, by index, into `vector [D]`.

        Raises:
            ValueError: if an observation is not in the space of its agent; the message names the agent.
        """
        for index, observation in observations.items():
            encoder = self.encoders[index]
            name = f"the observation of agent {self.names[index]!r}"
            if encoder.axes(observation, name):
                shape = encoder.original_space.shape
                raise ValueError(f"{name} must have the shape {shape}, got {np.shape(observation)}")
            fitting = fit_dtype(encoder.original_space, observation, name)
            vector[self.observation_columns[index]] = encoder(fitting).reshape(-1)

    def joined_observations(self, observations: Sequence[Any]) -> Array:
        """Return the observation vectors `[N, D]` from a batch for each agent, or `[D]` from one observation for each.

        Raises:
            ValueError: if there is not one item for each agent, if only some items are batches, or if a shape is wrong.
        """
        if not isinstance(observations, tuple | list) or len(observations) != len(self):
            raise ValueError(
                f"observation must hold one for each of the agents {list(self.names)}, got {observations!r}"
            )
        names = [f"observation of agent {name!r}" for name in self.names]
        named = list(zip(self.encoders, observations, names, strict=True))
        axes = {encoder.axes(observation, name) for encoder, observation, name in named}
        if len(axes) > 1:
            raise ValueError("observation must be one of every agent, or a batch of every agent, not some of each")
        encoded = [encoder(fit_dtype(encoder.original_space, part, name)) for encoder, part, name in named]
        # The only element of `axes` is 0 for one observation of each agent, and 1 for batches.
        flat = [part.reshape(*part.shape[: axes.copy().pop()], -1) for part in encoded]
        return np.concatenate(flat, axis=-1, dtype=self.joined_observation_space.dtype)

    def split_observations(self, vectors: Any, reshape: Reshape = np.reshape) -> tuple[Any, ...]:
        """Return each agent's encoded observations `[B, *shape]` from vectors `[B, D]`, tensors or arrays."""
        return _split(vectors, self.observation_columns, self.network_shapes, reshape)

    def split_actions(self, vectors: Any, reshape: Reshape = np.reshape) -> tuple[Any, ...]:
        """Return each agent's actions `[B, *shape]` from vectors `[B, W]`, in the dtype of the vectors."""
        return _split(vectors, self._action_columns, [space.shape or () for space in self.action_space], reshape)

    def actions(self, vector: Array) -> tuple[Any, ...]:
        """Return the agents' actions, members of the action spaces, from one vector `[W]`."""
        actions = zip(self.batched_actions(vector[None]), self.action_space, strict=True)
        return tuple(int(batch[0]) if isinstance(space, spaces.Discrete) else batch[0] for batch, space in actions)

    def batched_actions(self, vectors: Array) -> tuple[Array, ...]:
        """Return each agent's actions `[N, *shape]`, in the dtype of the action space, from vectors `[N, W]`."""
        batches = zip(self.split_actions(vectors), self.action_space, strict=True)
        return tuple(_cast(part, space) for part, space in batches)


def columns(sizes: Sequence[int]) -> list[slice]:
    """Return the slices of parts of these sizes that lie side by side."""
    return [slice(end - size, end) for end, size in zip(itertools.accumulate(sizes), sizes, strict=True)]


def _split(
    vectors: Any, places: Sequence[slice], shapes: Sequence[tuple[int, ...]], reshape: Reshape
) -> tuple[Any, ...]:
    columns_and_shapes = zip((vectors[:, place] for place in places), shapes, strict=True)
    # A column of vectors has the shape already; reshaping a tensor would cost an operation.
    return tuple(part if len(shape) == 1 else reshape(part, (-1, *shape)) for part, shape in columns_and_shapes)


def _tuple(role: str, names: Sequence[str], parts: Sequence[Any]) -> spaces.Tuple:
    return spaces.Tuple([convert(part, f"{role} of agent {name!r}") for name, part in zip(names, parts, strict=True)])


def _bound(space: Space[Any], side: int) -> Any:
    """Return the lower (0) or upper (1) bounds of a space."""
    if isinstance(space, spaces.Box):
        return (space.low, space.high)[side]
    if isinstance(space, spaces.MultiBinary):
        return np.full(space.shape, side)
    sizes: Any = space
    return side * ((sizes.nvec if isinstance(space, spaces.MultiDiscrete) else sizes.n) - 1)


def _cast(actions: Array, space: Space[Any]) -> Array:
    """Return actions in the dtype of the space, clipped because float32 may lie just outside of a float64 bound."""
    typed = actions.astype(space.dtype)
    return np.clip(typed, space.low, space.high) if isinstance(space, spaces.Box) else typed
