"""Choosing actions: the forward pass on the host, the head, exploration, and random actions at the start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from noterl.explorer import Explorer
from noterl.heads import Head


@dataclass(eq=False)
class Actor:
    """Chooses the actions of an agent; created by `Agent.build`.

    Attributes:
        forward: returns the network's output `[N, ...]` for observations `[N, ...]`, such as a `HostForward`.
        head: the head, bound to the action space.
        explorer: the policy or the noise, or an `Explorer` whose generator the head samples with.
        generators: the agent's generators; exploration uses "exploration", random actions use "random_actions".
        dtype: dtype of the observations that networks receive.
        normalizers: normalizes observations before the forward pass; None for no normalization.
        learning_starts: number of environment steps at the start whose actions are uniformly random.
        first_lane: number of the first lane that this actor acts for; above 0 in some worker processes.
    """

    forward: Any
    head: Head
    explorer: Explorer
    generators: Callable[[str], np.random.Generator]
    dtype: Any
    normalizers: Any = None
    learning_starts: int = 0
    first_lane: int = 0

    def __post_init__(self) -> None:
        self.explorer.generator = self.generators("exploration")
        self._reset_noise: Callable[[int], None] | None = getattr(self.explorer, "reset", None)

    def choose_actions(self, observations: np.ndarray, step: int, waiting: np.ndarray | None = None) -> np.ndarray:
        """Return the training actions `[N, ...]` of one step in N lanes, before `Head.executed`.

        Before `learning_starts`, they are uniformly random. If it is reached within this step, only the actions of the
        first lanes are.

        Args:
            observations: the encoded observations of all lanes, `[N, ...]`.
            step: environment steps so far.
            waiting: bool `[N]`, True for lanes whose step does not count; None if all count.
        """
        remaining = self.learning_starts - step - self.first_lane
        if remaining <= 0:
            return self.select(observations, step, self.explorer)
        count = len(observations)
        num_random = min(remaining, count)
        if waiting is not None:
            num_random = int(np.searchsorted(np.cumsum(~waiting), num_random, side="right"))
        if num_random == count:
            self.explorer.skip(count)
            return self.random_actions(count)
        actions = self.select(observations, step, self.explorer)
        actions[:num_random] = self.random_actions(num_random)
        return actions

    def act(self, observations: np.ndarray, step: int, explorer: Explorer | None) -> np.ndarray:
        """Return the actions `[N, ...]` that environments receive.

        Args:
            observations: encoded observations, `[N, ...]`.
            step: environment steps so far; exploration may depend on it.
            explorer: the policy or the noise to explore with; None to act without exploration.
        """
        return self.head.executed(self.select(observations, step, explorer))

    def select(self, observations: np.ndarray, step: int, explorer: Explorer | None) -> np.ndarray:
        """Return the actions that the head chooses, before `Head.executed`; arguments as in `act`."""
        if self.normalizers is not None:
            observations = self.normalizers.normalize_observation(observations)
        if observations.dtype != self.dtype:
            observations = observations.astype(self.dtype)
        values = self.forward(observations)
        if explorer is None:
            return self.head.deterministic(values)
        return self.head.explore(values, explorer, step)

    def random_actions(self, count: int) -> np.ndarray:
        """Return uniformly random actions `[count, ...]`, before `Head.executed`."""
        return self.head.random(count, self.generators("random_actions"))

    def reset_noise(self, lane: int) -> None:
        """Reset the noise of a lane in which an episode starts."""
        if self._reset_noise is not None:
            self._reset_noise(lane)

    def mark_stale(self) -> None:
        """Fetch the weights again before the next forward pass; call it if they changed outside of an update."""
        self.forward.stale = True
