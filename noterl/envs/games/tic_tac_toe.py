"""Tic-tac-toe."""

from __future__ import annotations

import numpy as np

from noterl.envs.games.game import Array, BoardGame
from noterl.registry import register

_LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
# A matrix [9, 8] that maps boards [N, 9] to the sums of the eight lines.
_SUMS = np.array([[cell in line for line in _LINES] for cell in range(9)], np.float32)


@register
class TicTacToe(BoardGame):
    """Tic-tac-toe: three in a row win.

    A state is a board of nine cells, int8 `[9]`: 1 for the first player's stones, -1 for the second's, 0 for empty
    cells. An action is the number of a cell. An observation holds the cells with the own stones, then those with the
    other player's, float32 `[18]`.

    Example:
    >>> from noterl.envs.games import TicTacToe
    >>> game = TicTacToe()
    >>> states = game.start(1)
    >>> for action in (4, 0, 2, 1, 6):
    ...     states = game.step(states, np.array([action]))
    >>> print(game.render(states[0]))
    O O X
    . X .
    X . .
    >>> game.result(states)
    array([1.])
    """

    num_actions = 9
    max_length = 9
    shape = (9,)

    def legal_actions(self, states: Array) -> Array:
        """Return the empty cells, bool `[N, 9]`."""
        return states == 0

    def step(self, states: Array, actions: Array) -> Array:
        """Return the boards with a stone of the player to move in the cells `actions`."""
        following = states.copy()
        following[np.arange(len(states)), actions] = 1 - 2 * self.to_play(states)
        return following

    def result(self, states: Array) -> Array:
        """Return 1 or -1 if a player has three in a row, 0 for other full boards, else NaN."""
        # A product of matrices, as in `ConnectFour`.
        sums = states.astype(np.float32) @ _SUMS
        drawn = np.where(states.all(axis=1), 0.0, np.nan)
        return np.where(sums.max(axis=1) == 3, 1.0, np.where(sums.min(axis=1) == -3, -1.0, drawn))

    def legal_in(self, observations: Array) -> Array:
        """Return the cells without stones."""
        return observations[:, :9] + observations[:, 9:] == 0

    def render(self, state: Array) -> str:
        """Return the board as three lines of text."""
        return "\n".join(" ".join(".XO"[cell] for cell in row) for row in state.reshape(3, 3))
