"""Agents whose memory combines n-step returns, frame stacks, priorities and prefetching."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import noterl
from noterl.callbacks import LambdaCallback
from noterl.envs import FrameStack
from noterl.replay import Prioritized, Replay
from tests.support.doubles import TogetherVectorEnv
from tests.support.representatives import representatives
from tests.support.states import assert_same_state, one_lane


def stacked() -> gymnasium.Env[Any, Any]:
    return FrameStack(gymnasium.make("CartPole-v1"), 2)


def agent_with(folder: Path | None = None, prefetch: int = 0, **changes: Any) -> noterl.DQN:
    """Return a small agent whose memory of 128 transitions overflows, with groups of four updates."""
    replay = Replay(128, sampler=Prioritized(), n_step=3, frame_stack=2, memmap=folder, prefetch=prefetch)
    return one_lane(stacked, replay=replay, **changes)


@pytest.fixture(scope="module")
def trained() -> noterl.DQN:
    agent = agent_with()
    agent.fit(steps=220, num_envs=2, verbose=0)
    assert agent.updates > 200
    return agent


@pytest.mark.parametrize(("calls", "prefetch"), representatives([(1, 0), (1, 2), (3, 1)], (3, 1)))
def test_steps_per_execution_and_prefetch_do_not_change_the_run(trained: noterl.DQN, calls: int, prefetch: int) -> None:
    agent = agent_with(prefetch=prefetch, steps_per_execution=calls)
    agent.fit(steps=220, num_envs=2, verbose=0)
    assert_same_state(agent, trained)


@pytest.mark.backends("torch")
def test_batch_larger_than_a_memory_of_stacks_can_sample_raises() -> None:
    agent = noterl.DQN(stacked, hidden=(4,))
    agent.compile(replay=Replay(64, frame_stack=2, stack_axis=-1), batch_size=63)
    with pytest.raises(ValueError, match="batch_size must"):
        agent.compile(replay=Replay(64, frame_stack=2, stack_axis=-1), batch_size=64)


@pytest.mark.backends("torch")
def test_restored_run_equals_an_uninterrupted_one(trained: noterl.DQN, tmp_path: Path) -> None:
    agent = agent_with(prefetch=1, steps_per_execution=2)
    agent.fit(steps=151, num_envs=2, verbose=0)
    agent.save(tmp_path / "half.noterl")
    (tmp_path / "memory").mkdir()
    other = agent_with(tmp_path / "memory")
    other.restore(tmp_path / "half.noterl")
    other.fit(steps=69, num_envs=2, verbose=0)
    assert_same_state(other, trained)


def trimmed(calls: Any, prefetch: int) -> noterl.DQN:
    """Return an agent trained with a callback that trims its memory and changes gamma after every update."""
    agent = agent_with(prefetch=prefetch, steps_per_execution=calls)

    def trim(update: int, logs: Any) -> None:
        agent.replay.drop_oldest(max(0, len(agent.replay) - 40))
        agent.gamma = 0.9 + 0.001 * (update % 7)

    agent.fit(steps=90, verbose=0, callbacks=[LambdaCallback(on_batch_end=trim)])
    return agent


@pytest.mark.backends("torch")
def test_trim_in_a_batch_hook_takes_effect_after_the_group() -> None:
    expected = trimmed("auto", 0)
    assert len(expected.replay) in range(40, 43)
    for calls, prefetch in ((1, 0), (1, 2)):
        assert_same_state(trimmed(calls, prefetch), expected)


def test_batches_have_three_steps_and_two_frames(trained: noterl.DQN) -> None:
    batch = trained.replay.gather(trained.replay.sample(20, 8, generator=np.random.default_rng(0)), gamma=0.5)
    assert batch.observation.shape == batch.next_observation.shape == (20, 8, 8)
    assert set(np.unique(batch.reward)) == {1.0, 1.5, 1.75}
    # The newest transitions of a running episode have fewer steps. Rewards are 1, so m steps sum to 2 - 2 * 0.5**m.
    running = batch.discount > 0
    assert set(np.unique(batch.discount)) <= {0.0, 0.125, 0.25, 0.5}
    np.testing.assert_array_equal(batch.reward[running], 2 - 2 * batch.discount[running])
    assert (batch.discount == 0.125).mean() > 0.7 and (~running).any()


@pytest.mark.backends("torch")
@pytest.mark.filterwarnings("ignore:the budget ended within a step")
@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_training_from_frames_equals_training_from_stacks(mode: AutoresetMode) -> None:
    weights = []
    for frames in (None, 2):
        env = TogetherVectorEnv([stacked] * 3, autoreset_mode=mode)
        agent = one_lane(env, replay=Replay(1000, n_step=3, frame_stack=frames))
        agent.fit(steps=120, verbose=0)
        assert agent.updates > 100
        weights.append(agent.get_state()["variables"])
    assert_same_state({"replay": None, "variables": weights[1]}, {"replay": None, "variables": weights[0]})


@pytest.mark.backends("torch")
def test_n_step_memory_for_rollouts_raises() -> None:
    with pytest.raises(ValueError, match="n_step"):
        noterl.PPO("CartPole-v1", hidden=(4,)).compile(replay=Replay(100, n_step=3))


@pytest.mark.backends("torch")
def test_memory_of_another_agent_raises() -> None:
    replay = Replay(64)
    first, second = (noterl.DQN("CartPole-v1", hidden=(4,), seed=1) for _ in range(2))
    first.compile(replay=replay, batch_size=8)
    with pytest.raises(ValueError, match="replay"):
        second.compile(replay=replay, batch_size=8)
    first.compile(replay=replay, batch_size=4)
    first.compile(replay=32, batch_size=4)
    second.compile(replay=replay, batch_size=8)  # the first agent uses another memory now
    with pytest.raises(ValueError, match="replay"):
        first.compile(replay=replay)
    del second
    gc.collect()
    first.compile(replay=replay)
    assert first.replay is replay


@pytest.mark.backends("torch")
@pytest.mark.parametrize("on_disk", [False, True])
def test_memory_that_does_not_fit_raises_before_training(on_disk: bool, tmp_path: Path) -> None:
    agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=1)
    folder = tmp_path / "missing" if on_disk else None
    agent.compile(replay=Replay(10**13, memmap=folder))
    with pytest.raises(ValueError, match="capacity=10000000000000"):
        agent.fit(steps=1, verbose=0)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="frame_stack=3"):
        agent.compile(replay=Replay(100, frame_stack=3))


@pytest.mark.backends("torch")
def test_reduced_default_memory_warns_and_its_capacity_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=1)
    monkeypatch.setattr("noterl.replay.replay.total_bytes", lambda: 2_000_000)
    with pytest.warns(UserWarning, match=r"100,000 .*Replay\(20_000\)"):
        agent.build()
    agent.summary()
    assert "0 of 20,000 transitions" in capsys.readouterr().out
    agent.fit(steps=20, verbose=0)
    agent.save(tmp_path / "small.noterl")
    monkeypatch.undo()
    again = noterl.load(tmp_path / "small.noterl")
    assert (again.replay.capacity, len(again.replay)) == (20_000, 20)
    assert_same_state(agent, again)


@pytest.mark.backends("tensorflow")
def test_tensorflow_keeps_observations_on_the_host(tmp_path: Path) -> None:
    """A file does not depend on the backend, so the agent of such a file can be loaded here."""
    agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    agent.compile(replay=Replay(1_000, on_device=True), batch_size=8, learning_starts=8)
    with pytest.warns(UserWarning, match=r"on_device=True.*TensorFlow"):
        agent.fit(steps=40, verbose=0)
    agent.save(tmp_path / "agent.noterl")
    loaded = noterl.load(tmp_path / "agent.noterl")
    with pytest.warns(UserWarning, match="on_device"):
        loaded.build()
    assert loaded.replay.on_device
