"""ACER for Box actions in NumPy and float64: algorithm 3 with loops, and all gradients by finite differences.

It shares no code with noterl. The last weight of an actor holds the logarithms of the standard deviations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.support.reference_acer import ACER
from tests.support.reference_on_policy import mean, perceptron

Array = np.ndarray


def outputs(observation: Array, weights: list[Array]) -> Array:
    means = perceptron(observation, weights[:-1])
    return np.concatenate([means, np.broadcast_to(weights[-1], means.shape)], axis=-1)


def log_density(phi: Array, action: Array) -> float:
    """Return the log-density of one action under one Gaussian, whose statistics are `phi`."""
    means, deviations = phi[: len(action)], np.exp(phi[len(action) :])
    densities = np.exp(-0.5 * ((action - means) / deviations) ** 2) / np.sqrt(2 * np.pi * deviations**2)
    return float(np.log(densities).sum())


def entropy(phi: Array) -> float:
    return float((phi[len(phi) // 2 :] + 0.5 * np.log(2 * np.pi * np.e)).sum())


def divergence(old: Array, new: Array) -> float:
    size = len(old) // 2
    old_variance, variance = np.exp(2 * old[size:]), np.exp(2 * new[size:])
    terms = np.log(variance / old_variance) + (old_variance + (old[:size] - new[:size]) ** 2) / variance - 1
    return float(0.5 * terms.sum())


def slope(function: Callable[[Array], float], at: Array, step: float = 1e-6) -> Array:
    """Return the gradient of a function of a vector, by central differences."""
    steps = np.eye(len(at)) * step
    return np.array([(function(at + each) - function(at - each)) / (2 * step) for each in steps])


class BoxACER(ACER):
    """An agent's networks, targets and gradients.

    Args:
        actor: weights of the actor.
        critic: weights of V; those shared with the actor are in both lists.
        advantage: weights of the advantage network.
        average: weights of the average actor.
        low: lower bounds of actions.
        high: upper bounds of actions.
        settings: shared, truncation, limit (None for no trust region), entropy, value.
    """

    def __init__(
        self,
        actor: list[Array],
        critic: list[Array],
        advantage: list[Array],
        average: list[Array],
        *,
        low: Array,
        high: Array,
        **settings: Any,
    ) -> None:
        super().__init__(actor, critic, average, **settings)
        own = [np.array(weight, np.float64) for weight in advantage]
        self.advantages = list(range(len(self.weights), len(self.weights) + len(own)))
        self.weights += own
        self.low, self.high = low, high

    def policy(self, observation: Array) -> Array:
        return outputs(observation, [self.weights[k] for k in self.actors])

    def value(self, observation: Array) -> Array:
        return perceptron(observation, [self.weights[k] for k in self.critics])[..., 0]

    def advantage(self, observation: Array, action: Array) -> Array:
        inputs = np.concatenate([observation, np.clip(action, self.low, self.high)], axis=-1)
        return perceptron(inputs, [self.weights[k] for k in self.advantages])[..., 0]

    def dueling(self, batch: dict[str, Array], action: Array) -> Array:
        """Return Q of actions `[T, N, A]` (equation 13)."""
        observation, others = batch["observation"], np.moveaxis(batch["samples"], 2, 0)[1:]
        center = np.mean([self.advantage(observation, other) for other in others], axis=0)
        return self.value(observation) + self.advantage(observation, action) - center

    def box_targets(self, batch: dict[str, Array], ratio: Array) -> tuple[Array, Array, Array]:
        """Return Q^ret, Q^opc and the targets of V, `[T, N]` each, by the recursion of algorithm 3."""
        q, value = self.dueling(batch, batch["action"]), self.value(batch["observation"])
        after, size = self.value(batch["next_observation"]), batch["action"].shape[-1]
        ret, opc, of_value = np.zeros((3, *ratio.shape))
        for lane in range(ratio.shape[1]):
            carried = [0.0, 0.0]
            for t in reversed(range(len(ratio))):
                place = t, lane
                for found, kept in ((ret, carried[0]), (opc, carried[1])):
                    bootstrap = kept if batch["continues"][place] else after[place]
                    found[place] = batch["reward"][place] + batch["discount"][place] * bootstrap
                of_value[place] = min(1.0, ratio[place]) * (ret[place] - q[place]) + value[place]
                carried[0] = min(1.0, ratio[place] ** (1 / size)) * (ret[place] - q[place]) + value[place]
                carried[1] = opc[place] - q[place] + value[place]
        return ret, opc, of_value

    def update(self, batch: dict[str, Array], optimizer: Any, tau: float) -> dict[str, float]:
        """Make one update of weights and average; return the metrics."""
        rules, weight, action = self.settings, batch["weight"], batch["action"]
        phi, average = self.policy(batch["observation"]), outputs(batch["observation"], self.average)
        size = action.shape[-1]
        samples = phi[..., None, :size] + np.exp(phi[..., None, size:]) * batch["noise"]
        batch = {**batch, "samples": samples}
        other = samples[:, :, 0]

        def ratios(actions: Array) -> Array:
            places = np.ndindex(weight.shape)
            found = [log_density(phi[p], actions[p]) - log_density(batch["behavior"][p], actions[p]) for p in places]
            return np.exp(found).reshape(weight.shape)

        ratio, other_ratio = ratios(action), ratios(other)
        ret, opc, of_value = self.box_targets(batch, ratio)
        value, other_q = self.value(batch["observation"]), self.dueling(batch, other)
        z, limited, terms, divergences = np.zeros(phi.shape), *np.zeros((3, *weight.shape))
        for p in np.ndindex(weight.shape):
            first = min(rules["truncation"], ratio[p]) * (opc[p] - value[p])
            second = max(0.0, 1 - rules["truncation"] / other_ratio[p]) * (other_q[p] - value[p])

            def objective(at: Array, p: Any = p, first: float = first, second: float = second) -> float:
                return first * log_density(at, action[p]) + second * log_density(at, other[p])

            terms[p], divergences[p] = objective(phi[p]), divergence(average[p], phi[p])
            g = slope(objective, phi[p]) + rules["entropy"] * slope(entropy, phi[p])
            k = slope(lambda at, p=p: divergence(average[p], at), phi[p])
            if rules["limit"] is not None and k @ g > rules["limit"]:
                g, limited[p] = g - (k @ g - rules["limit"]) / (k @ k) * k, 1.0
            z[p] = g
        metrics = {
            "policy_loss": -mean(terms, weight),
            "value_loss": self.value_loss(batch, np.stack([ret, of_value])),
            "entropy": mean(
                np.array([entropy(each) for each in phi.reshape(-1, 2 * size)]).reshape(ratio.shape), weight
            ),
            "average_kl": mean(divergences, weight),
            "limited": mean(limited, weight),
        }
        loss = metrics["policy_loss"] - rules["entropy"] * metrics["entropy"] + rules["value"] * metrics["value_loss"]
        optimizer.apply(self.weights, self.gradients(batch, z, np.stack([ret, of_value])))
        for moved, k in zip(self.average, self.actors, strict=True):
            moved += tau * (self.weights[k] - moved)
        return {"loss": loss, **metrics}

    def value_loss(self, batch: dict[str, Array], target: Array) -> float:
        """Return the losses of Q and V, whose targets `[2, T, N]` are constants."""
        of_q = 0.5 * (target[0] - self.dueling(batch, batch["action"])) ** 2
        return mean(of_q + 0.5 * (target[1] - self.value(batch["observation"])) ** 2, batch["weight"])
