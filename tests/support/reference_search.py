"""A tree search of one state with one object per node and values of the player to move, and a network for tests."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from noterl.envs.games import Game, RandomPlayer


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


class Network:
    """Random logits and values, different for each observation; it counts its calls and rows."""

    def __init__(self, game: Game, scale: float = 1.0) -> None:
        size, rng = int(np.prod(game.observation_space.shape)), np.random.default_rng(3)
        self.weights, self.scale = rng.normal(size=(size, game.num_actions + 1)), scale
        self.calls, self.rows = 0, 0

    def __call__(self, observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.calls, self.rows = self.calls + 1, self.rows + len(observations)
        outputs = np.sin(3.0 * observations.astype(np.float64) @ self.weights)
        return outputs[:, :-1], self.scale * outputs[:, -1]


def positions(game: Game, count: int, moves: int) -> np.ndarray:
    """Return positions after at most this many random moves, in none of which the game is over."""
    rng, states = np.random.default_rng(1), game.start(count)
    for _ in range(moves):
        outcome = game.advance(states, RandomPlayer()(game, states, rng))
        going_on = ~(outcome.terminated | outcome.truncated)
        states = np.where(going_on.reshape(-1, *[1] * (states.ndim - 1)), outcome.states, states)
    return states
