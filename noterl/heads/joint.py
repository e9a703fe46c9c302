"""The head of several agents: one head for each, on outputs that lie side by side."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from noterl.explorer import Explorer
from noterl.heads.base import Head, split
from noterl.heads.bounded import Deterministic
from noterl.heads.stochastic import Categorical
from noterl.noise import NoiseProcess


class Joint(Head):
    """Outputs `[N, sum of all agents' outputs]`; actions `[N, W]` in the layout of `noterl.envs.multi_agent.team.Team`.

    Discrete agents sample from the softmax of their logits. If all agents are Discrete, one policy on logits can be
    used instead. Continuous agents use `Deterministic`, with one noise for all their values side by side.

    Attributes:
        parts: the head of each agent: `Categorical` for Discrete and MultiDiscrete, `Deterministic` for Box.
    """

    kinds: ClassVar[tuple[type, ...]] = (spaces.Tuple,)
    outputs = "the numbers for the agents in turn"
    parts: tuple[Any, ...]

    def bind(self, action_space: spaces.Space[Any]) -> Head:
        """Return a copy of this head for the Tuple of the agents' action spaces.

        Raises:
            ValueError: for another space, or if an agent's head does not accept the agent's space.
        """
        bound: Any = super().bind(action_space)
        bound.parts = tuple(
            (Deterministic() if isinstance(space, spaces.Box) else Categorical()).bind(space)
            for space in bound.action_space
        )
        bound.takes_noise = any(isinstance(part, Deterministic) for part in bound.parts)
        bound.samples = not bound.takes_noise
        all_discrete = all(isinstance(space, spaces.Discrete) for space in bound.action_space)
        bound.acts_on = ("logits",) if all_discrete else ()
        return bound

    @property
    def noise_size(self) -> int:
        """The number of continuous values in the actions of all agents."""
        return sum(part.size for part in self.parts if isinstance(part, Deterministic))

    def check_values(self, values: np.ndarray) -> None:
        """Raise a ValueError if outputs `[N, ...]` of an agent have values that the agent's head does not accept."""
        for part, outputs in self._split(values):
            part.check_values(outputs)

    def deterministic(self, values: np.ndarray) -> np.ndarray:
        """Return every agent's best actions `[N, W]`."""
        return self._join([part.deterministic(outputs) for part, outputs in self._split(values)])

    def explore(self, values: np.ndarray, explorer: Explorer, step: int) -> np.ndarray:
        """Return the training actions `[N, W]`."""
        noise = np.zeros((len(values), 0), np.float32)
        if isinstance(explorer, NoiseProcess):
            explorer.update_schedules(step)
            noise = explorer.sample(len(values))
        actions = []
        # Each continuous agent takes its values from the front of the noise.
        for part, outputs in self._split(values):
            if isinstance(part, Deterministic):
                actions.append(part.add_noise(outputs, noise[:, : part.size]))
                noise = noise[:, part.size :]
            else:
                actions.append(part.explore(outputs, explorer, step))
        return self._join(actions)

    def random(self, count: int, generator: np.random.Generator) -> np.ndarray:
        """Return uniformly random actions `[count, W]`."""
        return self._join([part.random(count, generator) for part in self.parts])

    def _split(self, values: np.ndarray) -> list[tuple[Any, np.ndarray]]:
        return list(zip(self.parts, split(values, [part.size for part in self.parts]), strict=True))

    def _join(self, actions: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([part.reshape(len(part), -1) for part in actions], axis=-1, dtype=np.float32)
