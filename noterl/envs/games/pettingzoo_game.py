"""PettingZoo's games of two players as games for search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from noterl.envs.ends import check_end
from noterl.envs.games.game import Array, Game
from noterl.registry import register
from noterl.utils.checks import check_positive
from noterl.utils.optional import require

# The largest number of moves in these modules of `pettingzoo.classic`. A file may name only these.
_LENGTHS = {"tictactoe_v3": 9, "connect_four_v3": 42}

# So many positions are kept; then the memory starts again. A position of Connect Four takes about 1 kB.
_POSITIONS = 100_000


class _Position(NamedTuple):
    """What is known of a position: the player to move, its observation, the legal actions, and the result."""

    to_play: int
    observation: Array
    legal: Array
    result: float


@register
class PettingZooGame(Game):
    """A game of two players with PettingZoo's AEC API, such as `pettingzoo.classic.tictactoe_v3`.

    The game must be deterministic, players must move in turn, and observations must be dicts with `observation` and
    `action_mask`. A state is the history of moves: the number of moves, then the actions, padded with -1, int16. The
    environment repeats the moves of each new position, which takes 0.1 to 1 ms. So `TicTacToe` and `ConnectFour` are
    much faster than PettingZoo's versions.

    Args:
        env: "tictactoe_v3" or "connect_four_v3", a module of `pettingzoo.classic`; or a function without arguments that
            makes an AEC environment. An agent with such a function is loaded from a file only with a class of games of
            your own.
        max_length: the largest number of moves in a game; needed for a function.

    Raises:
        ValueError: if `env` is not one of these, or the environment does not fit.
        ImportError: if PettingZoo, the extra "pettingzoo", is not installed.

    Example:
    >>> from noterl.envs.games import PettingZooGame, RandomPlayer, play_games
    >>> game = PettingZooGame("connect_four_v3")
    >>> game.num_actions, game.observation_space.shape
    (7, (84,))
    >>> play_games(game, RandomPlayer(), RandomPlayer(), 4, np.random.default_rng(0)).shape
    (4,)
    """

    def __init__(self, env: str | Callable[[], Any], max_length: int | None = None) -> None:
        if isinstance(env, str):
            if env not in _LENGTHS:
                raise ValueError(f"env must be one of {', '.join(_LENGTHS)}, or a function, got {env!r}")
            name = env.rpartition("_")[0]  # the modules with a version in their names warn, from PettingZoo 1.27 on
            module = require(f"pettingzoo.classic.{name}.{name}", "pettingzoo", "PettingZooGame")
            game = module.env()
            max_length = _LENGTHS[env] if max_length is None else max_length
        elif callable(env):
            game = env()
        else:
            raise ValueError(f"env must be one of {', '.join(_LENGTHS)}, or a function, got {env!r}")
        self.max_length: int = check_positive("max_length", max_length)
        self._env = game.unwrapped if hasattr(game, "unwrapped") else game  # wrappers check each call
        self._check(game)
        self._positions: dict[bytes, _Position] = {}
        self._moves: list[int] | None = None  # that the environment has made; None before the first reset

    def _check(self, made: Any) -> None:
        """Set the players and the spaces.

        Raises:
            ValueError: if the environment does not fit.
        """
        self._players = list(getattr(made, "possible_agents", ()))
        if len(self._players) != 2 or not hasattr(made, "agent_iter"):
            raise ValueError(f"env must have two players that move in turn (PettingZoo's AEC API), got {made!r}")
        observations: list[Any] = [made.observation_space(name) for name in self._players]
        actions: list[Any] = [made.action_space(name) for name in self._players]
        needed = {"observation", "action_mask"}
        fits = all(isinstance(space, spaces.Dict) and needed <= set(space.spaces) for space in observations)
        if not fits or not isinstance(actions[0], spaces.Discrete) or actions[0] != actions[1]:
            raise ValueError(
                "env: observations must be Dicts of observation and action_mask, and both players must have the same "
                f"Discrete actions, got {observations[0]} and {actions[0]}"
            )
        self.num_actions: int = int(actions[0].n)
        box: Any = observations[0]["observation"]
        low, high = (np.asarray(side, np.float32).reshape(-1) for side in (box.low, box.high))
        self.observation_space: Any = spaces.Box(low, high, dtype=np.float32)

    def start(self, count: int) -> Array:
        """Return empty histories `[count, 1 + max_length]`."""
        # -1 marks moves that were not made, so that equal histories have equal bytes.
        states = np.full((count, 1 + self.max_length), -1, np.int16)
        states[:, 0] = 0
        return states

    def step(self, states: Array, actions: Array) -> Array:
        """Return the histories with one more move."""
        following = states.copy()
        rows = np.arange(len(states))
        following[:, 0] += 1
        following[rows, following[:, 0]] = actions
        return following

    def legal_actions(self, states: Array) -> Array:
        """Return the environment's masks, bool `[N, A]`."""
        return np.stack([self._position(state).legal for state in states])

    def to_play(self, states: Array) -> Array:
        """Return the index of the player to move, ints `[N]`."""
        return np.array([self._position(state).to_play for state in states])

    def result(self, states: Array) -> Array:
        """Return the first player's reward at the end of the game, else NaN."""
        return np.array([self._position(state).result for state in states])

    def observe(self, states: Array) -> Array:
        """Return the observations of the players to move as vectors, float32."""
        return np.stack([self._position(state).observation for state in states])

    def render(self, state: Array) -> str:
        """Return the actions so far."""
        return " ".join(map(str, state[1 : 1 + state[0]]))

    def _position(self, state: Array) -> _Position:
        key = state.tobytes()
        position = self._positions.get(key)
        if position is None:
            if len(self._positions) == _POSITIONS:
                self._positions.clear()
            position = self._positions[key] = self._replay(state[1 : 1 + state[0]].tolist())
        return position

    def _replay(self, moves: list[int]) -> _Position:
        """Return the position after these moves."""
        env: Any = self._env
        before = self._moves
        # The moves of the last position are often the first ones of this, because a search goes deeper; only then it
        # need not be replayed from the start.
        if before is None or moves[: len(before)] != before:
            # The same seed each time: a position must not depend on when it is searched.
            env.reset(seed=0)
            before = []
        self._moves = None  # if a move raises
        for move in moves[len(before) :]:
            env.step(move)
        self._moves = moves
        ends = [*env.terminations.values(), *env.truncations.values()]
        check_end("the ends of episodes", ends, len(ends))
        over = any(ends)
        player = self._players.index(env.agent_selection)
        seen = env.observe(env.agent_selection)
        return _Position(
            player,
            np.asarray(seen["observation"], np.float32).reshape(-1),
            np.asarray(seen["action_mask"]).astype(np.bool_),
            float(env.rewards[self._players[0]]) if over else np.nan,
        )
