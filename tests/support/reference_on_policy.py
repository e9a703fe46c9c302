"""PPO and A2C in NumPy and float64, with gradients by finite differences: the reference for every backend.

It shares no code with noterl. Networks are perceptrons with tanh. For a Box, the last weight of the actor holds the
logarithms of the standard deviations.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray


def softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def perceptron(x: Array, weights: list[Array]) -> Array:
    for kernel, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        x = np.tanh(x @ kernel + bias)
    return x @ weights[-2] + weights[-1]


def advantages(reward: Array, discount: Array, value: Array, after: Array, continues: Array, lam: float) -> Array:
    """Return generalized advantages `[T, N]`, lane by lane and step by step."""
    found = np.zeros(reward.shape)
    for lane in range(reward.shape[1]):
        tail = 0.0
        for t in reversed(range(len(reward))):
            delta = reward[t, lane] + discount[t, lane] * after[t, lane] - value[t, lane]
            tail = delta + (discount[t, lane] * lam * tail if continues[t, lane] else 0.0)
            found[t, lane] = tail
    return found


def mean(values: Array, weight: Array) -> float:
    return float((values * weight).sum() / weight.sum())


class ActorCritic:
    """An agent's networks and losses.

    Args:
        actor: weights of the actor, in Keras's layout.
        critic: weights of the critic; those shared with the actor are in both lists.
        kind: kind of the action space: "discrete", "multi" (3 and 2 choices), "binary" or "box".
        shared: number of weights at the start of both lists that actor and critic share.
        settings: coefficients of the algorithm: gae_lambda, entropy, value, and for PPO clip and value_clip.
    """

    def __init__(self, actor: list[Array], critic: list[Array], *, kind: str, shared: int = 0, **settings: Any) -> None:
        own = [np.array(weight, np.float64) for weight in critic[shared:]]
        self.weights = [np.array(weight, np.float64) for weight in actor] + own
        self.actors = list(range(len(actor)))
        self.critics = list(range(shared)) + list(range(len(actor), len(self.weights)))
        self.kind, self.settings = kind, settings

    def value(self, observation: Array) -> Array:
        return perceptron(observation, [self.weights[k] for k in self.critics])[..., 0]

    def distribution(self, observation: Array) -> tuple[Array, Array]:
        weights = [self.weights[k] for k in self.actors]
        if self.kind == "box":
            return perceptron(observation, weights[:-1]), np.exp(weights[-1])
        return perceptron(observation, weights), np.zeros(0)

    def log_prob(self, observation: Array, action: Array) -> Array:
        outputs, deviation = self.distribution(observation)
        if self.kind == "box":
            density = np.exp(-0.5 * ((action - outputs) / deviation) ** 2) / np.sqrt(2 * np.pi * deviation**2)
            return np.log(density).sum(-1)
        if self.kind == "binary":
            ones = 1 / (1 + np.exp(-outputs))
            return np.log(np.where(action == 1, ones, 1 - ones)).sum(-1)
        if self.kind == "discrete":
            return np.log(np.take_along_axis(softmax(outputs), action[..., None], -1))[..., 0]
        parts = softmax(outputs[..., :3]), softmax(outputs[..., 3:])
        chosen = [np.take_along_axis(part, action[..., k, None], -1)[..., 0] for k, part in enumerate(parts)]
        return np.log(chosen[0] * chosen[1])

    def entropy(self, observation: Array) -> Array:
        outputs, deviation = self.distribution(observation)
        if self.kind == "box":
            return np.full(len(outputs), 0.5 * np.log(2 * np.pi * np.e * deviation**2).sum())
        if self.kind == "binary":
            ones = 1 / (1 + np.exp(-outputs))
            return -(ones * np.log(ones) + (1 - ones) * np.log(1 - ones)).sum(-1)
        parts = [softmax(outputs)] if self.kind == "discrete" else [softmax(outputs[:, :3]), softmax(outputs[:, 3:])]
        return sum(-(part * np.log(part)).sum(-1) for part in parts)

    def prepared(self, rollout: dict[str, Array]) -> dict[str, Array]:
        value, after = self.value(rollout["observation"]), self.value(rollout["next_observation"])
        found = advantages(
            rollout["reward"], rollout["discount"], value, after, rollout["continues"], self.settings["gae_lambda"]
        )
        log_prob = self.log_prob(rollout["observation"], rollout["action"])
        return {"value": value, "log_prob": log_prob, "advantage": found, "target": found + value}

    def losses(self, batch: dict[str, Array]) -> dict[str, float]:
        weight, advantage, rules = batch["weight"], batch["advantage"], self.settings
        log_prob = self.log_prob(batch["observation"], batch["action"])
        value = self.value(batch["observation"])
        metrics = {"entropy": mean(self.entropy(batch["observation"]), weight)}
        error = (value - batch["target"]) ** 2
        if "clip" in rules:
            centered = advantage - mean(advantage, weight)
            advantage = centered / (np.sqrt(mean(centered**2, weight)) + 1e-8)
            ratio = np.exp(log_prob - batch["log_prob"])
            clipped = np.clip(ratio, 1 - rules["clip"], 1 + rules["clip"])
            metrics["policy_loss"] = mean(-np.minimum(ratio * advantage, clipped * advantage), weight)
            metrics["approximate_kl"] = mean(ratio - 1 - np.log(ratio), weight)
            metrics["clip_fraction"] = mean((np.abs(ratio - 1) > rules["clip"]) * 1.0, weight)
            if rules.get("value_clip"):
                clipped_value = batch["value"] + np.clip(
                    value - batch["value"], -rules["value_clip"], rules["value_clip"]
                )
                error = np.maximum(error, (clipped_value - batch["target"]) ** 2)
        else:
            metrics["policy_loss"] = mean(-log_prob * advantage, weight)
        metrics["value_loss"] = mean(error, weight)
        policy = metrics["policy_loss"] - rules["entropy"] * metrics["entropy"]
        return {"loss": policy + rules["value"] * metrics["value_loss"], **metrics}

    def gradients(self, batch: dict[str, Array], step: float = 1e-6) -> list[Array]:
        """Return the gradient of the loss for each weight, by central differences."""
        found = []
        for weight in self.weights:
            gradient, flat = np.zeros(weight.size), weight.reshape(-1)
            for k in range(weight.size):
                original = flat[k]
                flat[k] = original + step
                above = self.losses(batch)["loss"]
                flat[k] = original - step
                gradient[k] = (above - self.losses(batch)["loss"]) / (2 * step)
                flat[k] = original
            found.append(gradient.reshape(weight.shape))
        return found


class Clipped:
    """Base of the optimizers: clips the gradients of some of the weights by their global norm."""

    def __init__(self, rate: float, norm: float, which: list[int]) -> None:
        self.rate, self.norm, self.which, self.count = rate, norm, which, 0
        self.first: dict[int, Array] = {}
        self.second: dict[int, Array] = {}

    def apply(self, weights: list[Array], gradients: list[Array]) -> None:
        norm = np.sqrt(sum((gradients[k] ** 2).sum() for k in self.which))
        self.count += 1
        for k in self.which:
            self.move(k, weights[k], gradients[k] * min(1.0, self.norm / norm))


class Adam(Clipped):
    """Keras's Adam, which adds epsilon before it corrects the bias of the second moment."""

    epsilon = 1e-5

    def move(self, k: int, weight: Array, gradient: Array) -> None:
        self.first[k] = 0.9 * self.first.get(k, 0.0) + 0.1 * gradient
        self.second[k] = 0.999 * self.second.get(k, 0.0) + 0.001 * gradient**2
        rate = self.rate * np.sqrt(1 - 0.999**self.count) / (1 - 0.9**self.count)
        weight -= rate * self.first[k] / (np.sqrt(self.second[k]) + self.epsilon)


class RMSprop(Clipped):
    """Keras's RMSprop, which adds epsilon inside the square root."""

    epsilon = 1e-10

    def move(self, k: int, weight: Array, gradient: Array) -> None:
        self.second[k] = 0.99 * self.second.get(k, 0.0) + 0.01 * gradient**2
        weight -= self.rate * gradient / np.sqrt(self.second[k] + self.epsilon)
