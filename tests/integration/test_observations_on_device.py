"""Agents whose memory keeps a copy of the observations on the device (`Replay(on_device=True)`)."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from gymnasium import spaces

import noterl
from noterl import backends
from noterl.learning import device_observations
from noterl.learning.device_observations import DeviceObservations
from noterl.replay import Prioritized, Replay, Triplets
from tests.integration.test_replay_agents import stacked
from tests.support.doubles import ImageEnv, LeavingTeam
from tests.support.states import assert_same_state, one_lane

WIDE = (spaces.Box(0, 999, (3,), np.uint16), spaces.Discrete(2))

pytestmark = pytest.mark.backends("jax", "torch")


def agent_with(on_device: bool, **changes: Any) -> noterl.DQN:
    """Return a small agent whose memory of 128 transitions overflows, with groups of four updates."""
    prefetch = changes.pop("prefetch", 0)
    replay = Replay(
        128, sampler=Prioritized(), n_step=3, frame_stack=2, stack_axis=-1, prefetch=prefetch, on_device=on_device
    )
    return one_lane(stacked, replay=replay, **changes)


@pytest.fixture(scope="module")
def trained() -> noterl.DQN:
    agent = agent_with(False)
    agent.fit(steps=220, num_envs=2, verbose=0)
    assert agent.updates > 200
    return agent


@pytest.mark.parametrize("changes", [{}, {"steps_per_execution": 3, "prefetch": 1}], ids=["group", "calls"])
def test_run_is_the_same_bit_for_bit(trained: noterl.DQN, changes: dict[str, Any], monkeypatch: Any) -> None:
    monkeypatch.setattr(device_observations, "CHUNK", 100)  # bytes: several transfers
    agent = agent_with(True, **changes)
    agent.fit(steps=220, num_envs=2, verbose=0)
    assert_same_state(agent, trained)


def test_restored_run_equals_an_uninterrupted_one(trained: noterl.DQN, tmp_path: Path) -> None:
    agent = agent_with(True)
    agent.fit(steps=151, num_envs=2, verbose=0)
    agent.save(tmp_path / "half.noterl")
    other = agent_with(True)
    other.fit(steps=60, num_envs=1, verbose=0)  # its copy holds other observations
    other.restore(tmp_path / "half.noterl")
    other.fit(steps=69, num_envs=2, verbose=0)
    assert_same_state(other, trained)
    assert noterl.load(tmp_path / "half.noterl").replay.on_device


@pytest.mark.filterwarnings("ignore:observations of the shape")  # they are too small for the default convolutions
def test_images_are_gathered_as_bytes() -> None:
    agents = []
    for on_device in (False, True):
        agent = noterl.DQN(ImageEnv, seed=3)
        agent.compile(
            replay=Replay(64, on_device=on_device), batch_size=4, learning_starts=8, update_every=8, updates=2
        )
        agent.fit(steps=24, verbose=0)
        assert agent.updates > 2
        agents.append(agent)
    assert_same_state(*agents)
    learner = agents[1]._parts.learner
    batch = learner.gather(learner.sample(2))
    assert not isinstance(batch.observation, np.ndarray)
    assert "uint8" in str(batch.observation.dtype)


def gathered_twice(replay: Replay, sample: Any, observations: DeviceObservations) -> tuple[Any, Any]:
    """Return the batches of a sample from the memory, and from the copy on the device."""
    replay.device_copy = None
    expected = replay.gather(sample, gamma=0.9)
    replay.device_copy = observations
    return expected, replay.gather(sample, gamma=0.9)


@pytest.mark.parametrize(("kind", "frames"), [("plain", None), ("first", 3), ("last", 3)])
def test_rows_equal_those_of_the_memory_after_any_history(kind: str, frames: int | None) -> None:
    shape = {"plain": (2, 3), "first": (3, 2), "last": (2, 2, 3)}[kind]
    generator = np.random.default_rng(5)
    replay = Replay(50, frame_stack=frames, on_device=True)
    replay.build(spaces.Box(0, 255, shape, np.uint8), spaces.Discrete(2))
    observations, stacks = DeviceObservations(replay, keras.Variable(0.0)), {}
    saved = copy.deepcopy(replay.get_state())
    for step in range(400):
        lane = int(generator.integers(3))
        event = generator.random()
        if event < 0.04:
            replay.interrupt(lane)
            stacks.pop(lane, None)
        elif event < 0.06:
            replay.drop_oldest(int(generator.integers(30)))
        elif event < 0.08:
            saved = copy.deepcopy(replay.get_state())
        elif event < 0.1:
            replay.set_state(saved)
            for each in range(3):
                replay.interrupt(each)
            stacks.clear()
        else:
            before = stacks.get(lane)
            before = _first(generator, shape, kind) if before is None else before
            after, ends = _next(generator, before, kind), bool(generator.random() < 0.1)
            replay.add(lane, before, 0, 0.0, after, ends, False)
            stacks[lane] = None if ends else after
        if step % 7 == 0 and replay.num_sampleable() > 4:
            sample = replay.sample(2, 4, generator=generator)
            expected, found = gathered_twice(replay, sample, observations)
            for name in ("observation", "next_observation"):
                np.testing.assert_array_equal(np.asarray(getattr(found, name)), getattr(expected, name))


def _first(generator: np.random.Generator, shape: tuple[int, ...], kind: str) -> np.ndarray:
    first = generator.integers(0, 255, shape).astype(np.uint8)
    if kind == "first":
        first[:] = first[-1]
    elif kind == "last":
        first[:] = first[..., -1:]
    return first


def _next(generator: np.random.Generator, before: np.ndarray, kind: str) -> np.ndarray:
    new = generator.integers(0, 255, before.shape).astype(np.uint8)
    if kind == "first":
        new[:-1] = before[1:]
    elif kind == "last":
        new[..., :-1] = before[..., 1:]
    return new


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("make", "replay", "reason"),
    [
        (lambda: noterl.DQN("CartPole-v1", normalize_observation=True), Replay(9999, on_device=True), "normalize"),
        (lambda: noterl.DQN("CartPole-v1"), Replay(9999, relabel=Triplets(), on_device=True), "relabel=Triplets"),
        (lambda: noterl.MADDPG(LeavingTeam, hidden=(8,)), Replay(9999, on_device=True), "several agents"),
        (lambda: noterl.DQN(WIDE, hidden=(8,)), Replay(9999, on_device=True), "uint16"),
        (lambda: noterl.DQN("FrozenLake-v1"), Replay(9999, on_device=True), "encoded on the host"),
        (lambda: noterl.PPO("CartPole-v1", rollout_steps=8), Replay(9999, on_device=True), "prepared rollouts"),
        (lambda: noterl.ACER("CartPole-v1"), Replay(9999, on_device=True), "stores rollouts"),
    ],
)
def test_agents_that_change_observations_on_the_host_are_refused(make: Any, replay: Replay, reason: str) -> None:
    agent = make()
    with pytest.raises(ValueError, match=f"on_device.*{reason}"):
        agent.compile(replay=replay)
        agent.build()


def test_error_while_observations_are_sent_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    replay = Replay(64, on_device=True)
    replay.build(spaces.Box(-np.inf, np.inf, (2,)), spaces.Discrete(2))
    observations = DeviceObservations(replay, keras.Variable(0.0))
    monkeypatch.setattr(device_observations, "CHUNK", 24)  # bytes: several transfers
    generator = np.random.default_rng(0)
    for count in (10, 20):  # episodes of one step, which need more than the first 16 slots
        for _ in range(count):
            replay.add(0, generator.random(2), 0, 0.0, generator.random(2), True, False)
        sample = replay.sample(3, 8, generator=generator)
        if count == 20:
            sent, calls = device_observations.gather, []

            def interrupted(*arguments: Any, sent: Any = sent, calls: list[int] = calls) -> Any:
                calls.append(1)
                if len(calls) == 12:
                    raise KeyboardInterrupt
                return sent(*arguments)

            monkeypatch.setattr(device_observations, "gather", interrupted)
            with pytest.raises(KeyboardInterrupt):
                gathered_twice(replay, sample, observations)
        expected, found = gathered_twice(replay, sample, observations)
        for name in ("observation", "next_observation"):
            np.testing.assert_array_equal(np.asarray(getattr(found, name)), getattr(expected, name))


@pytest.mark.backends("jax")
def test_few_sizes_of_batches_are_compiled() -> None:
    agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    agent.compile(replay=Replay(500, on_device=True), batch_size=8, learning_starts=8, updates="pass", update_every=32)
    tables = backends.current().capabilities["tables"]
    before = tables.take_rows_of_two._cache_size()
    agent.fit(steps=400, verbose=0)
    sizes = agent.trace_counts["update"]
    assert sizes <= 6
    assert tables.take_rows_of_two._cache_size() - before <= 2 * sizes  # and the final observations' sizes
