"""Monte Carlo tree search in NumPy, for many states in lockstep.

Each simulation descends from every root to a leaf, evaluates all leaves in one forward pass, and adds each leaf's value
to all edges of its path, once. Values in the tree are the first player's, so a backup needs no change of sign: a node
reads them with the sign of the player to move.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

# Returns logits [N, A] and the values [N] of the player to move for observations [N, ...].
Evaluate = Callable[[Array], tuple[Array, Array]]


class SearchResult(NamedTuple):
    """The result of a search: arrays for N states, or one state's.

    Attributes:
        visit_shares: how often each action was tried at the root, as shares that sum to 1, `[N, A]`.
        value: the mean value of the simulations for the player to move, `[N]`.
    """

    visit_shares: Array
    value: Any


class Tree:
    """The search trees of B states; array rows are nodes, and each tree has `size` consecutive rows.

    `SearchActor` makes new trees for each search.

    The score of an action is `Q + c_puct P sqrt(N(s)) / (1 + N(s, a))` (PUCT: Silver et al., "Mastering the game of Go
    without human knowledge", 2017, Methods), where N(s) counts the evaluation of the node and the visits of its
    actions. In a game of two players, the Q of an action without visits is 0. For one player, values have no natural
    bounds: Q is scaled to [0, 1] (Schrittwieser et al., 2020, equation 5), and an action without visits has the node's
    own value. The bounds are the smallest and largest return that a simulation has given to any action of the tree;
    the paper takes the smallest and largest Q, the means of these returns.

    Args:
        game: a `noterl.envs.games.Game`, whose functions simulate moves.
        states: the roots, `[B, ...]`.
        evaluate: returns logits and values for observations.
        simulations: the number of simulations.
        c_puct: the weight of the prior.
        discount: of the value after each move.
        dirichlet: `(alpha, share, generator)`: the priors of the roots are mixed with noise, `(1 - share) P + share
            eta` with `eta ~ Dirichlet(alpha)` over the legal actions. None for no noise.

    Attributes:
        visits: of each action, `[B * size, A]`.
        totals: the sum of the first player's values over these visits, `[B * size, A]`.
        priors: probabilities of the legal actions, `[B * size, A]`.
        children: the node that an action leads to, or -1, `[B * size, A]`.
    """

    def __init__(
        self,
        game: Any,
        states: Array,
        evaluate: Evaluate,
        *,
        simulations: int,
        c_puct: float,
        discount: float = 1.0,
        dirichlet: tuple[float, float, np.random.Generator] | None = None,
    ) -> None:
        self.game: Any = game
        self.evaluate: Evaluate = evaluate
        self.c_puct: float = c_puct
        self.discount: float = discount
        self.count: int = len(states)
        self.size: int = simulations + 1
        self.actions: Any = game.num_actions
        nodes = self.count * self.size
        self.visits: np.ndarray = np.zeros((nodes, self.actions))
        self.totals: np.ndarray = np.zeros((nodes, self.actions))
        self.priors: np.ndarray = np.zeros((nodes, self.actions))
        self.rewards: np.ndarray = np.zeros((nodes, self.actions))
        self.children: np.ndarray = np.full((nodes, self.actions), -1)
        self.blocked: np.ndarray = np.zeros((nodes, self.actions))  # 0 for legal actions, -inf for illegal ones
        self.values: np.ndarray = np.zeros(nodes)  # the first player's, from the network; 0 where it has terminated
        self.signs: np.ndarray = np.ones((nodes, 1))
        self.over: np.ndarray = np.zeros(nodes, np.bool_)
        self.states: np.ndarray = np.empty((nodes, *states.shape[1:]), states.dtype)
        self.low: np.ndarray = np.full(self.count, np.inf)
        self.high: np.ndarray = np.full(self.count, -np.inf)  # of the values in each tree
        self.roots: np.ndarray = np.arange(self.count) * self.size
        self._used = 1  # nodes of each tree so far, as a new node has the same place in all trees
        self._simulated = 0
        self._open(self.roots, states)
        if dirichlet is not None:
            alpha, share, generator = dirichlet
            legal = self.blocked[self.roots] == 0
            noise = np.where(legal, generator.standard_gamma(alpha, legal.shape), 0.0)
            noise /= np.maximum(noise.sum(axis=1, keepdims=True), 1e-300)
            self.priors[self.roots] = (1.0 - share) * self.priors[self.roots] + share * noise

    def run(self, simulations: int) -> None:
        """Run simulations: at most as many, in all calls together, as the tree was made for."""
        for _ in range(simulations):
            # Descend to a leaf in each tree, evaluate the new leaves, and back up.
            nodes = self.roots
            path = []
            leaves = []
            gained = np.zeros(self.count)  # by tree: the first player's value of the leaf, then of the edges above it
            while len(nodes):
                actions = self.scores(nodes).argmax(axis=1)
                path.append((nodes, actions))
                children = self.children[nodes, actions]
                is_new = children < 0
                is_over = ~is_new & self.over[children]
                gained[nodes[is_over] // self.size] = self.values[children[is_over]]
                if is_new.any():
                    leaves.append((nodes[is_new], actions[is_new]))
                nodes = children[~(is_new | is_over)]
            if leaves:
                parents, actions = (np.concatenate(part) for part in zip(*leaves, strict=True))
                gained[parents // self.size] = self._expand(parents, actions)
            self._back_up(path, gained)
            self._simulated += 1

    def result(self) -> SearchResult:
        """Return the visit shares and values of the roots."""
        visits = self.visits[self.roots]
        totals = self.totals[self.roots]
        count = visits.sum(axis=1)
        return SearchResult(visits / count[:, None], self.signs[self.roots, 0] * totals.sum(axis=1) / count)

    def scores(self, nodes: Array) -> Array:
        """Return the score of each action in nodes `[n]`, `[n, A]`; -inf for illegal actions."""
        visits = self.visits[nodes]
        signs = self.signs[nodes]
        value = self.totals[nodes] / np.maximum(visits, 1.0)
        if self.game.players == 1:
            value = self._scaled(nodes, np.where(visits > 0, value, self.values[nodes, None]))
        weight = self.c_puct * np.sqrt(1.0 + visits.sum(axis=1, keepdims=True))
        return signs * value + weight * self.priors[nodes] / (1.0 + visits) + self.blocked[nodes]

    def _scaled(self, nodes: Array, value: Array) -> Array:
        """Return values `[n, A]` of nodes, scaled to [0, 1] by the bounds of each node's tree; 0 without bounds."""
        trees = nodes // self.size
        low, high = self.low[trees, None], self.high[trees, None]
        width = high - low
        has_width = width > 0
        return np.where(has_width, np.clip((value - low) / np.where(has_width, width, 1.0), 0.0, 1.0), 0.0)

    def _expand(self, parents: Array, actions: Array) -> Array:
        """Add the nodes that actions `[n]` lead to; return the first player's values `[n]`."""
        outcome = self.game.advance(self.states[parents], actions)
        nodes = parents // self.size * self.size + self._used
        self._used += 1
        self.rewards[parents, actions] = outcome.reward
        self.children[parents, actions] = nodes
        self.over[nodes] = outcome.terminated | outcome.truncated
        unfinished = ~outcome.terminated
        if unfinished.any():
            self._open(nodes[unfinished], outcome.states[unfinished])
        return self.values[nodes]

    def _open(self, nodes: Array, states: Array) -> None:
        """Set the states of nodes `[n]`, and evaluate the nodes in one forward pass."""
        game = self.game
        logits, values = self.evaluate(game.observe(states))
        legal = game.legal_actions(states)
        self.states[nodes] = states
        self.signs[nodes, 0] = 1.0 - 2.0 * game.to_play(states)
        self.blocked[nodes] = np.where(legal, 0.0, -np.inf)
        self.priors[nodes] = masked_softmax(logits, legal)
        self.values[nodes] = self.signs[nodes, 0] * values

    def _back_up(self, path: list[tuple[Array, Array]], gained: Array) -> None:
        """Add the values of the leaves to all edges above the leaves, discounted, with the rewards on the way."""
        for nodes, actions in reversed(path):
            trees = nodes // self.size
            value = self.rewards[nodes, actions] + self.discount * gained[trees]
            gained[trees] = value
            self.visits[nodes, actions] += 1.0
            self.totals[nodes, actions] += value
            if self.game.players == 1:
                self.low[trees] = np.minimum(self.low[trees], value)
                self.high[trees] = np.maximum(self.high[trees], value)


def masked_softmax(logits: Array, legal: Array) -> Array:
    """Return the softmax of logits `[N, A]` over the legal actions; illegal ones have the probability 0.

    Example:
    >>> masked_softmax(np.array([[0.0, 5.0, 0.0]]), np.array([[True, False, True]])).tolist()
    [[0.5, 0.0, 0.5]]
    """
    masked = np.where(legal, logits, -np.inf)
    weights = np.exp(masked - masked.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def with_temperature(shares: Array, temperature: float) -> Array:
    """Return probabilities proportional to `shares ** (1 / temperature)`, `[N, A]`; at 0, the largest share has 1.

    Example:
    >>> with_temperature(np.array([[0.25, 0.75]]), 0.5).round(3).tolist()
    [[0.1, 0.9]]
    """
    if temperature == 0:
        return (np.arange(shares.shape[1]) == shares.argmax(axis=1)[:, None]).astype(np.float64)
    powers = (shares / shares.max(axis=1, keepdims=True)) ** (1.0 / temperature)
    return powers / powers.sum(axis=1, keepdims=True)
