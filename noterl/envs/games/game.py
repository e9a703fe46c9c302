"""The protocol of games that a search can simulate, and the environment around a game.

A game is a set of functions of states. Each function takes many states at once, because a search simulates many games
in lockstep. A state is one row of an array, so a state cannot refer to objects that later moves change.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from noterl.registry import Configurable

Array = np.ndarray[Any, Any]


class Outcome(NamedTuple):
    """The result of one move in each of N states.

    Attributes:
        states: the states after the moves, `[N, ...]`.
        reward: the rewards of the first player, `[N]`.
        terminated: whether the game is over, `[N]`.
        truncated: whether the game was cut off and the value must be estimated, `[N]`.
    """

    states: Array
    reward: Array
    terminated: Array
    truncated: Array


class Game(Configurable):
    """Base class of games: functions of states `[N, ...]` that do not change the arguments.

    A game of your own defines `start`, `legal_actions`, `step`, `to_play`, `result` and `observe`. For moves without a
    search on bare observations, the game also defines `legal_in`; to draw a position, `render`.

    Attributes:
        players: 2, whose rewards add up to zero, or 1.
        num_actions: A, the number of actions.
        max_length: the largest number of moves in a game.
        observation_space: the space of one observation.
    """

    players: ClassVar[int] = 2
    num_actions: int
    max_length: int
    observation_space: spaces.Box

    def start(self, count: int) -> Array:
        """Return `count` states at the start of the game, `[count, ...]`."""
        raise NotImplementedError(f"{type(self).__name__} must define start(count)")

    def legal_actions(self, states: Array) -> Array:
        """Return which actions are legal in each state, bool `[N, A]`; ignored where the game is over."""
        raise NotImplementedError(f"{type(self).__name__} must define legal_actions(states)")

    def step(self, states: Array, actions: Array) -> Array:
        """Return the states `[N, ...]` after legal actions `[N]` in states in which the game is not over."""
        raise NotImplementedError(f"{type(self).__name__} must define step(states, actions)")

    def to_play(self, states: Array) -> Array:
        """Return the player that moves in each state, ints `[N]`: 0 for the first player, 1 for the second."""
        raise NotImplementedError(f"{type(self).__name__} must define to_play(states)")

    def result(self, states: Array) -> Array:
        """Return the first player's result in each state `[N]`: 1, 0 or -1, and NaN while the game is not over."""
        raise NotImplementedError(f"{type(self).__name__} must define result(states)")

    def observe(self, states: Array) -> Array:
        """Return what the player to move observes in each state, `[N, *observation_space.shape]`."""
        raise NotImplementedError(f"{type(self).__name__} must define observe(states)")

    def legal_in(self, observations: Array) -> Array | None:
        """Return which actions are legal, bool `[N, A]`, for observations; None if they do not show it."""
        return None

    def render(self, state: Array) -> str:
        """Return one state as text."""
        return str(state)

    def advance(self, states: Array, actions: Array) -> Outcome:
        """Return the states after the actions, with the first player's rewards: the result when the game is over."""
        following = self.step(states, actions)
        result = self.result(following)
        unfinished = np.isnan(result)
        return Outcome(following, np.where(unfinished, 0.0, result), ~unfinished, np.zeros(len(result), np.bool_))


class BoardGame(Game):
    """A game of two players who place stones.

    A state is a board, int8 `[*shape]`: 1 for the first player's stones, -1 for the second's, 0 for empty cells. An
    observation holds the cells with the own stones, then those with the other player's, float32.

    Attributes:
        shape: of the board.
    """

    shape: ClassVar[tuple[int, ...]]

    def __init__(self) -> None:
        self.observation_space: spaces.Box = spaces.Box(0.0, 1.0, (2 * math.prod(self.shape),), np.float32)

    def start(self, count: int) -> Array:
        """Return empty boards `[count, *shape]`."""
        return np.zeros((count, *self.shape), np.int8)

    def to_play(self, states: Array) -> Array:
        """Return the player to move: the first one if the number of stones is even."""
        # Stones are 1 and -1, whose lowest bit is 1, so the lowest bit of the xor is the parity of their number.
        return np.bitwise_xor.reduce(states.reshape(len(states), -1), axis=1) & 1

    def observe(self, states: Array) -> Array:
        """Return the own and the other player's stones, float32."""
        stone = (1 - 2 * self.to_play(states))[:, None]
        boards = states.reshape(len(states), -1)
        return np.concatenate([boards == stone, boards == -stone], axis=1).astype(np.float32)


class GameEnv(gymnasium.Env[Any, Any]):
    """A game as a gymnasium environment: each step is one move of the player to move.

    The reward is the first player's: the result at the end of the game, otherwise 0. `info` holds `action_mask`, the
    legal actions (bool `[A]`), and `to_play`, the player to move.

    Args:
        game: the game.
        render_mode: None, or "ansi" for text.

    Raises:
        ValueError: if `game` is not a `Game`, or the render mode is unknown.

    Attributes:
        game: the game.
        state: the current state; before the first `reset`, the start.

    Example:
    >>> from noterl.envs import games
    >>> env = games.GameEnv(games.TicTacToe(), render_mode="ansi")
    >>> observation, info = env.reset(seed=0)
    >>> observation, reward, terminated, truncated, info = env.step(4)
    >>> print(env.render())
    . . .
    . X .
    . . .
    >>> info["to_play"], info["action_mask"].tolist()
    (1, [True, True, True, True, False, True, True, True, True])
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"]}  # noqa: RUF012  (gymnasium's declaration)

    def __init__(self, game: Game, render_mode: str | None = None) -> None:
        if not isinstance(game, Game):
            raise ValueError(f"game must be a noterl.envs.games.Game, got {game!r}")
        if render_mode not in (None, "ansi"):
            raise ValueError(f"render_mode must be None or 'ansi', got {render_mode!r}")
        self.game: Game = game
        self.render_mode = render_mode
        self.observation_space: Any = game.observation_space
        self.action_space: Any = spaces.Discrete(game.num_actions)
        self.state: Array = game.start(1)[0]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start a game and return the first player's observation."""
        super().reset(seed=seed)
        self.state = self.game.start(1)[0]
        return self._observation(), self._info()

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Make the move of the player to move; the observation is the other player's.

        Raises:
            ValueError: if the action is illegal.
        """
        legal = self.game.legal_actions(self.state[None])[0]
        if not (0 <= action < len(legal) and legal[action]):
            raise ValueError(f"action must be one of {np.flatnonzero(legal).tolist()} in this position, got {action!r}")
        outcome = self.game.advance(self.state[None], np.array([action]))
        self.state = outcome.states[0]
        ended = bool(outcome.terminated[0]), bool(outcome.truncated[0])
        return self._observation(), float(outcome.reward[0]), *ended, self._info()

    def _observation(self) -> Array:
        return self.game.observe(self.state[None])[0]

    def _info(self) -> dict[str, Any]:
        states = self.state[None]
        return {"action_mask": self.game.legal_actions(states)[0], "to_play": int(self.game.to_play(states)[0])}

    def render(self) -> Any:
        """Return the board as text if the render mode is "ansi"."""
        return self.game.render(self.state) if self.render_mode == "ansi" else None

    def get_state(self) -> dict[str, Any]:
        """Return the state of the game."""
        return {"state": self.state.copy()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the state of `get_state`.

        Raises:
            ValueError: if the state has another shape or dtype.
        """
        value = state["state"]
        if value.shape != self.state.shape or value.dtype != self.state.dtype:
            raise ValueError(f"state must be {self.state.dtype} {self.state.shape}, got {value.dtype} {value.shape}")
        self.state = value.copy()
