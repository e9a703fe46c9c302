"""Tree search with Gumbel selection, which improves the policy also with few simulations.

Danihelka et al., "Policy improvement by planning with Gumbel", 2022: sequential halving at the root, completed action
values, and deterministic choices below the root.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from noterl.acting.search import Array, Evaluate, SearchResult, Tree, masked_softmax

# The paper's scale of action values, for values in [0, 1]: (VISITS + largest visit count) * SCALE.
VISITS = 50
SCALE = 0.1

# The paper's number of actions that the root considers.
CONSIDERED = 16


class GumbelTree(Tree):
    """The search trees of B states, with Gumbel noise instead of Dirichlet noise at the root.

    The root samples up to 16 actions without replacement, and halves the number while all are visited equally often.
    A node below chooses the action whose visits lag most behind the improved policy, the softmax of the logits plus the
    scaled action values. An action without visits has a mean of the node's value and the values of visited actions.

    Args:
        game: see `Tree`.
        states: see `Tree`.
        evaluate: see `Tree`.
        simulations: see `Tree`.
        discount: see `Tree`.
        generator: of the noise; None for no noise.
    """

    def __init__(
        self,
        game: Any,
        states: Array,
        evaluate: Evaluate,
        *,
        simulations: int,
        discount: float = 1.0,
        generator: np.random.Generator | None = None,
    ) -> None:
        super().__init__(game, states, evaluate, simulations=simulations, c_puct=0.0, discount=discount)
        shape = (self.count, self.actions)
        self.noise: np.ndarray = np.zeros(shape) if generator is None else generator.gumbel(size=shape)
        legal = np.count_nonzero(self.blocked[self.roots] == 0, axis=1)
        tables = [visit_sequence(count, simulations) for count in range(CONSIDERED + 1)]
        self.sequences: np.ndarray = np.array(tables)[np.minimum(legal, CONSIDERED)]  # [B, simulations]

    def result(self) -> SearchResult:
        """Return the improved policies of the roots, in place of visit shares, and the mean values."""
        return SearchResult(self.improved(self.roots), super().result().value)

    def best(self) -> Array:
        """Return the action of each root that is left at the end, `[B]`."""
        return self._with_visits(self.visits[self.roots].max(axis=1)).argmax(axis=1)

    def scores(self, nodes: Array) -> Array:
        """Return the score of each action in nodes `[n]`, `[n, A]`; -inf for illegal actions."""
        # Each simulation starts with this very array; nodes below the roots are other arrays.
        if nodes is self.roots:
            return self._with_visits(self.sequences[:, self._simulated])
        visits = self.visits[nodes]
        return self.improved(nodes) - visits / (1.0 + visits.sum(axis=1, keepdims=True)) + self.blocked[nodes]

    def improved(self, nodes: Array) -> Array:
        """Return the improved policy in nodes `[n]`, `[n, A]`."""
        return masked_softmax(self._logits(nodes) + self._scaled_values(nodes), self.blocked[nodes] == 0)

    def _with_visits(self, visits: Array) -> Array:
        """Return noise + logits + scaled values of the roots, `[B, A]`; -inf for actions without this many visits."""
        scores = self.noise + self._logits(self.roots) + self._scaled_values(self.roots) + self.blocked[self.roots]
        return np.where(self.visits[self.roots] == visits[:, None], scores, -np.inf)

    def _logits(self, nodes: Array) -> Array:
        return np.log(np.maximum(self.priors[nodes], 1e-300))

    def _scaled_values(self, nodes: Array) -> Array:
        """Return the completed action values in nodes `[n]`, `[n, A]`, shifted and scaled as in the paper."""
        visits = self.visits[nodes]
        priors = self.priors[nodes]
        signs = self.signs[nodes]
        visited = visits > 0
        count = visits.sum(axis=1, keepdims=True)
        value = signs * self.totals[nodes] / np.maximum(visits, 1.0)
        # An action without visits gets a mean of the node's value and the values of visited actions. The values of
        # visited actions are weighted by the priors, and count as often as the node was visited.
        share = np.where(visited, priors, 0.0).sum(axis=1, keepdims=True)
        mean = np.where(visited, priors * value, 0.0).sum(axis=1, keepdims=True) / np.maximum(share, 1e-300)
        mixed = (signs * self.values[nodes, None] + count * mean) / (1.0 + count)
        completed = np.where(visited, value, mixed)
        # The paper's scale is for values in [0, 1], so the values of legal actions are moved to this range first.
        legal = self.blocked[nodes] == 0
        low = np.where(legal, completed, np.inf).min(axis=1, keepdims=True)
        high = np.where(legal, completed, -np.inf).max(axis=1, keepdims=True)
        scale = (VISITS + visits.max(axis=1, keepdims=True)) * SCALE
        return scale * (completed - low) / np.maximum(high - low, 1e-8)


def visit_sequence(actions: int, simulations: int) -> list[int]:
    """Return, for each simulation, how many visits the action has that the root visits next.

    The root visits `actions` actions equally often, then the better half of them, and so on until two are left.

    Example:
    >>> visit_sequence(4, 8)
    [0, 0, 0, 0, 1, 1, 2, 2]
    """
    if actions <= 1:
        return list(range(simulations))
    rounds = math.ceil(math.log2(actions))
    visits = [0] * actions
    sequence = list[int]()
    left = actions
    while len(sequence) < simulations:
        for _ in range(max(1, simulations // (rounds * left))):
            sequence += visits[:left]
            visits[:left] = [count + 1 for count in visits[:left]]
        left = max(2, left // 2)
    return sequence[:simulations]
