"""A tree search of one state, written as the papers describe it: one object per node, values of the player to move."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


class Node:
    """A position; `value` is the network's, for the player to move."""

    def __init__(self, search: Search, state: np.ndarray) -> None:
        game = search.game
        self.state, self.player = state, int(game.to_play(state[None])[0])
        logits, value = search.evaluate(game.observe(state[None]))
        self.value = float(value[0])
        self.legal = np.flatnonzero(game.legal_actions(state[None])[0]).tolist()
        weights = [math.exp(logits[0, action]) for action in self.legal]
        self.prior = {action: weight / sum(weights) for action, weight in zip(self.legal, weights, strict=True)}
        self.count = dict.fromkeys(self.legal, 0)
        self.total = dict.fromkeys(self.legal, 0.0)  # of returns for the player to move
        self.reward: dict[int, float] = {}  # for the player to move
        self.child: dict[int, Any] = {}  # a node; or the value of an end


class Search:
    """`simulations` simulations from one state."""

    def __init__(self, game: Any, state: np.ndarray, evaluate: Any, simulations: int, c_puct: float, gamma: float):
        self.game, self.evaluate, self.c_puct, self.gamma = game, evaluate, c_puct, gamma
        self.seen: list[float] = []  # all values that were backed up
        self.root = Node(self, state)
        for _ in range(simulations):
            self.simulate(self.root)

    def simulate(self, node: Node) -> float:
        """Descend from a node, and return the value for its player to move."""
        action = max(node.legal, key=lambda one: (self.score(node, one), -one))
        if action in node.child:
            child = node.child[action]
            value = self.simulate(child) if isinstance(child, Node) else child
        else:
            value = self.expand(node, action)
            child = node.child[action]
        other = isinstance(child, Node) and child.player != node.player
        value = node.reward[action] + self.gamma * (-value if other else value)
        node.count[action] += 1
        node.total[action] += value
        self.seen.append(value)
        return value

    def expand(self, node: Node, action: int) -> float:
        outcome = self.game.advance(node.state[None], np.array([action]))
        node.reward[action] = float(outcome.reward[0]) * (-1 if node.player else 1)
        if outcome.terminated[0]:
            node.child[action] = 0.0
            return 0.0
        child = Node(self, outcome.states[0])
        node.child[action] = child.value if outcome.truncated[0] else child
        return child.value

    def score(self, node: Node, action: int) -> float:
        count = node.count[action]
        value = node.total[action] / count if count else 0.0
        if self.game.players == 1:
            low, high = min(self.seen, default=0.0), max(self.seen, default=0.0)
            value = value if count else node.value
            value = min(max((value - low) / (high - low), 0.0), 1.0) if high > low else 0.0
        visits = 1 + sum(node.count.values())
        return value + self.c_puct * node.prior[action] * math.sqrt(visits) / (1 + count)
