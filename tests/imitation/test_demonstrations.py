"""Demonstrations: their checks, files, recording, and Minari data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import noterl
from noterl import saving
from noterl.envs.games import TicTacToe
from noterl.imitation import Demonstrations
from noterl.noise import GaussianWhiteNoiseProcess, OrnsteinUhlenbeckProcess
from noterl.random import Generators
from tests.support.batches import Corridor
from tests.support.demonstrations import CONTINUOUS, DISCRETE, OBSERVATIONS, demonstrations
from tests.support.masked_env import MaskedWalk, legal_actions
from tests.support.states import assert_same_state, differences

pytestmark = pytest.mark.backends("torch")

MIXED = spaces.Dict({"gear": spaces.Discrete(3), "speed": spaces.Box(0.0, 1.0, (2,), np.float32)})


def assert_equal(first: Any, second: Any) -> None:
    if isinstance(first, dict):
        assert first.keys() == second.keys()
        for name in first:
            assert_equal(first[name], second[name])
    else:
        assert first.dtype == second.dtype
        np.testing.assert_array_equal(first, second)


def assert_same_demonstrations(first: Demonstrations, second: Demonstrations) -> None:
    assert first.observation_space == second.observation_space and first.action_space == second.action_space
    assert len(first.episodes) == len(second.episodes)
    for one, other in zip(first.episodes, second.episodes, strict=True):
        assert one.terminated is other.terminated
        assert_equal(one.observations, other.observations)
        assert_equal(one.actions, other.actions)
        assert_equal(one.rewards, other.rewards)


def arguments(**changes: Any) -> dict[str, Any]:
    found = {
        "observations": [np.zeros((3, 3))],
        "actions": [[0, 1]],
        "rewards": [[1.0, 2.0]],
        "terminated": [True],
        "observation_space": OBSERVATIONS,
        "action_space": DISCRETE,
    }
    return {**found, **changes}


def test_length_counts_steps_and_returns_sum_rewards() -> None:
    data = Demonstrations(**arguments(rewards=[[1.0, 2.5]]))
    assert (len(data), len(data.episodes), data.returns.tolist()) == (2, 1, [3.5])
    assert "1 episodes, 2 steps, mean return 3.5" in repr(data)


def test_pairs_leave_out_the_last_observation_of_each_episode() -> None:
    data = demonstrations(lengths=(2, 3))
    observations, actions = data.pairs()
    assert observations.shape == (5, 3) and actions.shape == (5,)
    np.testing.assert_array_equal(observations[2:], data.episodes[1].observations[:-1])
    np.testing.assert_array_equal(actions[:2], data.episodes[0].actions)


NAN = np.array([[0, 0, 0], [0, np.nan, 0], [0, 0, 0]], np.float32)
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no episode": ({"observations": [], "actions": [], "rewards": [], "terminated": []}, "observations must .*got 0"),
    "empty episode": (
        {"observations": [np.zeros((1, 3))], "actions": [[]], "rewards": [[]]},
        r"actions\[0\] must .*at least one",
    ),
    "other number of episodes": ({"actions": [[0, 1], [0, 1]]}, "actions must .*got 2"),
    "not a list": ({"rewards": 3.0}, "rewards must be a list"),
    "other width": ({"observations": [np.zeros((3, 4))]}, r"observations\[0\] .*\(3, 3\).*\(3, 4\)"),
    "no last observation": ({"observations": [np.zeros((2, 3))]}, r"observations\[0\] .*\(3, 3\).*\(2, 3\)"),
    "other rewards": ({"rewards": [[1.0]]}, r"rewards\[0\] .*\(2,\).*\(1,\)"),
    "NaN": ({"observations": [NAN]}, r"observations\[0\] must .*got nan"),
    "infinite reward": ({"rewards": [[1.0, np.inf]]}, r"rewards\[0\] must .*got inf"),
    "beyond float32": ({"observations": [np.full((3, 3), 1e300)]}, r"observations\[0\] must .*float32, got 1e\+300"),
    "beyond uint8": (
        {"observation_space": spaces.Box(0, 255, (3,), np.uint8), "observations": [np.full((3, 3), 300)]},
        r"observations\[0\] must fit uint8, got 300",
    ),
    "action outside": ({"actions": [[0, 2]]}, r"actions\[0\] must .*Discrete\(2\), got 2"),
    "float actions": ({"actions": [[0.0, 1.0]]}, r"actions\[0\] must hold ints"),
    "Box action outside": ({"action_space": CONTINUOUS, "actions": [np.full((2, 2), 1.5)]}, r"actions\[0\] .*1\.5"),
    "not a bool": ({"terminated": [1]}, r"terminated\[0\] must be a bool, got 1"),
    "other space": ({"observation_space": spaces.Text(3)}, "observation_space"),
    "start": ({"action_space": spaces.Discrete(2, start=1)}, "action_space must start at zero"),
    "no dict": ({"observation_space": MIXED}, r"observations\[0\] must be a dict"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_demonstrations_raise(case: str) -> None:
    changes, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        Demonstrations(**arguments(**changes))


@pytest.mark.parametrize(
    "case",
    [
        (OBSERVATIONS, DISCRETE),
        (MIXED, CONTINUOUS),
        (spaces.Box(0, 255, (4, 4), np.uint8), spaces.MultiDiscrete([2, 3])),
        (spaces.Discrete(5), spaces.MultiBinary(3)),
    ],
)
def test_file_holds_the_same_demonstrations(case: tuple[Any, Any], tmp_path: Path) -> None:
    data = demonstrations(case[1], observation_space=case[0])
    data.save(tmp_path / "expert.noterl")
    assert_same_demonstrations(Demonstrations.load(tmp_path / "expert.noterl"), data)


def test_config_builds_equal_demonstrations(tmp_path: Path) -> None:
    data = demonstrations(CONTINUOUS, observation_space=MIXED)
    saving.write(tmp_path / "config", {"data": data})
    assert_same_demonstrations(saving.build(saving.read(tmp_path / "config"))["data"], data)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "agent"},
        {"lengths": np.array([4, 7])},
        {"lengths": np.array([10, 0])},
        {"lengths": [4, 6]},
        {"terminated": np.array([True])},
        {"rewards": np.full(10, np.nan, np.float32)},
        {"actions": np.full(10, 9)},
        {"observation_space": None},
        {"observations": None},
    ],
)
def test_damaged_file_raises_file_error(change: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "expert.noterl"
    saving.write(path, {"kind": "demonstrations", **demonstrations().get_config(), **change})
    with pytest.raises(saving.FileError, match="demonstrations"):
        Demonstrations.load(path)


def test_file_of_something_else_raises_file_error(tmp_path: Path) -> None:
    saving.write(tmp_path / "other", [1, 2])
    with pytest.raises(saving.FileError, match="demonstrations"):
        Demonstrations.load(tmp_path / "other")


def test_record_returns_the_episodes_of_the_agent(tmp_path: Path) -> None:
    agent = noterl.DQN(lambda: Corridor(), hidden=(4,), seed=3)
    data = Demonstrations.record(agent, episodes=3, path=tmp_path / "expert", deterministic=True)
    assert len(data.episodes) == 3
    for episode in data.episodes:
        assert len(episode.observations) == len(episode.actions) + 1
        np.testing.assert_array_equal(agent.act(episode.observations[:-1]), episode.actions)
    assert_same_demonstrations(Demonstrations.load(tmp_path / "expert"), data)
    assert_same_demonstrations(Demonstrations.record(agent, episodes=3, deterministic=True), data)


def test_record_does_not_affect_training() -> None:
    agents = [noterl.DQN(lambda: Corridor(), hidden=(4,), seed=3) for _ in range(2)]
    for agent in agents:
        agent.compile(learning_starts=5, update_every=1, updates=1, batch_size=4)
        agent.fit(steps=8, verbose=0)
    Demonstrations.record(agents[0], episodes=2, deterministic=False)
    for agent in agents:
        agent.fit(steps=8, verbose=0)
    assert_same_state(*agents)


def test_record_takes_a_function_as_expert() -> None:
    data = Demonstrations.record(lambda observation: 1, lambda: noterl.envs.ClipRewards(Corridor()), episodes=2)
    assert all((episode.actions == 1).all() and episode.terminated for episode in data.episodes)
    assert data.action_space == DISCRETE
    for episode in data.episodes:  # those of the environment, as in logs and evaluations
        np.testing.assert_allclose(episode.rewards, [*[-0.1] * (len(episode.actions) - 1), 1.0])


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("kind", [noterl.DQN, noterl.AlphaZero])
def test_recorded_actions_are_legal(kind: Any, deterministic: bool) -> None:
    data = Demonstrations.record(kind(MaskedWalk, hidden=(8,), seed=3), episodes=9, deterministic=deterministic)
    for episode in data.episodes:
        assert legal_actions(episode.observations[:-1])[np.arange(len(episode.actions)), episode.actions].all()


def test_games_without_legal_actions_in_observations_are_recorded() -> None:
    class Hidden(TicTacToe):
        def legal_in(self, observations: Any) -> None:
            return None

    agent = noterl.AlphaZero(Hidden(), hidden=(8,), seed=3)
    for episode in Demonstrations.record(agent, episodes=3).episodes:
        assert len(set(episode.actions.tolist())) == len(episode.actions) >= 5, "a cell that is played twice is illegal"


class Tracker(gymnasium.Env[Any, Any]):
    """Observes the action that was executed last; the bounds of its two actions differ."""

    observation_space = spaces.Box(-9.0, 9.0, (2,), np.float32)
    action_space = spaces.Box(np.float32([-1.0, 0.0]), np.float32([1.0, 4.0]))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.steps += 1
        return action, 0.0, False, self.steps == 5, {}


def test_recorded_actions_are_those_before_the_noise() -> None:
    def expert(observation: Any) -> Any:
        return np.float32([0.5, 1.0])

    noise = OrnsteinUhlenbeckProcess(theta=0.2, sigma=0.7, dt=1.0, size=2)
    before = noise.get_state()
    data = Demonstrations.record(expert, lambda: Tracker(), episodes=2, seed=4, noise=noise)
    same = noise.copy_with_generator(Generators(4)("demonstrations/noise"))
    for episode in data.episodes:
        assert (episode.actions == expert(None)).all()
        same.reset()
        samples = np.stack([same.sample() for _ in range(5)])
        expected = np.clip([0.5, 1.0] + samples * [1.0, 2.0], [-1.0, 0.0], [1.0, 4.0])
        np.testing.assert_allclose(episode.observations[1:], expected, rtol=1e-6)
    assert not differences(noise.get_state(), before)
    assert_same_demonstrations(Demonstrations.record(expert, lambda: Tracker(), episodes=2, seed=4, noise=noise), data)


def test_masks_are_ignored_for_box_actions() -> None:
    class Masked(Tracker):
        def reset(self, **options: Any) -> Any:
            return super().reset(**options)[0], {"action_mask": np.ones(2, np.int8)}

    data = Demonstrations.record(
        noterl.SAC(lambda: Masked(), hidden=(4,), seed=3), episodes=1, noise=GaussianWhiteNoiseProcess(size=2)
    )
    assert len(data) == 5


def test_noise_keeps_the_starts_of_episodes() -> None:
    def starts(**options: Any) -> list[Any]:
        data = Demonstrations.record(lambda observation: [0.0], "Pendulum-v1", episodes=3, seed=2, **options)
        return [episode.observations[0] for episode in data.episodes]

    np.testing.assert_array_equal(starts(noise=GaussianWhiteNoiseProcess()), starts())


@pytest.mark.parametrize(
    ("noise", "env", "message"),
    [
        (0.1, "Pendulum-v1", "noise must be one of noterl.noise"),
        (GaussianWhiteNoiseProcess(size=2), "Pendulum-v1", "noise must have the size of an action"),
        (GaussianWhiteNoiseProcess(), "CartPole-v1", r"noise needs .*finite bounds"),
    ],
)
def test_noise_that_does_not_fit_raises(noise: Any, env: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Demonstrations.record(lambda observation: 0, env, episodes=1, noise=noise)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"agent_or_function": 3}, "agent must be"),
        ({"agent_or_function": lambda observation: 0}, "env must be"),
        ({"episodes": 0}, "episodes must be"),
        ({"episodes": None}, "steps or episodes must be"),
        ({"steps": 2.5}, "steps must be"),
        ({"deterministic": 1}, "deterministic"),
    ],
)
def test_bad_argument_of_record_raises(change: dict[str, Any], message: str) -> None:
    agent = noterl.DQN(lambda: Corridor(), hidden=(4,), seed=3)
    with pytest.raises(ValueError, match=message):
        Demonstrations.record(**{"agent_or_function": agent, "episodes": 1, **change})


def test_record_needs_one_agent_in_the_environment() -> None:
    with pytest.raises(ValueError, match="env must have one agent"):
        several = spaces.Tuple([OBSERVATIONS] * 2), spaces.Tuple([DISCRETE] * 2)
        Demonstrations.record(lambda observation: 0, several, episodes=1)


class TestMinari:
    """Data sets are written to and read from a local folder."""

    @pytest.fixture
    def minari(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        module = pytest.importorskip("minari")
        monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
        return module

    @pytest.mark.filterwarnings("ignore::UserWarning")
    @pytest.mark.parametrize("case", [(OBSERVATIONS, DISCRETE), (MIXED, CONTINUOUS)])
    def test_data_set_holds_the_same_demonstrations(self, case: tuple[Any, Any], minari: Any) -> None:
        data = demonstrations(case[1], observation_space=case[0])
        written = data.to_minari("noterl/expert-v0", description="two episodes", author="noterl")
        assert written.total_steps == 10
        assert_same_demonstrations(Demonstrations.from_minari("noterl/expert-v0"), data)
        longer = minari.load_dataset("noterl/expert-v0").filter_episodes(lambda episode: len(episode) > 4)
        assert [len(episode.actions) for episode in Demonstrations.from_minari(longer).episodes] == [6]

    @pytest.mark.filterwarnings("ignore::UserWarning")
    def test_data_set_names_its_environment(self, minari: Any) -> None:
        data = Demonstrations.record(lambda observation: 0, "CartPole-v1", episodes=1)
        data.to_minari("noterl/cartpole-v0", env="CartPole-v1")
        environment = minari.load_dataset("noterl/cartpole-v0").recover_environment()
        assert isinstance(environment.unwrapped, type(gymnasium.make("CartPole-v1").unwrapped))

    @pytest.mark.filterwarnings("ignore::UserWarning")
    @pytest.mark.parametrize(
        ("name", "change"),
        [
            ("metadata.json", lambda content: content.replace(b'"total_episodes": 2', b'"total_episodes": 3000000000')),
            ("metadata.json", lambda content: b"[]"),
            ("main_data.hdf5", lambda content: content.replace(b"terminations", b"terminatiXns")),
            ("main_data.hdf5", lambda content: content[:1_000]),
        ],
    )
    def test_damaged_data_set_is_named(self, name: str, change: Any, minari: Any, tmp_path: Path) -> None:
        demonstrations(DISCRETE, observation_space=OBSERVATIONS).to_minari("noterl/expert-v0")
        (path,) = tmp_path.rglob(name)
        path.write_bytes(change(path.read_bytes()))
        with pytest.raises(ValueError, match=r"dataset: 'noterl/expert-v0'"):
            Demonstrations.from_minari("noterl/expert-v0")

    @pytest.mark.filterwarnings("ignore::UserWarning")
    @pytest.mark.parametrize("name", ["main_data.hdf5", "metadata.json"])
    def test_sparse_data_set_is_not_read(
        self, name: str, minari: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        demonstrations(DISCRETE, observation_space=OBSERVATIONS).to_minari("noterl/expert-v0")
        monkeypatch.setattr("noterl.utils.budget.available_bytes", lambda: 2**24)
        with (tmp_path / "noterl" / "expert-v0" / "data" / name).open("r+b") as sparse:
            sparse.truncate(2**25)
        with pytest.raises(ValueError, match=r"expert-v0.*(fit in memory|bytes of JSON)"):
            Demonstrations.from_minari("noterl/expert-v0")


def test_missing_minari_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "minari", None)
    with pytest.raises(ImportError, match=r"noterl\[offline\]"):
        Demonstrations.from_minari("noterl/expert-v0")
