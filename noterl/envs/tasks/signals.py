"""Two agents that must find a language: one sees what is meant, the other has to do it."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces


class Signals:
    """A speaker sees a symbol and says one; the listener hears what was said last and answers.

    Both earn the same: 1 for the right answer, or minus the squared distance where the answer is a number. The symbol
    is drawn anew after every answer, and the first answer, before anything was said, counts nothing. It has the
    interface of PettingZoo's parallel environments, which need not be installed.

    Args:
        symbols: how many there are, at least 2.
        length: answers that count in an episode, which is then truncated.
        continuous: whether the listener answers by a number in [-1, 1], over which the symbols are spread evenly.

    Raises:
        ValueError: if an argument is not what it may be.

    Example:
    >>> from noterl.envs import Signals
    >>> env = Signals(symbols=3)
    >>> observations, infos = env.reset(seed=1)
    >>> said = observations["speaker"]
    >>> _ = env.step({"speaker": said, "listener": 0})
    >>> env.step({"speaker": 0, "listener": said})[1]
    {'speaker': 1.0, 'listener': 1.0}
    """

    metadata: dict[str, Any] = {"name": "signals", "render_modes": []}  # noqa: RUF012  (PettingZoo's own convention)
    render_mode = None

    def __init__(self, symbols: int = 3, *, length: int = 10, continuous: bool = False) -> None:
        for name, value, least in (("symbols", symbols, 2), ("length", length, 1)):
            if type(value) is not int or value < least:
                raise ValueError(f"{name} must be an int of at least {least}, got {value!r}")
        self.symbols, self.length, self.continuous = symbols, length, continuous
        self.possible_agents = ["speaker", "listener"]
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Space[Any]:
        """Return what an agent sees: the symbol meant now, or the one that was said last (all 0 before the first)."""
        if agent == "speaker":
            return spaces.Discrete(self.symbols)
        return spaces.Box(0.0, 1.0, (self.symbols,), np.float32)

    def action_space(self, agent: str) -> Space[Any]:
        """Return what an agent does."""
        if agent == "listener" and self.continuous:
            return spaces.Box(-1.0, 1.0, (1,), np.float32)
        return spaces.Discrete(self.symbols)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode."""
        if seed is not None or not self.agents:
            self._generator = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self._heard = np.zeros(self.symbols, np.float32)
        self._meant, self._asked, self._steps = self._draw(), -1, 0
        return self._observations(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """Let both act at once; the listener answers what was said in the step before."""
        reward = self._reward(actions["listener"])
        self._heard = np.eye(self.symbols, dtype=np.float32)[int(actions["speaker"])]
        self._asked, self._meant = self._meant, self._draw()
        self._steps += 1
        over = self._steps > self.length
        agents, self.agents = self.agents, [] if over else self.agents
        found = self._observations(), dict.fromkeys(agents, reward), dict.fromkeys(agents, False)
        return *found, dict.fromkeys(agents, over), {agent: {} for agent in agents}

    def _reward(self, answer: Any) -> float:
        if self._asked < 0:
            return 0.0
        if self.continuous:
            return -float(np.square(np.asarray(answer).item() - (2.0 * self._asked / (self.symbols - 1) - 1.0)))
        return float(int(answer) == self._asked)

    def _draw(self) -> int:
        return int(self._generator.integers(self.symbols))

    def _observations(self) -> dict[str, Any]:
        return {"speaker": self._meant, "listener": self._heard.copy()}

    def close(self) -> None:
        """Nothing is open."""
