"""A cooperative task for two agents: one observes a symbol, the other must answer with the same symbol."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces

from noterl.utils.checks import check_int, check_positive


class Signals:
    """A speaker observes a symbol and sends one; the listener receives the symbol that was sent last and answers.

    The right answer is the symbol that the speaker observed in the previous step. Both receive the same reward: 1 for
    the right answer, else 0; if answers are numbers, minus the squared distance from the right one. A new symbol is
    sampled in every step. The first answer has the reward 0, because no symbol was sent before. The interface is
    PettingZoo's parallel API; the package need not be installed.

    Args:
        symbols: the number of symbols, at least 2.
        length: the number of rewarded answers, after which an episode is truncated.
        continuous: whether the listener answers with a number in [-1, 1], in which the symbols are spread evenly.

    Raises:
        ValueError: if `symbols` or `length` is not an int or too small.

    Example:
    >>> from noterl.envs import Signals
    >>> env = Signals(symbols=3)
    >>> observations, infos = env.reset(seed=1)
    >>> symbol = observations["speaker"]
    >>> _ = env.step({"speaker": symbol, "listener": 0})
    >>> env.step({"speaker": 0, "listener": symbol})[1]
    {'speaker': 1.0, 'listener': 1.0}
    """

    metadata: dict[str, Any] = {"name": "signals", "render_modes": []}  # noqa: RUF012  (PettingZoo's own convention)
    render_mode = None

    def __init__(self, symbols: int = 3, *, length: int = 10, continuous: bool = False) -> None:
        self.symbols: int = check_int("symbols", symbols, least=2)
        self.length: int = check_positive("length", length)
        self.continuous: bool = continuous
        self.possible_agents: list[str] = ["speaker", "listener"]
        self.agents: list[str] = []
        self._generator: np.random.Generator | None = None

    def observation_space(self, agent: str) -> Space[Any]:
        """Return an agent's space: the speaker's symbol, or the listener's one-hot symbol (zeros before the first)."""
        if agent == "speaker":
            return spaces.Discrete(self.symbols)
        return spaces.Box(0.0, 1.0, (self.symbols,), np.float32)

    def action_space(self, agent: str) -> Space[Any]:
        """Return an agent's space: the speaker's symbols to send, or the listener's answers."""
        if agent == "listener" and self.continuous:
            return spaces.Box(-1.0, 1.0, (1,), np.float32)
        return spaces.Discrete(self.symbols)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode. Without a seed, the generator of the last episode goes on."""
        if seed is not None or self._generator is None:
            self._generator = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self._sent = np.zeros(self.symbols, np.float32)
        self._symbol = self._sample()
        self._target = -1  # no symbol was sent before the first answer
        self._steps = 0
        return self._observations(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """Step with the actions of both agents; the listener answers the symbol sent in the previous step."""
        reward = self._reward(actions["listener"])
        self._sent = np.eye(self.symbols, dtype=np.float32)[int(actions["speaker"])]
        self._target = self._symbol
        self._symbol = self._sample()
        self._steps += 1
        # One step more than answers, because the first step has none.
        over = self._steps > self.length
        agents = self.agents
        self.agents = [] if over else self.agents
        result = self._observations(), dict.fromkeys(agents, reward), dict.fromkeys(agents, False)
        return *result, dict.fromkeys(agents, over), {agent: {} for agent in agents}

    def _reward(self, answer: Any) -> float:
        """Return the reward of an answer to the symbol of the previous step; 0 before there is one."""
        if self._target < 0:
            return 0.0
        if self.continuous:
            # The right answers lie evenly between -1 and 1.
            return -float(np.square(np.asarray(answer).item() - (2.0 * self._target / (self.symbols - 1) - 1.0)))
        return float(int(answer) == self._target)

    def _sample(self) -> int:
        assert self._generator is not None, "reset was not called"
        return int(self._generator.integers(self.symbols))

    def _observations(self) -> dict[str, Any]:
        return {"speaker": self._symbol, "listener": self._sent.copy()}

    def close(self) -> None:
        """Do nothing, because there is nothing to close."""
