"""Gumbel search: the schedule of the root, the improved policy, and the choices below the root."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from noterl.acting.gumbel import GumbelTree, visit_sequence
from noterl.envs.games import ConnectFour, TicTacToe
from tests.support.reference_search import Network, positions

pytestmark = pytest.mark.backend_free


@pytest.mark.parametrize(
    ("actions", "simulations", "expected"),
    [
        (1, 3, [0, 1, 2]),
        (2, 5, [0, 0, 1, 1, 2]),
        (4, 16, [0] * 4 + [1] * 4 + [2, 2, 3, 3, 4, 4, 5, 5]),
        (8, 4, [0, 0, 0, 0]),
        (3, 8, [0, 0, 0, 1, 1, 2, 2, 3]),
    ],
)
def test_root_halves_the_actions_that_it_visits_equally_often(
    actions: int, simulations: int, expected: list[int]
) -> None:
    assert visit_sequence(actions, simulations) == expected


def improved(tree: GumbelTree, node: int) -> list[float]:
    """Return the improved policy of a node, action by action."""
    visits, sign = tree.visits[node], float(tree.signs[node, 0])
    legal = [action for action in range(tree.actions) if tree.blocked[node, action] == 0]
    visited = [action for action in legal if visits[action] > 0]
    value = {action: sign * tree.totals[node, action] / visits[action] for action in visited}
    count = sum(visits)
    mixed = sign * tree.values[node]
    if visited:
        share = sum(tree.priors[node, action] for action in visited)
        mean = sum(tree.priors[node, action] * value[action] for action in visited) / share
        mixed = (mixed + count * mean) / (1 + count)
    completed = {action: value.get(action, mixed) for action in legal}
    low, high = min(completed.values()), max(completed.values())
    powers = {
        action: tree.priors[node, action]
        * math.exp((50 + max(visits)) * 0.1 * (completed[action] - low) / max(high - low, 1e-8))
        for action in legal
    }
    total = sum(powers.values())
    return [powers.get(action, 0.0) / total for action in range(tree.actions)]


@pytest.fixture(params=[(TicTacToe(), 3), (ConnectFour(), 9)], ids=["tic-tac-toe", "connect four"])
def tree(request: pytest.FixtureRequest) -> GumbelTree:
    game, moves = request.param
    states = positions(game, 5, moves)
    tree = GumbelTree(game, states, Network(game), simulations=30, generator=np.random.default_rng(2))
    tree.run(30)
    return tree


def test_improved_policy_is_the_formula(tree: GumbelTree) -> None:
    nodes = np.flatnonzero(tree.priors.sum(axis=1) > 0)
    assert len(nodes) > 60
    for node in nodes.tolist():
        np.testing.assert_allclose(tree.improved(np.array([node]))[0], improved(tree, node), rtol=1e-9, atol=1e-300)


def test_nodes_below_the_root_follow_the_improved_policy(tree: GumbelTree) -> None:
    nodes = np.flatnonzero((tree.visits.sum(axis=1) > 0) & (np.arange(len(tree.visits)) % tree.size > 0))
    scores: Any = tree.scores(nodes)
    for node, row in zip(nodes.tolist(), scores, strict=True):
        policy, visits = improved(tree, node), tree.visits[node]
        for action in range(tree.actions):
            expected = policy[action] - visits[action] / (1 + visits.sum())
            expected = expected if tree.blocked[node, action] == 0 else -np.inf
            assert row[action] == pytest.approx(expected, abs=1e-12)


def test_visits_of_the_root_follow_the_schedule(tree: GumbelTree) -> None:
    for row, root in enumerate(tree.roots.tolist()):
        legal = np.flatnonzero(tree.blocked[root] == 0)
        visits = np.zeros(tree.actions, int)
        for wanted in visit_sequence(len(legal), 30):
            visits[np.flatnonzero(visits[: len(legal)] == wanted)[0]] += 1
        assert sorted(visits.tolist()) == sorted(tree.visits[root].astype(int).tolist())
        assert tree.best()[row] in legal and tree.visits[root, tree.best()[row]] == tree.visits[root].max()


def test_first_visits_are_a_sample_without_replacement() -> None:
    """With two simulations, the root visits the two largest of noise + logits: Gumbel-top-k."""
    game = TicTacToe()
    count = 20_000
    generator = np.random.default_rng(0)
    tree = GumbelTree(game, game.start(count), Network(game), simulations=2, generator=generator)
    tree.run(2)
    noise = np.random.default_rng(0).gumbel(size=(count, 9))
    top = np.argsort(noise + np.log(tree.priors[tree.roots]), axis=1)[:, -2:]
    assert (np.take_along_axis(tree.visits[tree.roots], top, axis=1) == 1).all()
    share = np.bincount(top[:, 1], minlength=9) / count
    np.testing.assert_allclose(share, tree.priors[0], atol=0.012)


def test_search_finds_the_winning_move() -> None:
    game = TicTacToe()
    board = np.array([[1, 1, 0, -1, -1, 0, 0, 0, 0], [1, 1, 0, -1, -1, 0, 1, 0, 0]], np.int8)

    def uniform(observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros((len(observations), 9)), np.zeros(len(observations))

    tree = GumbelTree(game, board, uniform, simulations=40)
    tree.run(40)
    found = tree.result()
    assert found.visit_shares.argmax(axis=1).tolist() == [2, 5] == tree.best().tolist()
    np.testing.assert_allclose(found.visit_shares.sum(axis=1), 1.0)
