"""Choosing actions: the forward pass on the host, the head, exploration, and random actions at the start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from noterl.explorer import Explorer
from noterl.heads import Head
from noterl.random import Generators


class Actor:
    """The acting half of an agent; `Agent.build` makes it.

    Args:
        forward: the network's output `[N, ...]` for observations `[N, ...]`, such as a `HostForward`.
        head: the head, bound to the action space.
        explorer: the policy or the noise; None for a head that samples from its own distribution.
        generators: the agent's generators; exploration uses "exploration", random actions use "random_actions".
        dtype: of the observations that networks receive.
        normalizers: normalize observations before the forward pass; None if nothing is normalized.
        learning_starts: environment steps at the start with uniformly random actions.

    Attributes:
        explorer: the policy, the noise, or the generator that the head samples with.
    """

    def __init__(
        self,
        forward: Any,
        head: Head,
        explorer: Explorer | None,
        *,
        generators: Generators,
        dtype: Any,
        normalizers: Any = None,
        learning_starts: int = 0,
    ) -> None:
        self.forward, self.head, self.generators = forward, head, generators
        self.explorer = Explorer() if explorer is None else explorer
        self.explorer.generator = generators("exploration")
        self._dtype, self._normalizers, self._learning_starts = dtype, normalizers, learning_starts
        self._reset_noise: Callable[[int], None] | None = getattr(explorer, "reset", None)

    def choose_actions(self, observations: np.ndarray, step: int, waiting: np.ndarray | None = None) -> np.ndarray:
        """Return the actions of a round `[N, ...]`; actions before `learning_starts` are uniformly random.

        Args:
            observations: of all lanes, `[N, ...]`.
            step: environment steps so far.
            waiting: bool `[N]`, True for lanes whose step does not count; None if all count.
        """
        early = self._learning_starts - step
        if early <= 0:
            return self.select(observations, step)
        count = len(observations)
        random = min(early, count)
        if waiting is not None:
            random = int(np.searchsorted(np.cumsum(~waiting), random, side="right"))
        if random == count:
            return self.random_actions(count)
        actions = self.select(observations, step)
        actions[:random] = self.random_actions(random)
        return actions

    def select(
        self, observations: np.ndarray, step: int, *, deterministic: bool = False, explorer: Explorer | None = None
    ) -> np.ndarray:
        """Return the actions that the head chooses, before `Head.executed`.

        Args:
            observations: `[N, ...]`.
            step: environment steps so far; exploration may depend on it.
            deterministic: whether the head chooses alone, without exploration.
            explorer: explores instead of the actor's own.
        """
        if self._normalizers is not None:
            observations = self._normalizers.normalize_observation(observations)
        if observations.dtype != self._dtype:
            observations = observations.astype(self._dtype)
        values = self.forward(observations)
        if deterministic:
            return self.head.deterministic(values)
        return self.head.explore(values, self.explorer if explorer is None else explorer, step)

    def act(
        self, observations: np.ndarray, step: int, *, deterministic: bool = False, explorer: Explorer | None = None
    ) -> np.ndarray:
        """Return the actions `[N, ...]` that environments receive; arguments as in `select`."""
        return self.head.executed(self.select(observations, step, deterministic=deterministic, explorer=explorer))

    def random_actions(self, count: int) -> np.ndarray:
        """Return uniformly random actions `[count, ...]`, as the head chooses them."""
        return self.head.random(count, self.generators("random_actions"))

    def reset_noise(self, lane: int) -> None:
        """Start the noise of a lane again, because an episode starts there."""
        if self._reset_noise is not None:
            self._reset_noise(lane)

    def mark_stale(self) -> None:
        """Fetch the weights again before the next forward pass, because they may have changed outside an update."""
        self.forward.stale = True
