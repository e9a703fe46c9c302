"""The spaces of an agent: its environment's, and the spaces of the observations that networks receive."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Space

from noterl.envs import EnvSource
from noterl.envs.multi_agent.team import Team
from noterl.envs.observation import ObservationEncoder
from noterl.networks.access import Network, network_or_default
from noterl.networks.builders import default_network, is_image_shape
from noterl.normalization import CLIP, Normalizers


class Spaces:
    """The spaces of an agent's environment, and what memories and networks need of the spaces.

    Args:
        source: the source of the environments.
        normalize_observation: whether networks receive normalized observations.
        normalize_reward: whether updates receive normalized rewards.

    Raises:
        ValueError: if images of uint8, or the spaces of several agents, are to be normalized.

    Attributes:
        source: makes the environments.
        team: the agents of the environments; None for one agent.
        encoder: converts observations into the arrays `[*shape]` that memories hold.
        normalizers: the running statistics; None if nothing is normalized.
        normalizes_observation: whether networks receive normalized observations.
        observation_space: of the environments; for several agents, a Tuple.
        action_space: of the environments; for several agents, a Tuple.
        network_shape: the shape of an observation as networks receive it; for several agents, a tuple of shapes.
        is_image: whether observations, at least of one agent, are images that `noterl.networks.nature_cnn` accepts.
        has_images: whether an observation, or a part of an observation, is an image of this form.
        network_dtype: the dtype of the observations that networks receive: uint8 is kept, all others become float32.
    """

    def __init__(self, source: EnvSource, normalize_observation: bool = False, normalize_reward: bool = False) -> None:
        self.source: EnvSource = source
        self.team: Team | None = source.team
        self.encoder: ObservationEncoder = ObservationEncoder(source.observation_space)
        self.normalizers: Normalizers | None = None
        self.normalizes_observation: bool = normalize_observation
        spaces = source if source.team is None else source.team
        self.observation_space: Any = spaces.observation_space
        self.action_space: Any = spaces.action_space
        self._encoders = [self.encoder] if source.team is None else source.team.encoders
        shapes = [tuple(encoder.space.shape) for encoder in self._encoders]
        self.network_shape: tuple[Any, ...] = shapes[0] if self.team is None else tuple(shapes)
        self.is_image: bool = any(map(is_image_shape, shapes))
        leaves = (space.shape or () for encoder in self._encoders for _, space, _ in encoder.parts)
        self.has_images: bool = self.is_image or any(map(is_image_shape, leaves))
        self.network_dtype: np.dtype[Any] = np.dtype(np.float32) if normalize_observation else self.encoder.dtype
        if normalize_observation and self.is_image and self.encoder.dtype == np.uint8:
            raise ValueError("normalize_observation is for vectors; networks scale images themselves")
        if normalize_observation or normalize_reward:
            if self.team is not None:
                raise ValueError(
                    "normalize_observation and normalize_reward must be False if the environment has several agents; "
                    "scale observations and rewards in the environment"
                )
            self.normalizers = Normalizers(shapes[0] if normalize_observation else None, normalize_reward)

    @property
    def network_space(self) -> Any:
        """The space of observations as networks receive them, before a Dict becomes a vector; for teams, a tuple."""
        spaces = tuple(map(self._network_space, self._encoders))
        return spaces[0] if self.team is None else spaces

    def network_or_default(self, network: Any, hidden: Any, outputs: int, **options: Any) -> Network:
        """Return your own network of observations, or `default_network` if it is None or describes layers."""

        def build(layers: Any) -> Network:
            return default_network(self.network_space, layers, outputs, **options)

        return network_or_default(network, hidden, build, self.network_shape)

    def _network_space(self, encoder: ObservationEncoder) -> Space[Any]:
        """Return the encoder's own space, or a Box or a Dict of Boxes for normalized observations."""
        if not self.normalizes_observation:
            return encoder.original_space
        if encoder.is_identity:
            return Box(-CLIP, CLIP, encoder.space.shape)
        shapes = OrderedDict[str, Space[Any]]()
        for path, space, place in encoder.parts:
            shape = space.shape if isinstance(space, Box) else (place.stop - place.start,)
            shapes["/".join(map(str, path))] = Box(-CLIP, CLIP, shape)
        return Dict(shapes)
