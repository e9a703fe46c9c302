"""What environments render, and errors of an environment while a video is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from PIL import Image

import noterl
from noterl.training.video import as_bytes

pytestmark = pytest.mark.backends("torch")


class Renders(gymnasium.Env):
    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(-1, 99, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, frames: Any, failure: Exception | None = None, render_mode: str | None = None) -> None:
        self.frames, self.failure, self.render_mode = frames, failure, render_mode

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.failure is not None and self.steps == 2:
            raise self.failure
        return np.zeros(1, np.float32), 1.0, self.steps == 3, False, {}

    def render(self) -> Any:
        frame = self.frames[min(self.steps, len(self.frames) - 1)]
        if isinstance(frame, Exception):
            raise frame
        return frame


def agent_of(*arguments: Any) -> noterl.Agent:
    return noterl.DQN(lambda render_mode=None: Renders(*arguments, render_mode=render_mode), hidden=(4,), seed=1)


GRAY = np.full((20, 20), 128, np.uint8)


@pytest.mark.parametrize(
    ("frame", "value"),
    [
        (np.full((20, 20, 3), 0.5), 128),
        (np.full((20, 20, 3), 1, np.float32), 255),
        (np.full((20, 20, 3), 127.6), 128),
        (np.full((20, 20, 3), 200, np.int64), 200),
        (np.ones((20, 20), bool), 255),
        (GRAY, 128),
        (GRAY[..., None], 128),
        (np.full((20, 20, 4), 7, np.uint8), 7),
    ],
)
def test_frames_are_converted_to_bytes(frame: Any, value: int, tmp_path: Path) -> None:
    agent_of([frame]).play(frame_dir=tmp_path, video=tmp_path / "a.gif")
    assert np.abs(np.asarray(Image.open(tmp_path / "00000.jpg")).astype(int) - value).max() <= 2
    converted = as_bytes(frame)
    assert (converted.shape, converted.dtype) == ((20, 20, 3), np.uint8)
    assert (converted == value).all()


@pytest.mark.parametrize(
    ("frame", "match"),
    [
        (np.full((20, 20, 3), -1.0), r"values in \[0, 255\]"),
        (np.full((20, 20, 3), 300), r"values in \[0, 255\]"),
        (np.full((20, 20, 3), np.nan), r"values in \[0, 255\]"),
        (np.zeros((20, 20, 2), np.uint8), "render must return an array"),
        (None, "render must return an array"),
        ([GRAY], "render must return an array"),
    ],
)
def test_what_is_no_image_is_refused(frame: Any, match: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=match):
        agent_of([frame]).animate(tmp_path / "a.gif")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ending", ["gif", "mp4"])
def test_frames_of_another_size_are_refused(ending: str, tmp_path: Path) -> None:
    frames = [np.zeros((20, 20, 3), np.uint8), np.zeros((24, 20, 3), np.uint8)]
    with pytest.raises(ValueError, match="one size"):
        agent_of(frames).animate(tmp_path / f"a.{ending}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ending", ["gif", "mp4"])
@pytest.mark.parametrize(
    "error",
    [
        OSError("cannot open resource: Arial.ttf"),
        ConnectionResetError("the simulator has closed the connection"),
        BrokenPipeError(32, "the simulator is gone"),
    ],
)
def test_errors_of_the_environment_are_its_own(error: OSError, ending: str, tmp_path: Path) -> None:
    black = np.zeros((20, 20, 3), np.uint8)
    for arguments in (([error],), ([black, error],), ([black], error)):
        path = tmp_path / f"a.{ending}"
        path.write_bytes(b"old")
        with pytest.raises(type(error)) as raised:
            agent_of(*arguments).animate(path)
        assert raised.value is error
        assert path.read_bytes() == b"old"
        assert len(list(tmp_path.iterdir())) == 1
