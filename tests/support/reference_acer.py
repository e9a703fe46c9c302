"""ACER in NumPy and float64, with loops over steps and lanes, and gradients by finite differences.

It shares no code with noterl. Networks are perceptrons with tanh.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.reference_on_policy import RMSprop, mean, perceptron, softmax

Array = np.ndarray


class SlowRMSprop(RMSprop):
    """Keras's RMSprop with the epsilon of Stable-Baselines 2."""

    epsilon = 1e-5


class ACER:
    """An agent's networks, targets and gradients.

    Args:
        actor: weights of the actor, in Keras's layout.
        critic: weights of the critic; those shared with the actor are in both lists.
        average: weights of the average actor.
        shared: number of weights at the start of both lists that actor and critic share.
        settings: truncation, limit (None for no trust region), entropy, value, epsilon.
    """

    def __init__(
        self, actor: list[Array], critic: list[Array], average: list[Array], *, shared: int = 0, **settings: Any
    ) -> None:
        own = [np.array(weight, np.float64) for weight in critic[shared:]]
        self.weights = [np.array(weight, np.float64) for weight in actor] + own
        self.average = [np.array(weight, np.float64) for weight in average]
        self.actors = list(range(len(actor)))
        self.critics = list(range(shared)) + list(range(len(actor), len(self.weights)))
        self.settings = settings

    def policy(self, observation: Array) -> Array:
        return softmax(perceptron(observation, [self.weights[k] for k in self.actors]))

    def q(self, observation: Array) -> Array:
        return perceptron(observation, [self.weights[k] for k in self.critics])

    def value(self, observation: Array) -> Array:
        return (self.policy(observation) * self.q(observation)).sum(-1)

    def targets(self, batch: dict[str, Array]) -> Array:
        """Return the Retrace targets `[T, N]` by the recursion of algorithm 2."""
        policy, q = self.policy(batch["observation"]), self.q(batch["observation"])
        value, after = self.value(batch["observation"]), self.value(batch["next_observation"])
        found = np.zeros(batch["reward"].shape)
        for lane in range(found.shape[1]):
            carried = 0.0
            for t in reversed(range(len(found))):
                action = batch["action"][t, lane]
                bootstrap = carried if batch["continues"][t, lane] else after[t, lane]
                found[t, lane] = batch["reward"][t, lane] + batch["discount"][t, lane] * bootstrap
                ratio = policy[t, lane, action] / (batch["behavior"][t, lane, action] + self.settings["epsilon"])
                carried = min(1.0, ratio) * (found[t, lane] - q[t, lane, action]) + value[t, lane]
        return found

    def coefficients(self, batch: dict[str, Array], target: Array) -> Array:
        """Return the coefficient of each `log pi_i` (equation 9), `[T, N, A]`."""
        policy, q = self.policy(batch["observation"]), self.q(batch["observation"])
        value, bound = self.value(batch["observation"]), self.settings["truncation"]
        found = np.zeros(policy.shape)
        for place in np.ndindex(target.shape):
            for i in range(policy.shape[-1]):
                ratio = policy[place][i] / (batch["behavior"][place][i] + self.settings["epsilon"])
                if i == batch["action"][place]:
                    found[place][i] += min(bound, ratio) * (target[place] - value[place])
                found[place][i] += max(0.0, 1 - bound / ratio) * policy[place][i] * (q[place][i] - value[place])
        return found

    def directions(self, batch: dict[str, Array], coefficients: Array) -> tuple[Array, Array]:
        """Return z of equation 12 `[T, N, A]`, and where it differs from the gradient `[T, N]`."""
        policy, average = self.policy(batch["observation"]), softmax(perceptron(batch["observation"], self.average))
        found, limited = np.zeros(policy.shape), np.zeros(policy.shape[:2])
        for place in np.ndindex(limited.shape):
            probabilities = policy[place] + self.settings["epsilon"]
            z = coefficients[place] / probabilities - self.settings["entropy"] * (np.log(policy[place]) + 1)
            k, limit = -average[place] / probabilities, self.settings["limit"]
            if limit is not None and k @ z > limit:
                z, limited[place] = z - (k @ z - limit) / (k @ k) * k, 1.0
            found[place] = z
        return found, limited

    def update(self, batch: dict[str, Array], optimizer: Any, tau: float) -> dict[str, float]:
        """Make one update of weights and average; return the metrics."""
        target, rules, weight = self.targets(batch), self.settings, batch["weight"]
        coefficients = self.coefficients(batch, target)
        z, limited = self.directions(batch, coefficients)
        policy, average = self.policy(batch["observation"]), softmax(perceptron(batch["observation"], self.average))
        metrics = {
            "policy_loss": -mean((coefficients * np.log(policy + rules["epsilon"])).sum(-1), weight),
            "value_loss": self.value_loss(batch, target),
            "entropy": -mean((policy * np.log(policy)).sum(-1), weight),
            "average_kl": mean((average * np.log(average / policy)).sum(-1), weight),
            "limited": mean(limited, weight),
        }
        loss = metrics["policy_loss"] - rules["entropy"] * metrics["entropy"] + rules["value"] * metrics["value_loss"]
        optimizer.apply(self.weights, self.gradients(batch, z, target))
        for moved, k in zip(self.average, self.actors, strict=True):
            moved += tau * (self.weights[k] - moved)
        return {"loss": loss, **metrics}

    def value_loss(self, batch: dict[str, Array], target: Array) -> float:
        taken = np.take_along_axis(self.q(batch["observation"]), batch["action"][..., None], -1)[..., 0]
        return mean(0.5 * (target - taken) ** 2, batch["weight"])

    def gradients(self, batch: dict[str, Array], z: Array, target: Array, step: float = 1e-6) -> list[Array]:
        """Return the gradients of `-mean(z pi) + value_loss`, with z and targets fixed, by central differences."""

        def objective() -> float:
            policy = mean((z * self.policy(batch["observation"])).sum(-1), batch["weight"])
            return -policy + self.settings["value"] * self.value_loss(batch, target)

        found = []
        for weight in self.weights:
            gradient, flat = np.zeros(weight.size), weight.reshape(-1)
            for k in range(weight.size):
                original = flat[k]
                flat[k] = original + step
                above = objective()
                flat[k] = original - step
                gradient[k] = (above - objective()) / (2 * step)
                flat[k] = original
            found.append(gradient.reshape(weight.shape))
        return found
