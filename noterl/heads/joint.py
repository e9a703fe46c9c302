"""The head of several agents: a head for each, over the outputs side by side.

Discrete agents draw from the softmax of their logits, or a policy on logits selects for each of them; continuous ones
act as `Deterministic` says, with a noise whose numbers are those of all of them side by side.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from noterl.explorer import Explorer
from noterl.heads.base import Head, random_actions
from noterl.heads.bounded import Deterministic
from noterl.heads.stochastic import Categorical
from noterl.noise import NoiseProcess


class Joint(Head):
    """Outputs `[N, sum of all agents' outputs]`, actions `[N, W]` as `noterl.envs.multi_agent.team.Team` lays them out.

    Attributes:
        parts: the head of each agent: `Categorical` for Discrete and MultiDiscrete, `Deterministic` for Box.
    """

    parts: tuple[Any, ...]

    def bind(self, action_space: spaces.Space[Any]) -> Head:
        """Return this head for the Tuple of the agents' action spaces.

        Raises:
            ValueError: for another space, or one that an agent's head does not take.
        """
        if not isinstance(action_space, spaces.Tuple):
            raise ValueError(f"env: the head Joint takes a Tuple of action spaces, got {action_space}")
        bound: Any = super().bind(action_space)
        bound.parts = tuple(
            (Deterministic() if isinstance(space, spaces.Box) else Categorical()).bind(space) for space in action_space
        )
        continuous = [isinstance(part, Deterministic) for part in bound.parts]
        bound.takes_noise, bound.samples = any(continuous), not any(continuous)
        singles = all(isinstance(space, spaces.Discrete) for space in action_space)
        bound.acts_on = ("logits",) if singles else ()
        return bound

    @property
    def noise_size(self) -> int:
        """How many continuous numbers there are in the actions of all agents."""
        return sum(part.size for part in self.parts if isinstance(part, Deterministic))

    def check(self, shape: tuple[int, ...], action_space: spaces.Space[Any]) -> None:
        """Raise a ValueError unless there are the outputs of every agent."""
        sizes = [part.size for part in self.parts]
        if shape[1:] != (sum(sizes),):
            raise ValueError(f"forward must return {sizes} numbers for the agents in turn, together they gave {shape}")

    def deterministic(self, values: np.ndarray) -> np.ndarray:
        """Return every agent's best actions `[N, W]`."""
        return self._joined([part.deterministic(own) for part, own in self._each(values)])

    def explore(self, values: np.ndarray, explorer: Explorer, step: int) -> np.ndarray:
        """Return the actions `[N, W]` that are taken in training."""
        noise = np.zeros((len(values), 0), np.float32)
        if isinstance(explorer, NoiseProcess):
            explorer.update_schedules(step)
            noise = explorer.sample(len(values))
        chosen = []
        for part, own in self._each(values):
            if isinstance(part, Deterministic):
                chosen.append(part.disturbed(own, noise[:, : part.size]))
                noise = noise[:, part.size :]
            else:
                chosen.append(part.explore(own, explorer, step))
        return self._joined(chosen)

    def random(self, count: int, generator: np.random.Generator) -> np.ndarray:
        """Return uniformly random actions `[count, W]`."""
        return self._joined([random_actions(part.action_space, count, generator) for part in self.parts])

    def _each(self, values: np.ndarray) -> list[tuple[Any, np.ndarray]]:
        ends = np.cumsum([part.size for part in self.parts]).tolist()
        return [(part, values[:, end - part.size : end]) for part, end in zip(self.parts, ends, strict=True)]

    def _joined(self, actions: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([part.reshape(len(part), -1) for part in actions], axis=-1, dtype=np.float32)
