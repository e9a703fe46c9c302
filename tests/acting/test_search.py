"""The batched search equals a search of one object per node, and its parts equal their formulas."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces

from noterl.acting.search import Tree, masked_softmax, with_temperature
from noterl.envs.games import ConnectFour, Game, Outcome, TicTacToe
from tests.support.reference_search import Network, Search, positions

pytestmark = pytest.mark.backend_free


class Ladder(Game):
    """One player climbs or waits; each of 16 places has its own reward, the top ends, and place 12 cuts off."""

    players: ClassVar[int] = 1
    num_actions = 3
    max_length = 20
    rewards = np.random.default_rng(5).normal(size=(16, 3))

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 16, (1,), np.float32)

    def start(self, count: int) -> np.ndarray:
        return np.zeros((count, 1), np.int64)

    def legal_actions(self, states: np.ndarray) -> np.ndarray:
        return (states + np.arange(3)) % 4 != 2

    def to_play(self, states: np.ndarray) -> np.ndarray:
        return np.zeros(len(states), np.int64)

    def observe(self, states: np.ndarray) -> np.ndarray:
        return states.astype(np.float32)

    def advance(self, states: np.ndarray, actions: np.ndarray) -> Outcome:
        following = np.minimum(states + 1 + 2 * actions[:, None], 15)
        place = following[:, 0]
        return Outcome(following, self.rewards[states[:, 0], actions], place == 15, place == 12)


@pytest.mark.parametrize(
    ("game", "moves", "gamma", "scale"),
    [(TicTacToe(), 0, 1.0, 1.0), (TicTacToe(), 5, 0.9, 1.0), (ConnectFour(), 20, 1.0, 1.0), (Ladder(), 1, 0.9, 4.0)],
    ids=["tic-tac-toe", "discounted", "connect four", "one player"],
)
def test_search_equals_a_search_of_one_object_per_node(game: Game, moves: int, gamma: float, scale: float) -> None:
    states, network = positions(game, 6, moves), Network(game, scale)
    tree = Tree(game, states, network, simulations=60, c_puct=1.5, discount=gamma)
    tree.run(60)
    found = tree.result()
    for row, state in enumerate(states):
        root = Search(game, state, network, 60, 1.5, gamma).root
        counts = [root.count.get(action, 0) for action in range(game.num_actions)]
        np.testing.assert_allclose(found.visit_shares[row], np.array(counts) / 60, atol=1e-12)
        np.testing.assert_allclose(found.value[row], sum(root.total.values()) / 60, rtol=1e-9, atol=1e-12)


def test_each_simulation_counts_each_edge_of_its_path_once() -> None:
    game = TicTacToe()
    tree = Tree(game, game.start(3), Network(game), simulations=40, c_puct=2.0)
    tree.run(40)
    assert tree.visits[tree.roots].sum(axis=1).tolist() == [40.0] * 3
    for node, action in np.argwhere(tree.children >= 0).tolist():
        child = tree.children[node, action]
        below = tree.visits[child].sum()
        if not tree.over[child]:
            assert tree.visits[node, action] == 1 + below, "the visit that added the child, and those through it"


def test_a_simulation_is_one_forward_pass_for_all_states() -> None:
    game = TicTacToe()
    network = Network(game)
    tree = Tree(game, game.start(5), network, simulations=10, c_puct=2.0)
    tree.run(10)
    assert (network.calls, network.rows) == (11, 55)


def test_score_is_the_formula_of_puct() -> None:
    game = TicTacToe()
    tree = Tree(game, game.start(1), Network(game), simulations=1, c_puct=1.25)
    tree.visits[0, :3], tree.totals[0, :3] = (3, 1, 0), (1.5, -0.5, 0)
    tree.blocked[0, 8] = -np.inf
    prior = tree.priors[0]
    expected = [0.5 + 1.25 * prior[0] * 5**0.5 / 4, -0.5 + 1.25 * prior[1] * 5**0.5 / 2]
    expected += [1.25 * prior[action] * 5**0.5 for action in range(2, 8)]
    np.testing.assert_allclose(tree.scores(np.array([0]))[0], [*expected, -np.inf])
    tree.signs[0] = -1  # the second player prefers what is bad for the first
    np.testing.assert_allclose(tree.scores(np.array([0]))[0, 0], expected[0] - 1.0)


def test_backup_adds_rewards_with_discounts() -> None:
    game = TicTacToe()
    tree = Tree(game, game.start(2), Network(game), simulations=3, c_puct=1.0, discount=0.5)
    tree.rewards[4, 2], tree.rewards[5, 1] = 1.0, 3.0  # nodes of the second tree
    path = [(np.array([0, 4]), np.array([7, 2])), (np.array([5]), np.array([1]))]
    tree._back_up(path, np.array([0.8, -0.4]))
    assert tree.totals[0, 7] == 0.4 and tree.visits[0, 7] == 1
    assert tree.totals[5, 1] == pytest.approx(2.8) and tree.totals[4, 2] == pytest.approx(2.4)
    assert tree.visits.sum() == 3


class Unsigned(TicTacToe):
    """Its players are unsigned numbers, such as those of a state of bytes."""

    def to_play(self, states: np.ndarray) -> np.ndarray:
        return super().to_play(states).astype(np.uint8)


@pytest.mark.parametrize("game", [TicTacToe(), Unsigned()])
@pytest.mark.parametrize("player", [0, 1])
def test_search_finds_the_winning_move_of_each_player(player: int, game: Game) -> None:
    board = np.array([1, 1, 0, -1, -1, 0, 0, 0, 0] if player == 0 else [1, 1, 0, -1, -1, 0, 1, 0, 0], np.int8)

    def uniform(observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros((len(observations), 9)), np.zeros(len(observations))

    tree = Tree(game, board[None], uniform, simulations=100, c_puct=2.0)
    tree.run(100)
    found = tree.result()
    assert found.visit_shares[0].argmax() == (2, 5)[player]
    assert found.visit_shares[0][game.legal_actions(board[None])[0] == 0].sum() == 0
    assert found.value[0] > 0.7, "for the player to move"


def test_noise_is_mixed_with_the_priors_of_legal_actions_at_the_root() -> None:
    game = TicTacToe()
    states = np.array([[1, 0, 0, -1, 0, 0, 0, 0, 0]] * 4, np.int8)
    plain = Tree(game, states, Network(game), simulations=1, c_puct=2.0)
    noisy = Tree(
        game, states, Network(game), simulations=1, c_puct=2.0, dirichlet=(0.3, 0.25, np.random.default_rng(9))
    )
    noise = np.where(states == 0, np.random.default_rng(9).standard_gamma(0.3, (4, 9)), 0.0)
    noise /= noise.sum(axis=1, keepdims=True)
    expected = 0.75 * plain.priors[plain.roots] + 0.25 * noise
    np.testing.assert_allclose(noisy.priors[noisy.roots], expected, rtol=1e-12)
    np.testing.assert_allclose(noisy.priors[noisy.roots].sum(axis=1), 1.0)


def test_noise_has_the_moments_of_a_dirichlet_distribution() -> None:
    game = TicTacToe()
    states = np.repeat(np.array([[1, -1, 1, -1, 0, 0, 0, 0, 0]], np.int8), 20_000, axis=0)
    dirichlet = (0.5, 1.0, np.random.default_rng(0))
    priors = Tree(game, states, Network(game), simulations=0, c_puct=2.0, dirichlet=dirichlet).priors[:, 4:]
    np.testing.assert_allclose(priors.mean(axis=0), 0.2, atol=0.01)
    np.testing.assert_allclose(priors.var(axis=0), 0.2 * 0.8 / 3.5, rtol=0.05)


def test_masked_softmax_is_the_softmax_of_legal_actions() -> None:
    logits, legal = np.array([[1.0, 2.0, 900.0], [0.0, -1.0, 1.0]]), np.array([[True, True, False], [True] * 3])
    weights = np.exp([0.0, -1.0, 1.0])
    expected = [[1 / (1 + np.e), np.e / (1 + np.e), 0.0], weights / weights.sum()]
    np.testing.assert_allclose(masked_softmax(logits, legal), expected, rtol=1e-12)


@pytest.mark.parametrize(("temperature", "expected"), [(1.0, (0.2, 0.3, 0.5)), (0.0, (0, 0, 1)), (0.5, (4, 9, 25))])
def test_temperature_is_the_inverse_exponent_of_visits(temperature: float, expected: tuple[float, ...]) -> None:
    shares = with_temperature(np.array([[0.2, 0.3, 0.5]]), temperature)[0]
    np.testing.assert_allclose(shares, np.array(expected) / sum(expected), rtol=1e-12)


def test_small_temperature_does_not_underflow() -> None:
    shares: Any = with_temperature(np.array([[0.01, 0.5, 0.49]]), 1e-3)
    np.testing.assert_allclose(shares, [[0, 1, 0]], atol=1e-8)
