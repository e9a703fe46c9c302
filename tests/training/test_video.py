"""`Agent.animate`, `Agent.play` and `Agent.summary`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TransformReward
from PIL import Image

import noterl
from noterl.training.play import value_function
from noterl.training.video import write_video
from tests.support.doubles import CountingEnv
from tests.support.parts import actor_of
from tests.support.states import assert_same_state

pytestmark = pytest.mark.backends("torch")


class DrawingEnv(CountingEnv):
    """Renders a gray level that depends on the step number; supports `rgb_array` only."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None, length: int = 5) -> None:
        super().__init__(length)
        self.render_mode = render_mode

    def render(self) -> np.ndarray:
        return np.full((20, 30, 3), 40 * self.step_number, np.uint8)


class BrokenEnv(DrawingEnv):
    """Raises in the third step."""

    def step(self, action: Any) -> Any:
        if self.step_number == 2:
            raise RuntimeError("the third step failed")
        return super().step(action)


def factory(render_mode: str | None = None) -> DrawingEnv:
    return DrawingEnv(render_mode)


@pytest.fixture(scope="module")
def agent() -> Any:
    agent = noterl.DQN(factory, hidden=(4,), seed=2)
    agent.fit(steps=8, verbose=0)
    return agent


def seconds(path: Path) -> float:
    """Return the duration of a GIF; equal frames in a row are stored as one longer frame."""
    with Image.open(path) as image:
        durations = []
        for number in range(image.n_frames):
            image.seek(number)
            durations.append(image.info["duration"])
    return sum(durations) / 1000


def frames(path: Path) -> list[np.ndarray]:
    with Image.open(path) as image:
        images = []
        for number in range(image.n_frames):
            image.seek(number)
            images.append(np.asarray(image.convert("RGB")))
        return images


def test_gif_holds_every_frame_of_the_episode(agent: Any, tmp_path: Path) -> None:
    before = agent.get_state()
    reward = agent.animate(tmp_path / "new" / "episode.gif", fps=20)
    assert reward == 1 + 2 + 3 + 4 + 5
    assert_same_state(before, agent)
    shown = frames(tmp_path / "new" / "episode.gif")
    assert [frame.shape for frame in shown] == [(20, 30, 3)] * 6
    assert [int(frame[0, 0, 0]) for frame in shown] == [0, 40, 80, 120, 160, 200]
    with Image.open(tmp_path / "new" / "episode.gif") as image:
        assert image.info["duration"] == 50 and image.info["loop"] == 0


def test_max_steps_limits_the_episode(agent: Any, tmp_path: Path) -> None:
    assert agent.animate(tmp_path / "a.gif", max_steps=2) == 1 + 2
    assert len(frames(tmp_path / "a.gif")) == 3


def test_cartpole_renders_without_a_screen(tmp_path: Path) -> None:
    pytest.importorskip("pygame")
    agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=1)
    reward = agent.animate(tmp_path / "a.gif", fps=50)
    shown = frames(tmp_path / "a.gif")
    assert len(shown) > 5 and seconds(tmp_path / "a.gif") == pytest.approx((reward + 1) / 50)
    assert not np.array_equal(shown[0], shown[-1])
    again = agent.animate(tmp_path / "b.GIF", fps=50)
    assert (again, (tmp_path / "b.GIF").read_bytes()) == (reward, (tmp_path / "a.gif").read_bytes()), "seeds differ"
    (tmp_path / "c.gif").write_bytes(b"old")
    agent.animate(tmp_path / "c.gif", "CartPole-v1", max_steps=3, seed=5, fps=50)
    assert seconds(tmp_path / "c.gif") == pytest.approx(4 / 50)


