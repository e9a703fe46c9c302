"""One gradient update of each algorithm; the programs of the frameworks run them.

A batch is a dict of tensors `[B, ...]`. Targets are computed outside of the losses, so no gradient flows through them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

HALF_LOG_2_PI = 0.5 * math.log(2 * math.pi)
TAU = 0.005
# Of Adam. Keras adds it before the correction of the bias, torch after it. This value is too small to differ.
EPSILON = 1e-12
CLIP, VALUE_COEFFICIENT, ENTROPY_COEFFICIENT = 0.2, 0.5, 0.01
TARGET_NOISE, TARGET_NOISE_CLIP = 0.2, 0.5
# Strides of the convolutions of the Nature paper's network.
STRIDES = (4, 2, 1)


class Update(NamedTuple):
    """An update and what its program needs.

    Attributes:
        run: takes the program and one batch for each update of a period, and returns the loss of the last critic.
        trained: the groups of weights that have an optimizer.
        period: the number of updates that differ from each other.
        clipnorm: the largest norm of the gradients; None for no bound.
    """

    run: Callable[[Any, Sequence[dict[str, Any]]], Any]
    trained: tuple[str, ...]
    period: int = 1
    clipnorm: float | None = None


def mlp(ops: Any, weights: Sequence[Any], inputs: Any, activation: Callable[[Any], Any]) -> Any:
    """Return the outputs of dense layers; `weights` alternates between kernels and biases."""
    for k in range(0, len(weights) - 2, 2):
        inputs = activation(ops.dense(inputs, weights[k], weights[k + 1]))
    return ops.dense(inputs, weights[-2], weights[-1])


def q_network(ops: Any, weights: Sequence[Any], observation: Any) -> Any:
    """Return the action values `[B, A]`; images `[B, H, W, C]` go through the Nature paper's convolutions first."""
    if len(observation.shape) == 4:
        observation = ops.image(observation)
        for k, stride in enumerate(STRIDES):
            observation = ops.relu(ops.conv(observation, weights[2 * k], weights[2 * k + 1], stride))
        observation, weights = ops.flatten(observation), weights[2 * len(STRIDES) :]
    return mlp(ops, weights, observation, ops.relu)


def q_values(ops: Any, weights: Sequence[Any], observation: Any, action: Any, critics: int = 2) -> list[Any]:
    """Return the values `[B]` of the first critics; `weights` holds those of both."""
    inputs, half = ops.concat([observation, action]), len(weights) // 2
    both = (weights[:half], weights[half:])[:critics]
    return [mlp(ops, one, inputs, ops.relu)[:, 0] for one in both]


def dqn(program: Any, batches: Sequence[dict[str, Any]]) -> Any:
    (batch,), ops = batches, program.ops
    with program.no_grad():
        next_q = q_network(ops, program.weights["target_q"], batch["next_observation"])
        target = batch["reward"] + batch["discount"] * ops.max_last(next_q)

    def loss(weights: Sequence[Any]) -> tuple[Any, None]:
        return ops.huber(ops.take(q_network(ops, weights, batch["observation"]), batch["action"]), target), None

    return program.minimize("q", loss)[0]


def update_critics(program: Any, batch: dict[str, Any], target: Any) -> Any:
    """Take a step on the sum of both critics' squared errors, halved, and return it."""
    ops = program.ops
    action = batch["action"] * program.action_factor

    def loss(weights: Sequence[Any]) -> tuple[Any, None]:
        first, second = q_values(ops, weights, batch["observation"], action)
        return 0.5 * ops.mean(ops.square(first - target)) + 0.5 * ops.mean(ops.square(second - target)), None

    return program.minimize("critic", loss)[0]


