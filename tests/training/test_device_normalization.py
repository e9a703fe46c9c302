"""Normalization in compiled calls: the statistics, what networks receive, positions, resume and fixed statistics."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import noterl
from noterl.backends import keras
from noterl.backends.common import NonFiniteError
from noterl.collect import DeviceLanes
from noterl.envs.functional import functional, import_jax
from noterl.learning.device_normalization import DeviceNormalizers, DeviceStatistics
from noterl.normalization import Normalizers, RunningMeanStd
from noterl.policies import GreedyQPolicy
from noterl.replay import Replay
from noterl.types import Batch
from tests.support.functional import line
from tests.support.parts import actor_of
from tests.support.states import assert_same_state
from tests.training.test_device_replay import LANES, fit, transitions

pytestmark = pytest.mark.backends("jax")

ROUNDS = 5
RULES: dict[str, Any] = {"normalize_observation": True, "normalize_reward": True}


def ppo(seed: int = 3, env: Any = None) -> noterl.PPO:
    agent = noterl.PPO(env or line(), hidden=(4,), rollout_steps=ROUNDS, epochs=2, gamma=0.9, seed=seed, **RULES)
    agent.compile(batch_size=5, steps_per_execution=6)
    return agent


def dqn(seed: int = 3, env: Any = None, batch_size: int = 4) -> noterl.DQN:
    agent = noterl.DQN(env or line(), hidden=(4,), gamma=0.9, seed=seed, **RULES)
    settings: dict[str, Any] = {"update_every": 4, "updates": 2, "learning_starts": 0}
    agent.compile(batch_size=batch_size, replay=Replay(200), policy=GreedyQPolicy(), **settings)
    return agent


def statistics(normalizers: Any) -> dict[str, Any]:
    return {**normalizers.arrays(), "returns": normalizers.returns}


def assert_close(found: Any, expected: Any) -> None:
    assert list(found) == list(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-6, err_msg=name)


def random_batch(generator: np.random.Generator) -> Batch:
    """Return a rollout `[4, 3, ...]`."""
    shape = (4, LANES)
    ended = (generator.random(shape) < 0.3).astype(np.float32)
    return Batch(
        observation=generator.normal(3.0, 2.0, (*shape, 2)).astype(np.float32),
        action=np.zeros(shape, np.int64),
        reward=generator.normal(size=shape).astype(np.float32),
        next_observation=generator.normal(3.0, 9.0, (*shape, 2)).astype(np.float32),
        discount=np.full(shape, 0.9, np.float32),
        weight=np.ones(shape, np.float32),
        index=np.zeros(shape, np.int32),
        extra={"ended": ended},
    )


def assert_same_batch(found: Batch, expected: Batch) -> None:
    for name in ("observation", "next_observation", "reward"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-4, atol=1e-5)


def test_rollouts_and_batches_are_those_of_the_host() -> None:
    generator = np.random.default_rng(0)
    host, copied = Normalizers((2,), reward=True), Normalizers((2,), reward=True)
    device = DeviceNormalizers(copied, LANES)
    for _ in range(3):
        batch = random_batch(generator)
        device.load()
        tensors = batch._replace(
            **{name: keras.ops.convert_to_tensor(getattr(batch, name)) for name in batch._fields[:-1]}
        )
        found = device.rollout(tensors, 0.9)
        device.unload()
        assert_same_batch(found, host.normalize_rollout(batch, 0.9))
        assert_close(statistics(copied), statistics(host))
    assert copied.observation is not None and copied.observation.count == 36
    assert_same_batch(device.batch(tensors), host.normalize_batch(batch))


def last_rollout(agent: noterl.PPO) -> Batch:
    """Return the rollout `[ROUNDS, LANES, ...]` that the agent has learned from last."""
    assert isinstance(agent._parts.session.lanes, DeviceLanes)
    memory = agent._parts.session.lanes.carry.memory
    names = ("observation", "action", "reward", "next_observation")
    fields = {name: np.asarray(getattr(memory, name)) for name in names}
    ones = np.ones((ROUNDS, LANES))
    return Batch(**fields, discount=ones, weight=ones, index=0 * ones, extra={"ended": np.asarray(memory.ended)})


def test_agent_that_learns_from_rollouts_has_the_statistics_of_its_rollouts() -> None:
    agent = ppo()
    host = Normalizers(agent.spaces.encoder.space.shape, reward=True)
    for _ in range(4):
        fit(agent, ROUNDS * LANES)
        host.normalize_rollout(last_rollout(agent), 0.9)
        assert_close(statistics(agent.spaces.normalizers), statistics(host))
    assert agent.updates > 0


@pytest.mark.parametrize("arguments", [{"seed": 9}, {"env": line()}], ids=["seed", "env"])
def test_returns_begin_at_0_when_all_episodes_restart(arguments: dict[str, Any]) -> None:
    agent = ppo()
    fit(agent, ROUNDS * LANES)
    host = copy.deepcopy(agent.spaces.normalizers)
    assert host.returns.any()
    host.returns[:] = 0.0
    fit(agent, ROUNDS * LANES, **arguments)
    host.normalize_rollout(last_rollout(agent), 0.9)
    assert_close(statistics(agent.spaces.normalizers), statistics(host))


def test_values_beyond_the_precision_of_the_count_do_not_change_the_variance() -> None:
    host = RunningMeanStd(())
    host.set_state({"mean": np.array(0.0), "variance": np.array(1.0), "count": 2**24})
    device = DeviceStatistics(host)
    device.load()
    values = np.tile(np.float32([1.0, -1.0]), 2**15)
    device.add_each(values, np.ones(len(values), bool))
    device.unload()
    assert host.variance == pytest.approx(1.0, abs=1e-4)
    assert host.mean == pytest.approx(0.0, abs=1e-4)


def test_value_that_never_changes_has_no_variance() -> None:
    host = RunningMeanStd((1,))
    device = DeviceStatistics(host)
    device.load()
    device.add(np.full((1_000, 1), 100_000.1, np.float32))
    device.unload()
    assert (host.mean, host.variance) == (np.float32(100_000.1), 0.0)


@pytest.mark.parametrize("batch_size", [128, 4], ids=["acting", "learning"])
def test_agent_with_a_memory_has_the_statistics_of_its_transitions(batch_size: int) -> None:
    """Weights do not change while the memory holds no batch: actions follow from the statistics before a round."""
    agent = dqn(batch_size=batch_size)
    fit(agent, 40)
    host = acting = Normalizers(agent.spaces.encoder.space.shape, reward=True)
    for number, transition in enumerate(transitions(agent)):
        observation = agent.spaces.encoder(transition.observation)
        if number % LANES == 0:
            acting = copy.deepcopy(host)
        if not agent.updates:
            values = actor_of(agent).forward(acting.normalize_observation(observation[None]))
            assert transition.action == np.argmax(values)
        host.update(transition._replace(observation=observation), 0.9)
        if transition.terminated or transition.truncated:
            host.interrupt(transition.lane)
    assert isinstance(agent._parts.session.lanes, DeviceLanes)
    assert_close(statistics(agent.spaces.normalizers), statistics(host))
    assert bool(agent.updates) == (batch_size == 4)


@pytest.mark.parametrize("make", [ppo, dqn])
def test_split_and_restored_runs_equal_a_whole_one(make: Any, tmp_path: Path) -> None:
    whole, first, second = make(), make(), make(seed=5)
    fit(whole, 100)
    fit(first, 37)
    first.save(tmp_path / "run.noterl")
    second.restore(tmp_path / "run.noterl")
    fit(second, 63)
    assert_same_state(whole.get_state(), second)


def test_statistics_of_a_data_set_stay_fixed(tmp_path: Path) -> None:
    agent = dqn()
    data = noterl.Dataset.record(agent, line(), steps=60, path=tmp_path / "data.noterl")
    agent.fit(dataset=data, updates=4, verbose=0)
    before = statistics(agent.spaces.normalizers)
    fit(agent, 30)
    after = statistics(agent.spaces.normalizers)
    assert isinstance(agent._parts.session.lanes, DeviceLanes)
    np.testing.assert_allclose(after["observation/mean"], before["observation/mean"], rtol=1e-6)
    assert after["observation/count"] == before["observation/count"] < after["reward/count"]


def test_new_episodes_do_not_continue_the_returns_of_the_last_ones() -> None:
    agent = ppo()
    fit(agent, ROUNDS * LANES)
    assert agent.spaces.normalizers.returns.any()
    agent.fit(steps=1, num_envs=LANES + 1, verbose=0)
    assert agent.spaces.normalizers.returns.shape == (LANES + 1,)
    assert not agent.spaces.normalizers.returns.any()


def broken(name: str) -> Any:
    """Return an environment whose "observation" or "reward" is NaN after 30 steps."""

    def reset(key: Any) -> tuple[Any, Any]:
        time = import_jax().numpy.int32(0)
        return observed(time), time

    def step(key: Any, time: Any, action: Any) -> tuple[Any, ...]:
        return observed(time + 1), time + 1, value(time, "reward"), False, False

    def observed(time: Any) -> Any:
        return value(time, "observation")[None]

    def value(time: Any, kind: str) -> Any:
        jnp = import_jax().numpy
        return jnp.where((time < 30) | (kind != name), time / 10.0, jnp.nan)

    return functional(reset, step, spaces.Box(-1.0, 1.0, (1,)), spaces.Discrete(2), max_episode_steps=40)


@pytest.mark.parametrize("make", [ppo, dqn])
@pytest.mark.parametrize("name", ["observation", "reward"])
def test_values_that_are_nan_do_not_enter_the_statistics(make: Any, name: str) -> None:
    agent = make(env=broken(name))
    with pytest.raises(NonFiniteError):
        fit(agent, 40 * LANES)
    found = statistics(agent.spaces.normalizers)
    assert all(np.isfinite(values).all() for values in found.values())
    assert 0 < found["observation/count"] < 40 * LANES
