"""Playing one episode and writing it as a picture that moves."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from noterl import saving
from noterl.heads import one_of
from noterl.random import Generators, check_seed
from noterl.training import session as agent_lanes
from noterl.utils.checks import check_positive
from noterl.utils.files import checked_path, replacing

if TYPE_CHECKING:
    from noterl.agent import Agent


def animate(agent: Agent, path: str | Path, env: Any, max_steps: int | None, fps: int, seed: int | None) -> float:
    """Play an episode, acting deterministically, and write it.

    Args:
        agent: who plays.
        path: a `.gif`, or a `.mp4` (which needs the extra `mp4`).
        env: where to play, as `Agent.evaluate` takes it; it must be able to render "rgb_array".
        max_steps: cut the episode off there.
        fps: frames per second of the result.
        seed: of the environment; by default one of the agent's own.

    Returns:
        the reward of what was played.

    Raises:
        ValueError: for another ending, or an environment that renders no frames.
        ImportError: if `.mp4` is asked for and the extra is not installed.
    """
    path = Path(checked_path(path))
    if path.suffix.lower() not in (".gif", ".mp4"):
        raise ValueError(f"path must end in .gif or .mp4, got {str(path)!r}")
    check_positive("fps", fps)
    if max_steps is not None:
        check_positive("max_steps", max_steps)
    check_seed(seed)
    saving.check_writable(path)
    write = _write_gif if path.suffix.lower() == ".gif" else _mp4_writer()
    agent.build()
    source = agent.source if env is None else agent_lanes.fitting_source(agent, env)
    environment = source.make_evaluation(render_mode="rgb_array")
    agent.enter(environment)
    episode = _Episode(agent, environment, max_steps, agent.generators.seed if seed is None else seed)
    try:
        write(path, iter(episode), fps)
    finally:
        environment.close()
        if source not in (agent.source, env):
            source.close()
    return episode.reward


class _Episode:
    """One episode, played as its frames are asked for."""

    def __init__(self, agent: Agent, environment: Any, max_steps: int | None, seed: int) -> None:
        """Note what to play."""
        self._agent, self._environment, self._max_steps = agent, environment, max_steps
        self._seed = int(Generators(seed)("animation").integers(2**31))
        self.reward = 0.0

    def __iter__(self) -> Iterator[np.ndarray]:
        agent, environment = self._agent, self._environment
        agent.mark_stale()
        observation, _ = environment.reset(seed=self._seed)
        yield _frame(environment)
        for _ in range(self._max_steps) if self._max_steps is not None else itertools.count():
            actions = agent.act_on(agent.view(observation)[None], True, agent.explorer, agent.steps)
            observation, gained, terminated, truncated, _ = environment.step(one_of(actions, 0, agent.action_space))
            self.reward += float(gained)
            yield _frame(environment)
            if terminated or truncated:
                return


def _frame(environment: Any) -> np.ndarray:
    frame = environment.render()
    if not isinstance(frame, np.ndarray) or frame.ndim != 3:
        raise ValueError("env: the environment renders no frames; it must support render_mode='rgb_array'")
    return np.ascontiguousarray(frame[..., :3], np.uint8)


def _write_gif(path: Path, frames: Iterator[np.ndarray], fps: int) -> None:
    from PIL import Image

    images = map(Image.fromarray, frames)
    # GIF counts in hundredths of a second; browsers slow anything below two of them down.
    duration = max(20, round(1000 / fps))
    with replacing(path) as file:
        next(images).save(file, "GIF", save_all=True, append_images=images, duration=duration, loop=0, optimize=True)


def _mp4_writer() -> Any:
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise ImportError('writing .mp4 needs an extra: pip install "noterl[mp4]"; a .gif needs none') from error

    def write(path: Path, frames: Iterator[np.ndarray], fps: int) -> None:
        # The encoder wants a file of its own; only what it has finished takes the place of an older one.
        with tempfile.TemporaryDirectory() as directory, replacing(path) as target:
            made = Path(directory, "animation.mp4")
            _encode(imageio_ffmpeg.get_ffmpeg_exe(), made, frames, fps)
            with open(made, "rb") as file:
                shutil.copyfileobj(file, target)

    return write


def _encode(program: str, made: Path, frames: Iterator[np.ndarray], fps: int) -> None:
    """Run ffmpeg over the frames; imageio_ffmpeg's own way forks, which threads of a framework may not survive."""
    first = next(frames)
    size = f"{first.shape[1]}x{first.shape[0]}"
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", size, "-r", str(fps), "-i", "-"]
    # H.264 wants even sizes, and players want this pixel format.
    result = ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-c:v", "libx264", "-pix_fmt", "yuv420p", str(made)]
    command = [program, "-y", "-loglevel", "error", *source, *result]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=said)
        try:
            with process.stdin as pipe:  # type: ignore[union-attr]
                for frame in itertools.chain([first], frames):
                    pipe.write(frame.data)
        except BrokenPipeError:
            pass  # what it says of itself tells more
        finally:
            process.wait()
        if process.returncode:
            said.seek(0)
            raise OSError(f"ffmpeg failed: {said.read().decode(errors='replace')[-1000:]}")
