"""PQN: returns and updates equal float64 references; masks, truncation, workers and files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import noterl
from noterl import networks
from noterl.backends import current
from noterl.policies import EpsGreedyQPolicy, LinearEpsGreedyPolicy
from tests.support import reference_values as reference
from tests.support.batches import IMAGE, VECTOR
from tests.support.masked_env import MaskedWalk
from tests.support.parts import actor_of, learner_of
from tests.support.states import assert_same_state

torch_only = pytest.mark.backends("torch")
LANES, STEPS, LAMBDA, GAMMA = 3, 5, 0.7, 0.9


def q_values(observation: np.ndarray, weights: Any) -> np.ndarray:
    """Return the action values of one hidden layer that is normalized, in float64."""
    values = np.array(observation, float) @ weights[0] + weights[1]
    deviation = np.sqrt(values.var(axis=-1, keepdims=True) + 1e-5)
    values = (values - values.mean(axis=-1, keepdims=True)) / deviation * weights[2] + weights[3]
    return reference.relu(values) @ weights[4] + weights[5]


def returns(batch: Any, weights: Any) -> np.ndarray:
    """Return the Q(lambda) returns of a rollout `[T, N]`, backwards in time, as in the paper."""
    largest, rows = q_values(batch.next_observation, weights).max(axis=-1), np.zeros((STEPS, LANES))
    for lane in range(LANES):
        following = 0.0
        for t in reversed(range(STEPS)):
            reward, discount = float(batch.reward[t, lane]), float(batch.discount[t, lane])
            value = largest[t, lane]
            if batch.extra["continues"][t, lane]:
                value = LAMBDA * following + (1 - LAMBDA) * value
            rows[t, lane] = following = reward + discount * value
    return rows


def test_returns_and_update_equal_the_reference() -> None:
    agent = noterl.PQN(VECTOR, hidden=(4,), gamma=GAMMA, q_lambda=LAMBDA, rollout_steps=STEPS, epochs=1, seed=3)
    agent.compile(keras.optimizers.SGD(0.1), batch_size="rollout")
    agent.build()
    rng = np.random.default_rng(0)
    shape = (STEPS, LANES)
    ended = rng.random(shape) < 0.3
    terminated = ended & (rng.random(shape) < 0.5)
    continues = np.where(ended, 0.0, 1.0)
    continues[-1] = 0.0
    weights = [weight + rng.normal(scale=0.2, size=weight.shape) for weight in networks.get_weights(agent.q)]
    networks.set_weights(agent.q, [weight.astype(np.float32) for weight in weights])
    weights = [np.array(weight, float) for weight in networks.get_weights(agent.q)]
    rollout = noterl.Batch(
        observation=rng.normal(size=(*shape, 5)).astype(np.float32),
        action=rng.integers(3, size=shape).astype(np.int32),
        reward=rng.normal(size=shape).astype(np.float32),
        next_observation=rng.normal(size=(*shape, 5)).astype(np.float32),
        discount=np.where(terminated, 0.0, GAMMA).astype(np.float32),
        weight=np.ones(shape, np.float32),
        index=np.zeros(shape, np.int64),
        extra={"continues": continues.astype(np.float32)},
    )
    # Between two rows of an episode, the next observation is the observation of the next row.
    rollout.next_observation[:-1][continues[:-1] > 0] = rollout.observation[1:][continues[:-1] > 0]
    expected = returns(rollout, weights)
    assert ended.any() and terminated.any() and (ended & ~terminated).any()

    tensors = rollout._replace(**{name: keras.ops.convert_to_tensor(getattr(rollout, name)) for name in (
        "observation", "reward", "next_observation", "discount", "weight")})._replace(
        extra={"continues": keras.ops.convert_to_tensor(rollout.extra["continues"])})  # fmt: skip
    target = current().fetch(agent.prepare(tensors)["target"])
    np.testing.assert_allclose(target, expected, rtol=1e-4, atol=1e-5)

    def loss(parameters: Any) -> float:
        values = q_values(rollout.observation, parameters)
        taken = np.take_along_axis(values, rollout.action[..., None], axis=-1)[..., 0]
        return float(np.mean(0.5 * (taken - expected) ** 2))

    slopes = reference.gradients(loss, weights)
    rows = rollout._replace(extra={"target": expected.astype(np.float32)})
    flat = noterl.Batch(
        *(np.reshape(field, (STEPS * LANES, *field.shape[2:])) for field in rows[:-1]),
        extra={name: value.reshape(-1) for name, value in rows.extra.items()},
    )
    flat = flat._replace(**{name: getattr(flat, name)[None] for name in flat._fields[:-1]}, extra={
        name: value[None] for name, value in flat.extra.items()})  # fmt: skip
    learner = learner_of(agent)
    learner.update(flat, 1)
    for weight, old, slope in zip(networks.get_weights(agent.q), weights, slopes, strict=True):
        np.testing.assert_allclose(weight, old - 0.1 * slope, rtol=1e-4, atol=2e-6)


@torch_only
def test_network_is_normalized_and_acts_in_numpy() -> None:
    agent = noterl.PQN(VECTOR, hidden=(6, 4), seed=1)
    names = [type(module).__name__ for module in agent.q]
    assert names == ["Float", *["Linear", "LayerNorm", "ReLU"] * 2, "Linear"]
    assert actor_of(agent).forward.in_numpy
    image = noterl.PQN(IMAGE, seed=1)
    assert [type(module).__name__ for module in image.q][-4:] == ["Linear", "LayerNorm", "ReLU", "Linear"]
    assert image.defaults().policy.get_config()["steps"] == 1_000_000
    assert agent.defaults().policy.get_config()["steps"] <= 100_000


def make(**changes: Any) -> noterl.PQN:
    return noterl.PQN(MaskedWalk, hidden=(8,), rollout_steps=5, epochs=2, seed=3, **changes)


@torch_only
def test_training_takes_legal_actions_only_and_resumes_exactly(tmp_path: Path) -> None:
    whole, half = make(), make()  # MaskedWalk raises if an action is illegal
    whole.fit(steps=97, num_envs=2, verbose=0)
    half.fit(steps=53, num_envs=2, verbose=0)
    half.save(tmp_path / "half.noterl")
    resumed = noterl.load(tmp_path / "half.noterl", {"MaskedWalk": MaskedWalk})
    resumed.fit(MaskedWalk, steps=44, num_envs=2, verbose=0)
    assert_same_state(resumed.get_state(), whole.get_state())
    assert whole.updates > 0 and "action_mask" in whole.info_spec


@torch_only
def test_returns_use_legal_actions_only() -> None:
    agent = make()
    agent.fit(steps=30, num_envs=2, verbose=0)
    observation = keras.ops.convert_to_tensor(np.eye(agent.observation_size, dtype=np.float32)[:2])
    values = current().fetch(agent.q(observation))
    worst = np.argmin(values, axis=1)
    mask = keras.ops.convert_to_tensor(np.arange(values.shape[1]) == worst[:, None])
    np.testing.assert_allclose(current().fetch(agent.largest(observation, mask)), values.min(axis=1))


@torch_only
def test_workers_collect_the_rollouts() -> None:
    agent = noterl.PQN("CartPole-v1", hidden=(8,), rollout_steps=5, epochs=1, seed=3)
    agent.fit(steps=80, num_envs=4, workers=2, verbose=0)
    assert agent.updates > 0


@torch_only
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"q_lambda": 1.5}, "q_lambda .*got 1.5"), ({"rollout_steps": 0}, "rollout_steps .*got 0"),
        ({"epochs": 0}, "epochs .*got 0"), ({"gamma": -1}, "gamma .*got -1"),
    ],
)  # fmt: skip
def test_bad_argument_raises_with_its_name(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        noterl.PQN(VECTOR, **arguments)


@pytest.mark.backends("jax")
def test_rollouts_on_the_device_explore_by_the_schedule_of_the_policy() -> None:
    agent = noterl.PQN(noterl.envs.functional_cartpole(), hidden=(8,), rollout_steps=4, epochs=1, seed=3)
    agent.compile(policy=LinearEpsGreedyPolicy(1.0, 0.25, steps=16), batch_size="rollout")
    agent.fit(steps=64, num_envs=2, verbose=0)
    runner: Any = learner_of(agent).device_runner
    count, values = runner.program.iterations, runner.scheduled(0)
    assert agent.updates == 8 and values.shape == (count, 4)
    expected = [max(0.25, 1.0 - 0.75 * step / 16) for step in range(0, 8 * count, 2)]
    np.testing.assert_allclose(values.reshape(-1), expected, rtol=1e-6)


@pytest.mark.backends("jax")
def test_greedy_and_random_policies_act_so_on_the_device() -> None:
    """With epsilon 1, both actions are taken; without, the untrained network repeats one action for the same state."""
    lengths = {}
    for epsilon in (0.0, 1.0):
        agent = noterl.PQN(noterl.envs.functional_cartpole(), hidden=(8,), rollout_steps=50, epochs=1, seed=3)
        agent.compile(keras.optimizers.SGD(0.0), policy=EpsGreedyQPolicy(epsilon), batch_size="rollout")
        history = agent.fit(steps=800, num_envs=4, verbose=0)
        lengths[epsilon] = history.history["length"]
    best = noterl.PQN(noterl.envs.functional_cartpole(), hidden=(8,), seed=3).evaluate(episodes=20)["lengths"]
    assert abs(np.mean(lengths[0.0]) - np.mean(best)) < 3 < np.mean(lengths[1.0]) - np.mean(best)