def td3(program: Any, batches: Sequence[dict[str, Any]]) -> Any:
    ops, value = program.ops, None
    for batch in batches:
        with program.no_grad():
            observation = batch["next_observation"]
            noise = ops.clip(TARGET_NOISE * batch["target_noise"], -TARGET_NOISE_CLIP, TARGET_NOISE_CLIP)
            action = ops.tanh(mlp(ops, program.weights["target_actor"], observation, ops.relu))
            action = ops.clip(action + noise, -1.0, 1.0)
            next_q = ops.minimum(*q_values(ops, program.weights["target_critic"], observation, action))
            target = batch["reward"] + batch["discount"] * next_q
        value = update_critics(program, batch, target)
    last = batches[-1]["observation"]

    def actor_loss(weights: Sequence[Any]) -> tuple[Any, None]:
        action = ops.tanh(mlp(ops, weights, last, ops.relu))
        (q,) = q_values(ops, program.weights["critic"], last, action, critics=1)
        return -ops.mean(q), None

    program.minimize("actor", actor_loss)
    program.polyak("critic", "target_critic", TAU)
    program.polyak("actor", "target_actor", TAU)
    return value


def squashed_sample(ops: Any, weights: Sequence[Any], observation: Any, noise: Any) -> tuple[Any, Any]:
    """Return actions `[B, A]` in [-1, 1] and their log-probabilities `[B]` (Haarnoja et al., 2018, appendix C)."""
    values, size = mlp(ops, weights, observation, ops.relu), noise.shape[-1]
    mean, log_std = values[:, :size], ops.clip(values[:, size:], -20.0, 2.0)
    raw = mean + ops.exp(log_std) * noise
    gaussian = -0.5 * ops.square(noise) - log_std - HALF_LOG_2_PI
    log_slope = 2.0 * (math.log(2.0) - raw - ops.softplus(-2.0 * raw))
    return ops.tanh(raw), ops.sum_last(gaussian - log_slope)


def sac(program: Any, batches: Sequence[dict[str, Any]]) -> Any:
    (batch,), ops = batches, program.ops
    with program.no_grad():
        temperature = ops.exp(program.weights["temperature"][0])
        action, log_prob = squashed_sample(
            ops, program.weights["actor"], batch["next_observation"], batch["next_noise"]
        )
        next_q = ops.minimum(*q_values(ops, program.weights["target_critic"], batch["next_observation"], action))
        target = batch["reward"] + batch["discount"] * (next_q - temperature * log_prob)
    value = update_critics(program, batch, target)

    def actor_loss(weights: Sequence[Any]) -> tuple[Any, Any]:
        action, log_prob = squashed_sample(ops, weights, batch["observation"], batch["noise"])
        q = ops.minimum(*q_values(ops, program.weights["critic"], batch["observation"], action))
        return ops.mean(temperature * log_prob - q), log_prob

    _, log_prob = program.minimize("actor", actor_loss)
    with program.no_grad():
        difference = ops.mean(ops.stop_gradient(log_prob)) - batch["action"].shape[-1]
    program.minimize("temperature", lambda weights: (-weights[0] * difference, None))
    program.polyak("critic", "target_critic", TAU)
    return value


def ppo(program: Any, batches: Sequence[dict[str, Any]]) -> Any:
    (batch,), ops = batches, program.ops
    with program.no_grad():
        centered = batch["advantage"] - ops.mean(batch["advantage"])
        advantage = centered / (ops.sqrt(ops.mean(ops.square(centered))) + 1e-8)

    def loss(weights: Sequence[Any]) -> tuple[Any, None]:
        half = len(weights) // 2
        log_policy = ops.log_softmax(mlp(ops, weights[:half], batch["observation"], ops.tanh))
        ratio = ops.exp(ops.take(log_policy, batch["action"]) - batch["log_prob"])
        surrogate = ops.mean(ops.minimum(ratio * advantage, ops.clip(ratio, 1.0 - CLIP, 1.0 + CLIP) * advantage))
        entropy = -ops.mean(ops.sum_last(ops.exp(log_policy) * log_policy))
        value = mlp(ops, weights[half:], batch["observation"], ops.tanh)[:, 0]
        error = ops.mean(ops.square(value - batch["target"]))
        return VALUE_COEFFICIENT * error - surrogate - ENTROPY_COEFFICIENT * entropy, None

    return program.minimize("networks", loss)[0]


UPDATES = {
    "dqn": Update(dqn, ("q",)),
    "td3": Update(td3, ("actor", "critic"), period=2),
    "sac": Update(sac, ("actor", "critic", "temperature")),
    "ppo": Update(ppo, ("networks",), clipnorm=0.5),
}
