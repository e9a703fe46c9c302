"""TRPO in NumPy and float64, with an explicit Fisher matrix: the reference for every backend.

Derivatives are finite differences. The Fisher matrix is the expectation of the outer product of the score, not the
Hessian of a divergence; for a Box it follows from the derivatives of the means.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.support.reference_on_policy import ActorCritic, Array, mean

ACTIONS: dict[str, list[Any]] = {
    "discrete": [0, 1, 2],
    "multi": list(itertools.product(range(3), range(2))),
    "binary": list(itertools.product(range(2), range(2))),
}


def solve(matrix: Array, vector: Array, iterations: int, tolerance: float) -> tuple[Array, int, float]:
    """Return the result of conjugate gradients, the number of iterations and the squared norm of the residual."""
    x, residual = np.zeros_like(vector), vector.copy()
    direction, square, count = residual.copy(), vector @ vector, 0
    while count < iterations and square > tolerance:
        length = square / (direction @ matrix @ direction)
        x += length * direction
        residual = vector - matrix @ x
        direction = residual + (residual @ residual) / square * direction
        square, count = residual @ residual, count + 1
    return x, count, square


class TRPO(ActorCritic):
    """An agent's networks, surrogate and trust region; `rules` are the arguments of `noterl.TRPO`."""

    def __init__(self, actor: list[Array], critic: list[Array], *, kind: str, **rules: Any) -> None:
        super().__init__(actor, critic, kind=kind, **rules)

    @property
    def policy(self) -> Array:
        return np.concatenate([self.weights[k].reshape(-1) for k in self.actors])

    @policy.setter
    def policy(self, vector: Array) -> None:
        for k in self.actors:
            size = self.weights[k].size
            self.weights[k], vector = vector[:size].reshape(self.weights[k].shape).copy(), vector[size:]

    def derivative(self, function: Callable[[], Any], step: float = 1e-5) -> Array:
        """Return the derivatives `[P, ...]` of a function of the policy's weights."""
        start, found = self.policy, []
        for k in range(len(start)):
            sides = []
            for sign in (1, -1):
                moved = start.copy()
                moved[k] += sign * step
                self.policy = moved
                sides.append(np.asarray(function()))
            found.append((sides[0] - sides[1]) / (2 * step))
        self.policy = start
        return np.array(found)

    def actions(self, kind: Any, rows: int) -> list[Array]:
        """Return every action, each for all rows."""
        return [np.broadcast_to(np.array(action), (rows, *np.shape(action))) for action in ACTIONS[kind]]

    def fisher(self, rows: dict[str, Array]) -> Array:
        """Return the Fisher matrix `[P, P]`, the mean over rows of weight 1."""
        observation, weight = rows["observation"], rows["weight"] / rows["weight"].sum()
        if self.kind == "box":
            slopes = self.derivative(lambda: self.distribution(observation)[0])  # [P, B, A]
            deviation = self.distribution(observation)[1]
            matrix = np.einsum("pba,qba,b->pq", slopes / deviation, slopes / deviation, weight)
            last = range(len(matrix) - len(deviation), len(matrix))
            matrix[last, last] += 2.0
            return matrix
        matrix = np.zeros((len(self.policy),) * 2)
        for action in self.actions(self.kind, len(observation)):
            score = self.derivative(lambda action=action: self.log_prob(observation, action))  # [P, B]
            matrix += (score * weight * np.exp(self.log_prob(observation, action))) @ score.T
        return matrix

    def divergence(self, rows: dict[str, Array], old: Array) -> float:
        """Return the mean KL(old, current) over the rows; `old` is the vector of the policy's weights."""
        observation, current = rows["observation"], self.policy
        if self.kind == "box":
            (center, spread), self.policy = self.distribution(observation), old
            (old_center, old_spread), self.policy = self.distribution(observation), current
            each = np.log(spread / old_spread) - 0.5 + (old_spread**2 + (old_center - center) ** 2) / (2 * spread**2)
            return mean(each.sum(-1), rows["weight"])
        total = np.zeros(len(observation))
        for action in self.actions(self.kind, len(observation)):
            after, self.policy = self.log_prob(observation, action), old
            before, self.policy = self.log_prob(observation, action), current
            total += np.exp(before) * (before - after)
        return mean(total, rows["weight"])

    def objective(self, rows: dict[str, Array]) -> float:
        weight, advantage = rows["weight"], rows["advantage"]
        centered = advantage - mean(advantage, weight)
        advantage = centered / (np.sqrt(mean(centered**2, weight)) + 1e-8)
        ratio = np.exp(self.log_prob(rows["observation"], rows["action"]) - rows["log_prob"])
        entropy = mean(self.entropy(rows["observation"]), weight)
        return mean(ratio * advantage, weight) + self.settings["entropy_coefficient"] * entropy

    def step(self, rows: dict[str, Array], fisher_rows: dict[str, Array]) -> dict[str, float]:
        """Make the step of the policy and return its metrics."""
        rules, start = self.settings, self.policy
        slopes, before = self.derivative(lambda: self.objective(rows)), self.objective(rows)
        matrix = self.fisher(fisher_rows) + rules["cg_damping"] * np.eye(len(start))
        x, iterations, residual = solve(matrix, slopes, rules["cg_iterations"], rules["cg_residual_tolerance"])
        longest = x * np.sqrt(2 * rules["target_kl"] / (x @ matrix @ x))
        metrics = {"cg_iterations": iterations, "cg_residual": residual, "step_accepted": 0.0}
        metrics |= {
            "surrogate_gain": 0.0,
            "kl": 0.0,
            "entropy": mean(self.entropy(rows["observation"]), rows["weight"]),
        }
        for tried in range(rules["line_search_steps"]):
            metrics["line_search_steps"] = tried + 1
            self.policy = start + rules["line_search_shrink"] ** tried * longest
            gain, divergence = self.objective(rows) - before, self.divergence(rows, start)
            if gain > 0 and divergence <= rules["kl_tolerance"] * rules["target_kl"]:
                return {**metrics, "surrogate_gain": gain, "kl": divergence, "step_accepted": 1.0}
        self.policy = start
        return metrics

    def losses(self, batch: dict[str, Array]) -> dict[str, float]:
        error = mean((self.value(batch["observation"]) - batch["target"]) ** 2, batch["weight"])
        return {"loss": error, "value_loss": error}
