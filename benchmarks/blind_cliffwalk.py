"""The Blind Cliffwalk, in which rewards of random actions are exponentially rare."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from noterl.envs.tasks.task import Task
from noterl.utils.checks import check_positive


class BlindCliffwalk(Task):
    """`n` states in a row: in each, the right action leads to the next state, and the wrong one ends the episode.

    From Schaul et al., "Prioritized experience replay" (2016), section 3.1 and appendix B.1. The right action in the
    last state has the reward 1 and ends the episode; every other reward is 0. The right action alternates from state to
    state, so random actions reach the reward with probability 2^-n. The observation is the number of the state.

    Args:
        n: the number of states.

    Raises:
        ValueError: if `n` is not a positive int.

    Example:
    >>> from benchmarks.blind_cliffwalk import BlindCliffwalk
    >>> env = BlindCliffwalk(3)
    >>> observation, _ = env.reset()
    >>> [(int(state), reward, over) for state, reward, over, _, _ in map(env.step, env.right)]
    [(1, 0.0, False), (2, 0.0, False), (2, 1.0, True)]
    """

    saved = ("state",)

    def __init__(self, n: int = 8) -> None:
        self.n: int = check_positive("n", n)
        super().__init__(n=self.n)
        self.observation_space: Any = spaces.Discrete(self.n)
        self.action_space: Any = spaces.Discrete(2)
        self.state: int = 0

    @property
    def right(self) -> list[int]:
        """The right action in each state."""
        return [state % 2 for state in range(self.n)]

    def action_values(self, gamma: float) -> np.ndarray[Any, Any]:
        """Return the true optimal action values `[n, 2]`."""
        values = np.zeros((self.n, 2))
        values[np.arange(self.n), self.right] = gamma ** np.arange(self.n - 1, -1, -1)
        return values

    def _begin(self) -> None:
        self.state = 0

    def _observe(self) -> np.int64:
        return np.int64(self.state)

    def step(self, action: Any) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        """Move to the next state, to the reward, or over the cliff."""
        right = int(action) == self.state % 2
        last = self.state == self.n - 1
        self.state += int(right and not last)
        return np.int64(self.state), float(right and last), not right or last, False, {}
