"""`Dataset.record`: the number of steps, seeds, formats, and what agents learn from the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import noterl
from noterl.cli import main
from noterl.noise import OrnsteinUhlenbeckProcess
from noterl.saving import FileError
from tests.support.batches import Corridor
from tests.support.doubles import ImageEnv

pytestmark = [pytest.mark.backends("torch"), pytest.mark.filterwarnings("ignore:fit ended without a gradient update")]


def assert_same(first: noterl.Dataset, second: noterl.Dataset) -> None:
    for name in ("observations", "actions", "rewards", "lengths", "terminated"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


def explorer() -> noterl.Agent:
    """Return an agent whose noise depends on the steps before."""
    agent = noterl.DDPG("Pendulum-v1", hidden=(4,), seed=3)
    agent.compile(noise=OrnsteinUhlenbeckProcess(theta=0.2, sigma=0.3, dt=1.0), replay=300, learning_starts=0)
    return agent


@pytest.mark.parametrize(("limits", "lengths"), [({"steps": 450}, [200, 200, 50]), ({"episodes": 2}, [200, 200])])
def test_steps_are_exact_and_cut_the_last_episode(limits: dict[str, int], lengths: list[int]) -> None:
    data = noterl.Dataset.record(lambda observation: [0.0], "Pendulum-v1", **limits)
    assert data.lengths.tolist() == lengths and not data.terminated.any()
    first = noterl.Dataset.record(lambda observation: [0.0], "Pendulum-v1", steps=1000, episodes=1)
    assert first.lengths.tolist() == [200], "whichever comes first"


@pytest.mark.parametrize("ending", ["data.npz", "data"])
def test_equal_seeds_give_equal_data(ending: str, tmp_path: Path) -> None:
    agent = explorer()
    first = noterl.Dataset.record(agent, steps=250, seed=5, path=tmp_path / ending)
    agent.act(first.observations[0], deterministic=False)
    assert_same(noterl.Dataset.record(agent, steps=250, seed=5), first)
    assert_same(noterl.Dataset.load(tmp_path / ending), first)
    assert not np.array_equal(noterl.Dataset.record(agent, steps=250, seed=6).actions, first.actions)
    assert not np.array_equal(
        noterl.Dataset.record(agent, steps=250, seed=5, deterministic=True).actions, first.actions
    )


def test_noise_of_exploration_depends_on_the_steps_before() -> None:
    agent = explorer()
    data = noterl.Dataset.record(agent, steps=200, seed=5)
    episode = data.episodes[0]
    noise = episode.actions[:, 0] - agent.act(episode.observations[:-1])[:, 0]
    assert np.corrcoef(noise[:-1], noise[1:])[0, 1] > 0.5


def test_images_are_stored_once_as_bytes(tmp_path: Path) -> None:
    data = noterl.Dataset.record(lambda observation: 0, ImageEnv, steps=20, path=tmp_path / "data")
    assert data.observations.dtype == np.uint8 and len(data.observations) == 20 + len(data.episodes)
    assert_same(noterl.Dataset.load(tmp_path / "data"), data)


def test_environment_must_have_the_spaces_of_the_agent() -> None:
    with pytest.raises(ValueError, match="env has the observation_space"):
        noterl.Dataset.record(explorer(), "MountainCarContinuous-v0", steps=5)


class DictEnv(gymnasium.Env[Any, Any]):
    observation_space = spaces.Dict({"speed": spaces.Box(0.0, 1.0, (2,), np.float32)})
    action_space = spaces.Discrete(2)
    steps = 0

    def reset(self, **options: Any) -> Any:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        DictEnv.steps += 1
        return self.observation_space.sample(), 1.0, False, False, {}


def test_path_is_checked_before_the_first_step(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="path must name a folder"):
        noterl.Dataset.record(lambda observation: 0, DictEnv, steps=5, path=tmp_path / "data.npz")
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        noterl.Dataset.record(lambda observation: 0, DictEnv, steps=5, path=tmp_path / "file")
    assert DictEnv.steps == 0
    assert len(noterl.Dataset.record(lambda observation: 0, DictEnv, steps=5, path=tmp_path / "data")) == 5


def test_memory_of_an_agent_is_a_data_set() -> None:
    agent = noterl.DQN(lambda: Corridor(), hidden=(4,), seed=3)
    agent.compile(replay=100, learning_starts=10)
    agent.fit(steps=60, num_envs=2, verbose=0)
    data = noterl.Dataset.load(agent.replay)
    assert len(data) == 60 and data.action_space == agent.action_space and data.origin == {}
    assert len(data.episodes) == agent.episodes + 2, "the running episodes are cut"


def test_data_sets_clone_and_are_saved_with_reward_models(tmp_path: Path) -> None:
    agent = noterl.DQN(lambda: Corridor(), hidden=(4,), seed=3)
    data = noterl.Dataset.record(agent, episodes=2)
    assert len(agent.pretrain(data, updates=2, verbose=0)["loss"]) == 2
    agent.compile(reward_model=noterl.imitation.GAIL(data, hidden=(4,)), replay=100)
    agent.save(tmp_path / "agent.noterl")
    with pytest.raises(FileError, match="file of an agent"):
        noterl.Dataset.load(tmp_path / "agent.noterl")
    loaded = noterl.load(tmp_path / "agent.noterl")
    assert_same(loaded._parts.settings.reward_model.demonstrations, data)


def test_command_records_describes_and_converts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noterl.DQN("CartPole-v1", hidden=(4,), seed=3).save(tmp_path / "agent.noterl")
    file, folder = str(tmp_path / "data.npz"), str(tmp_path / "data")
    agent = str(tmp_path / "agent.noterl")
    assert main(["data", "record", agent, "--steps", "30", "--seed", "2", "--path", file]) == 0
    assert "30 steps" in capsys.readouterr().out
    expected = noterl.Dataset.record(noterl.load(agent), steps=30, seed=2)
    assert_same(noterl.Dataset.load(file), expected)
    assert main(["data", "convert", file, folder]) == 0
    assert_same(noterl.Dataset.load(folder), expected)
    assert main(["data", "describe", folder]) == 0
    assert "transitions       30" in capsys.readouterr().out
    assert main(["data", "--help"]) == 0 and main(["data", "describe", "--help"]) == 0
    assert main(["data", "record", "--help"]) == 0
    assert "--steps" in capsys.readouterr().out
    for arguments, code in ((["describe"], 2), (["other"], 2), ([], 2), (["describe", str(tmp_path / "none.npz")], 1)):
        assert main(["data", *arguments]) == code
    assert main(["data", "record", agent, "--steps", "30"]) == 2
    assert "--path" in capsys.readouterr().err