def test_gif_has_one_palette_until_colors_need_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gray square moves over white; in the last frames it is red, then everything is noise."""
    palettes = []
    quantize = Image.Image.quantize

    def counted(image: Image.Image, *arguments: Any, palette: Any = None, **options: Any) -> Image.Image:
        if palette is None:
            palettes.append(image)
        return quantize(image, *arguments, palette=palette, **options)

    monkeypatch.setattr(Image.Image, "quantize", counted)
    pictures = np.full((24, 40, 40, 3), 255, np.uint8)
    for number, picture in enumerate(pictures):
        picture[number : number + 8, 10:18] = 128 if number < 20 else (200, 0, 0)
    pictures[23] = np.random.default_rng(0).integers(256, size=(40, 40, 3))
    write_video(tmp_path / "a.gif", iter(pictures), 50)
    shown = frames(tmp_path / "a.gif")
    assert len(palettes) == 3
    np.testing.assert_allclose(shown[:23], pictures[:23].astype(int), atol=16)
    assert np.abs(shown[23].astype(int) - pictures[23]).mean() < 20


def test_mp4_is_written_if_the_extra_is_installed(agent: Any, tmp_path: Path) -> None:
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
    assert agent.animate(tmp_path / "episode.mp4", fps=10) == 15
    command = [
        imageio_ffmpeg.get_ffmpeg_exe(),
        "-i",
        tmp_path / "episode.mp4",
        "-f",
        "rawvideo",
        "-pix_fmt",
        "rgb24",
        "-",
    ]
    pixels = np.frombuffer(subprocess.run(command, capture_output=True, check=True).stdout, np.uint8)
    shown = pixels.reshape(-1, 20, 30, 3)[:, 0, 0, 0]
    assert np.abs(shown.astype(int) - [0, 40, 80, 120, 160, 200]).max() <= 4
    assert list(tmp_path.iterdir()) == [tmp_path / "episode.mp4"]


def test_failing_encoder_keeps_the_old_file(agent: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "ffmpeg"
    program.write_text("#!/bin/sh\necho no such codec >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", SimpleNamespace(get_ffmpeg_exe=lambda: str(program)))
    (tmp_path / "a.mp4").write_bytes(b"old")
    with pytest.raises(OSError, match=r"ffmpeg failed: no such codec"):
        agent.animate(tmp_path / "a.mp4")
    assert (tmp_path / "a.mp4").read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 2


def test_mp4_without_the_extra_raises_with_the_pip_command(
    agent: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(ImportError, match=r'pip install "noterl\[mp4\]"'):
        agent.animate(tmp_path / "a.mp4")
    assert list(tmp_path.iterdir()) == []


def test_invalid_argument_raises_before_the_episode(agent: Any, tmp_path: Path) -> None:
    steps = agent.steps
    for path in ("a.png", "a", "gif"):
        with pytest.raises(ValueError, match=r"path .*\.gif or \.mp4"):
            agent.animate(tmp_path / path)
    for value in (3, None, ""):
        with pytest.raises(ValueError, match=rf"path must be .*, got {value!r}"):
            agent.animate(value)
    for arguments, message in (
        ({"fps": 0}, "fps must be a positive int"),
        ({"max_steps": 0}, "max_steps must be a positive int"),
        ({"seed": -1}, "seed must be a non-negative int"),
        ({"env": CountingEnv}, r"env: .*CountingEnv"),
        ({"env": "Acrobot-v1"}, r"env has the observation_space"),
    ):
        with pytest.raises(ValueError, match=message):
            agent.animate(tmp_path / "a.gif", **arguments)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        agent.animate(tmp_path / "file" / "a.gif")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"] and agent.steps == steps


def test_agent_built_from_spaces_needs_an_environment(tmp_path: Path) -> None:
    agent = noterl.DQN((spaces.Box(0.0, np.inf, (2,), np.float32), spaces.Discrete(2)), hidden=(4,), seed=1)
    with pytest.raises(ValueError, match="env: "):
        agent.animate(tmp_path / "a.gif")
    assert agent.animate(tmp_path / "a.gif", factory) == 15
    assert agent.animate(tmp_path / "a.gif", DrawingEnv("rgb_array")) == 15


def test_failing_environment_keeps_the_old_file(agent: Any, tmp_path: Path) -> None:
    instances: list[BrokenEnv] = []

    def broken(render_mode: str | None = None) -> BrokenEnv:
        instances.append(BrokenEnv(render_mode))
        return instances[-1]

    (tmp_path / "a.gif").write_bytes(b"old")
    with pytest.raises(RuntimeError, match="third step"):
        agent.animate(tmp_path / "a.gif", broken)
    assert (tmp_path / "a.gif").read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 1
    assert all(env.closed for env in instances) and instances


def test_overlay_draws_on_the_frames(agent: Any, tmp_path: Path) -> None:
    agent.animate(tmp_path / "a.gif", overlay=True)
    shown = frames(tmp_path / "a.gif")
    assert len(shown) == 6 and all(frame.shape == (20, 30, 3) for frame in shown)
    assert all(frame.max() > 40 * number for number, frame in enumerate(shown)), "no white text"


class TestPlay:
    def test_episodes_are_those_of_evaluate(self, agent: Any) -> None:
        before = agent.get_state()
        played, evaluated = agent.play(episodes=3, seed=4), agent.evaluate(episodes=3, seed=4)
        trajectories = played.pop("trajectory")
        assert played.keys() == evaluated.keys()
        for name, value in evaluated.items():
            np.testing.assert_array_equal(played[name], value)
        assert [len(each.rewards) for each in trajectories] == played["lengths"].tolist()
        assert_same_state(before, agent)

    def test_trajectory_holds_every_step(self, agent: Any) -> None:
        [trajectory] = agent.play(max_steps=3)["trajectory"]
        np.testing.assert_array_equal(trajectory.observations, [[0, 0], [0, 1], [0, 2], [0, 3]])
        np.testing.assert_array_equal(trajectory.rewards, [1.0, 2.0, 3.0])
        assert trajectory.actions.tolist() == [agent.act(each) for each in trajectory.observations[:-1]]
        assert not trajectory.terminated and agent.play()["trajectory"][0].terminated
        assert "trajectory" not in agent.play(trajectory=False)

    def test_rewards_are_those_of_the_environment(self) -> None:
        agent = noterl.DQN(lambda: TransformReward(CountingEnv(), lambda reward: 0.1 * reward), hidden=(4,), seed=1)
        [trajectory] = agent.play(max_steps=3)["trajectory"]
        assert trajectory.rewards.tolist() == [0.1 * 1.0, 0.1 * 2.0, 0.1 * 3.0]

    def test_trajectory_of_a_dict_space_is_a_dict(self) -> None:
        agent = noterl.DQN(lambda: noterl.envs.BitFlip(3), hidden=(4,), seed=1)
        [trajectory] = agent.play(max_steps=2)["trajectory"]
        assert {name: len(array) for name, array in trajectory.observations.items()} == dict.fromkeys(
            ("observation", "achieved_goal", "desired_goal"), len(trajectory.rewards) + 1
        )

    def test_exploring_agent_takes_other_actions_and_leaves_training_unchanged(self, agent: Any) -> None:
        greedy, before = agent.play(episodes=8), agent.get_state()
        exploring = agent.play(episodes=8, deterministic=False)
        actions = [np.concatenate([each.actions for each in result["trajectory"]]) for result in (greedy, exploring)]
        assert not np.array_equal(*actions)
        again = agent.play(episodes=8, deterministic=False)
        np.testing.assert_array_equal(actions[1], np.concatenate([each.actions for each in again["trajectory"]]))
        assert_same_state(before, agent)

    def test_frames_video_and_trajectory_are_combined(self, agent: Any, tmp_path: Path) -> None:
        (tmp_path / "new" / "probe").mkdir(parents=True)
        result = agent.play(
            episodes=2, video=tmp_path / "a.gif", frame_dir=tmp_path / "new", frame_frequency=4, fps=20, max_steps=3
        )
        assert [path.name for path in sorted((tmp_path / "new").glob("*.*"))] == ["00000.jpg", "00004.jpg"]
        with Image.open(tmp_path / "new" / "00004.jpg") as image:  # the first frame of the second episode
            assert np.abs(np.asarray(image).astype(int)).max() < 3
        assert seconds(tmp_path / "a.gif") == pytest.approx(8 / 20)
        assert len(result["trajectory"]) == 2

    def test_delay_is_waited_after_each_frame(self, agent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        waited: list[float] = []
        monkeypatch.setattr("noterl.training.play.sleep", waited.append)
        agent.play(frame_delay=0.25)
        assert waited == [0.25] * 6

    def test_window_shows_the_frames(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("pygame")
        monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
        cartpole = noterl.DQN("CartPole-v1", hidden=(4,), seed=1)
        silent = cartpole.play(max_steps=2)
        for options in ({}, {"overlay": True}, {"video": tmp_path / "a.gif"}):
            shown = cartpole.play(max_steps=2, render=True, fps=1000, **options)
            np.testing.assert_array_equal(shown["trajectory"][0].observations, silent["trajectory"][0].observations)
        assert seconds(tmp_path / "a.gif") == pytest.approx(3 * 0.02)

    def test_window_without_a_display_raises(self, agent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(sys, "platform", "linux")
        with pytest.raises(ValueError, match=r"render: .*video="):
            agent.play(render=True)

    @pytest.mark.parametrize(
        "arguments",
        [
            {"episodes": 0}, {"max_steps": 0}, {"frame_frequency": 0}, {"frame_delay": -1}, {"fps": 0}, {"seed": -1},
            {"video": "a.png"}, {"video": 3}, {"render": "window"}, {"overlay": 1}, {"deterministic": None},
            {"trajectory": 2},
        ],
    )  # fmt: skip
    def test_invalid_argument_raises(self, agent: Any, arguments: dict[str, Any]) -> None:
        [name] = arguments
        with pytest.raises(ValueError, match=name):
            agent.play(**arguments)


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [("DQN", {}), ("PPO", {}), ("PPO", {"normalize_observation": True}), ("SAC", {}), ("TD3", {}), ("DDPG", {})],
)
def test_overlay_shows_the_value_of_the_algorithm(algorithm: str, options: dict[str, Any]) -> None:
    env = "CartPole-v1" if algorithm in ("DQN", "PPO") else "Pendulum-v1"
    agent = getattr(noterl, algorithm)(env, hidden=(4,), seed=1, **options)
    function = value_function(agent._parts)
    observations = np.random.default_rng(0).normal(size=(3, agent.observation_size)).astype(np.float32)
    values = function(observations)
    assert values.shape == (3,) and len({*values.tolist()}) == 3
    if algorithm == "DQN":
        outputs = actor_of(agent).forward(observations)
        np.testing.assert_allclose(values, outputs.max(axis=1), rtol=1e-5)


@pytest.mark.parametrize("kind", [noterl.DQN, noterl.PPO, noterl.SAC])
def test_values_that_depend_on_a_memory_are_not_shown(kind: Any) -> None:
    env = "Pendulum-v1" if kind is noterl.SAC else "CartPole-v1"
    agent = kind(env, hidden=(4,), recurrent="gru", recurrent_units=4, seed=1)
    assert value_function(agent._parts) is None
    assert agent.play(max_steps=2, overlay=True)["lengths"].tolist() == [2]


def test_algorithm_without_values_has_none() -> None:
    class Plain(noterl.Agent):
        head = noterl.heads.Deterministic()

        def __init__(self, env: Any) -> None:
            super().__init__(env, seed=1)
            self.q = noterl.networks.mlp(self.observation_size, [4], self.action_size)

        def forward(self, observation: Any) -> Any:
            return self.q(observation)

        def loss(self, batch: Any) -> Any:
            return 0.0

    plain = Plain("Pendulum-v1")
    plain.compile(noise=noterl.noise.GaussianWhiteNoiseProcess(sigma=0.1, size=1))
    assert value_function(plain._parts) is None


def test_summary_lists_backend_spaces_networks_and_memory(backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    agent = noterl.DQN("CartPole-v1", dueling=True, hidden=(8, 4), seed=1)
    agent.compile("sgd", replay=noterl.Replay(4096))
    agent.fit(steps=12, verbose=0)
    before = agent.get_state()
    agent.summary()
    text = capsys.readouterr().out
    assert f"backend {backend}, devices: " in text and "cpu" in text.lower() and "NumPy" in text
    values = (4 * 8 + 8) + (8 * 4 + 4) * 2 + (4 + 1) + (4 * 2 + 2)
    assert "DQN: Box(" in text and "Discrete(2)" in text
    assert f"q: Dueling, {values} values" in text and f"target_q: Dueling, {values} values" in text
    assert "optimizer: SGD" in text
    assert "replay: 12 of 4,096 transitions" in text and "MiB" in text
    assert "12 steps, 0 episodes, 0 updates" in text or "12 steps, 1 episodes, 0 updates" in text
    assert_same_state(before, agent)


def test_summary_names_the_compiled_forward_pass(capsys: pytest.CaptureFixture[str]) -> None:
    agent = noterl.DQN(gymnasium.make("CartPole-v1"), hidden=(8,), seed=1)
    agent.act(np.zeros(4, np.float32))
    actor_of(agent).forward.program = None
    agent.summary()
    assert "acting in the compiled forward pass" in capsys.readouterr().out
