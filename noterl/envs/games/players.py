"""Opponents, and games between players.

A player is a function of `(game, states, generator)` that returns an action for each of the states `[N, ...]`. In each
of these states the game is not over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from noterl.envs.games.game import Array, Game, Outcome
from noterl.utils.checks import check_int, check_positive

Player: TypeAlias = Callable[[Game, Array, np.random.Generator], Array]


class RandomPlayer:
    """A player whose moves are uniformly random legal ones."""

    def __call__(self, game: Game, states: Array, generator: np.random.Generator) -> Array:
        """Return a legal action for each state, `[N]`."""
        return random_choice(game.legal_actions(states), generator)


def random_choice(mask: Array, generator: np.random.Generator) -> Array:
    """Return the index of a uniformly random True in each row of a mask `[N, A]`."""
    # The largest of random numbers is at a uniformly random place, and -1 is below all of them.
    return np.where(mask, generator.random(mask.shape), -1.0).argmax(axis=1)


def play_games(
    game: Game, first: Player, second: Player, count: int, generator: np.random.Generator, *, openings: int = 0
) -> Array:
    """Play games in lockstep and return the first player's results `[count]`: 1, 0 or -1.

    Args:
        game: the game.
        first: the player that moves first.
        second: the other player.
        count: the number of games.
        generator: of all random choices.
        openings: the number of random moves at the start of each game, so that deterministic players do not repeat one
            game.

    Raises:
        ValueError: if `count` is not a positive int, `openings` is not an int of at least 0, or a player returns an
            illegal action.
    """
    states = game.start(check_positive("count", count))
    results = np.full(count, np.nan)
    moves = check_int("openings", openings, least=0)  # random moves that are left
    active = np.arange(count)
    while len(active):
        current = states[active]
        actions = np.empty(len(active), np.int64)
        to_play = game.to_play(current)
        for number, player in enumerate((first, second)):
            rows = np.flatnonzero(to_play == number)
            if len(rows):
                actions[rows] = (RandomPlayer() if moves > 0 else player)(game, current[rows], generator)
        moves -= 1
        outcome = _advance(game, current, actions)
        states[active] = outcome.states
        over = outcome.terminated | outcome.truncated
        results[active[over]] = outcome.reward[over]
        active = active[~over]
    return results


def play_all_lines(game: Game, player: Player, *, first: bool, generator: Any = None) -> tuple[int, int, int]:
    """Play against every line of play of the opponent; return how many the player won, drew and lost.

    Args:
        game: a game of two players, small enough for all lines.
        player: the player to judge; the player's move in a position must always be the same.
        first: whether the player moves first.
        generator: passed to the player; by default a new one with the seed 0.

    Raises:
        ValueError: if the player returns an illegal action.

    Example:
    >>> from noterl.envs.games import TicTacToe, play_all_lines
    >>> play_all_lines(TicTacToe(), lambda game, states, generator: game.legal_actions(states).argmax(1), first=False)
    (200, 36, 429)
    """
    generator = np.random.default_rng(0) if generator is None else generator
    states = game.start(1)
    lines = np.ones(1, np.int64)  # the number of lines that lead to each position
    counts = np.zeros(3, np.int64)
    mine = first
    while len(states):
        if mine:
            rows = np.arange(len(states))
            actions = np.asarray(player(game, states, generator))
        else:
            # Each position is continued by all legal moves of the opponent.
            rows, actions = np.nonzero(game.legal_actions(states))
        outcome = _advance(game, states[rows], actions)
        lines = lines[rows]
        over = outcome.terminated | outcome.truncated
        score = outcome.reward if first else -outcome.reward
        counts += [int(lines[over & (score == value)].sum()) for value in (1, 0, -1)]
        # Positions that several lines reach are continued once, with the sum of the lines.
        states, inverse = np.unique(outcome.states[~over], axis=0, return_inverse=True)
        lines = np.bincount(inverse.reshape(-1), weights=lines[~over], minlength=len(states)).astype(np.int64)
        mine = not mine
    won, drawn, lost = counts.tolist()
    return won, drawn, lost


def _advance(game: Game, states: Array, actions: Array) -> Outcome:
    """Return the outcome of the actions `[N]`; raise a ValueError if one is illegal."""
    # A comparison, because an index may be negative or too large.
    is_legal = (game.legal_actions(states) & (actions[:, None] == np.arange(game.num_actions))).any(axis=1)
    if not is_legal.all():
        raise ValueError(f"a player must return legal actions, got {actions[~is_legal][0]}")
    return game.advance(states, actions)
