"""A player of games that looks some moves ahead."""

from __future__ import annotations

import numpy as np

from noterl.envs.games import Game
from noterl.envs.games.players import random_choice


class Minimax:
    """A player that looks `depth` moves ahead; positions that are not over by then count as draws.

    Moves of equal value are chosen at random.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth

    def __call__(self, game: Game, states: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Return a best action for each state, `[N]`."""
        values = self.values(game, states)
        return random_choice(values == values.max(axis=1, keepdims=True), generator)

    def values(self, game: Game, states: np.ndarray) -> np.ndarray:
        """Return the value of each action for the player to move, `[N, A]`; -inf for illegal ones."""
        return self._values(game, states, self.depth)

    def _values(self, game: Game, states: np.ndarray, depth: int) -> np.ndarray:
        legal = game.legal_actions(states)
        rows, actions = np.nonzero(legal)
        outcome = game.advance(states[rows], actions)
        value = outcome.reward.copy()  # the first player's
        unfinished = np.flatnonzero(~outcome.terminated)
        if depth > 1 and len(unfinished):
            # Different orders of moves lead to the same positions, each of which is searched once.
            following, inverse = np.unique(outcome.states[unfinished], axis=0, return_inverse=True)
            best = self._values(game, following, depth - 1).max(axis=1) * _signs(game, following)
            value[unfinished] = best[inverse.reshape(-1)]
        values = np.full(legal.shape, -np.inf)
        values[rows, actions] = value * _signs(game, states)[rows]
        return values


def _signs(game: Game, states: np.ndarray) -> np.ndarray:
    """Return 1 where the first player moves and -1 where the second does, `[N]`."""
    return 1 - 2 * game.to_play(states)
