"""Arena: games against opponents during training, which do not change it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import noterl
from noterl.callbacks import Arena
from noterl.envs.games import RandomPlayer, TicTacToe
from tests.support.minimax import Minimax
from tests.support.states import assert_same_state, differences

pytestmark = pytest.mark.backends("torch")

RANDOM = {"random": RandomPlayer()}


def agent_of(**arguments: Any) -> noterl.AlphaZero:
    agent = noterl.AlphaZero(TicTacToe(), simulations=4, hidden=(8,), seed=2, **arguments)
    agent.compile(batch_size=8, learning_starts=20, update_every=8)
    return agent


def test_scores_are_in_the_logs_and_training_is_the_same() -> None:
    agent, other = agent_of(), agent_of()
    arena = Arena({**RANDOM, "minimax": Minimax(depth=2)}, every=5, games=6, older=True)
    history = agent.fit(episodes=12, callbacks=[arena], verbose=0)
    other.fit(episodes=12, verbose=0)
    assert_same_state({**agent.get_state(), "callbacks": {}}, {**other.get_state(), "callbacks": {}})
    assert arena.results["episodes"] == [5, 10]
    for name in ("random", "minimax"):
        counts = [arena.results[f"{name}_{outcome}"] for outcome in ("won", "drawn", "lost")]
        assert np.sum(counts, axis=0).tolist() == [6, 6]
        logged = [score for score in history.history[f"arena_{name}"] if not np.isnan(score)]
        assert logged == arena.scores(name)
    assert arena.results["older_won"][-1] + arena.results["older_drawn"][-1] + arena.results["older_lost"][-1] == 6


def test_agent_moves_first_in_half_of_the_games() -> None:
    sides: list[int] = []

    def opponent(game: Any, states: Any, generator: Any) -> Any:
        sides.extend(game.to_play(states).tolist())
        return RandomPlayer()(game, states, generator)

    arena = Arena({"noted": opponent}, every=1, games=4, openings=0)
    agent_of().fit(episodes=1, callbacks=[arena], verbose=0)
    assert 0 in sides and 1 in sides


def test_an_agent_that_has_not_learned_draws_level_with_its_older_self() -> None:
    agent = agent_of()
    agent.compile(batch_size=8, learning_starts=10_000)
    arena = Arena({}, every=2, games=8, older=True, simulations=5, openings=2)
    agent.fit(episodes=4, callbacks=[arena], verbose=0)
    assert arena.results["episodes"] == [2, 4]
    score = arena.scores("older")[-1]
    assert 0.0 <= score <= 1.0


def test_state_is_restored() -> None:
    arena, other = (Arena(RANDOM, every=2, games=2, older=True) for _ in range(2))
    agent_of().fit(episodes=4, callbacks=[arena], verbose=0)
    other.set_state(arena.get_state())
    assert not differences(other.get_state(), arena.get_state())


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"opponents": {}}, "opponents"),
        ({"opponents": {"random": 3}}, "opponents"),
        ({"opponents": {"older": RandomPlayer()}}, "opponents"),
        ({"games": 3}, "games"),
        ({"games": 0}, "games"),
        ({"every": 0}, "every"),
        ({"unit": "moves"}, "unit"),
        ({"simulations": 0}, "simulations"),
        ({"openings": -1}, "openings"),
        ({"older": 1}, "older"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_argument_raises(arguments: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Arena(**{"opponents": RANDOM, **arguments})


def test_scores_of_an_unknown_opponent_raise() -> None:
    assert Arena(RANDOM).scores("random") == []
    with pytest.raises(ValueError, match="name"):
        Arena(RANDOM).scores("minimax")


def test_agent_without_a_game_raises() -> None:
    with pytest.raises(ValueError, match="Arena"):
        noterl.DQN("CartPole-v1", hidden=(8,), seed=1).fit(steps=5, callbacks=[Arena(RANDOM)], verbose=0)
