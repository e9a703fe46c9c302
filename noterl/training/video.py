"""Playing one episode and writing it as an animation."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from noterl import saving
from noterl.random import Generators, check_seed
from noterl.training.evaluation import Episode, Player
from noterl.utils.checks import check_positive
from noterl.utils.files import checked_path, replacing


def animate(player: Player, path: str | Path, *, max_steps: int | None, fps: int, seed: int) -> float:
    """Play an episode, acting deterministically, and write it.

    Args:
        player: plays in an environment that must support `render_mode="rgb_array"`.
        path: a `.gif`, or a `.mp4` (which needs the extra `mp4`).
        max_steps: number of steps after which the episode is cut off; None for no limit.
        fps: frames per second of the animation.
        seed: the seed from which that of the environment is sampled.

    Returns:
        The return of the episode, or of its first `max_steps` steps.

    Raises:
        ValueError: if an argument is not one of the allowed values, or the environment renders no frames.
        ImportError: if the path ends in `.mp4` and the extra is not installed.
        OSError: if the file cannot be written, or ffmpeg fails.
    """
    path = Path(checked_path(path))
    if path.suffix.lower() not in (".gif", ".mp4"):
        raise ValueError(f"path must end in .gif or .mp4, got {str(path)!r}")
    check_positive("fps", fps)
    if max_steps is not None:
        check_positive("max_steps", max_steps)
    check_seed(seed)
    saving.check_writable(path)
    ffmpeg = None if path.suffix.lower() == ".gif" else _find_ffmpeg()
    episode = Episode(int(Generators(seed)("animation").integers(2**31)))
    with contextlib.closing(player.make_environment("rgb_array")) as environment:
        frames = _frames(player, environment, episode, max_steps)
        if ffmpeg is None:
            _write_gif(path, frames, fps)
        else:
            _write_mp4(ffmpeg, path, frames, fps)
    return episode.reward


def _frames(player: Player, environment: Any, episode: Episode, max_steps: int | None) -> Iterator[np.ndarray]:
    """Play the episode and yield its frames."""
    player.actor.mark_stale()
    player.begin(episode, environment)
    yield _frame(environment)
    over = False
    while not over and episode.length != max_steps:
        over = player.play_step(episode, environment, *player.act([episode.observation]))
        yield _frame(environment)


def _frame(environment: Any) -> np.ndarray:
    frame = environment.render()
    if not isinstance(frame, np.ndarray) or frame.ndim != 3:
        raise ValueError("env: the environment renders no frames; it must support render_mode='rgb_array'")
    return np.ascontiguousarray(frame[..., :3], np.uint8)


def _write_gif(path: Path, frames: Iterator[np.ndarray], fps: int) -> None:
    from PIL import Image

    images = map(Image.fromarray, frames)
    # GIF durations are multiples of 10 ms; browsers slow down anything below 20 ms.
    duration = max(20, round(1000 / fps))
    with replacing(path) as file:
        next(images).save(file, "GIF", save_all=True, append_images=images, duration=duration, loop=0, optimize=True)


def _find_ffmpeg() -> str:
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise ImportError('writing .mp4 needs an extra: pip install "noterl[mp4]"; a .gif needs none') from error
    return str(imageio_ffmpeg.get_ffmpeg_exe())


def _write_mp4(ffmpeg: str, path: Path, frames: Iterator[np.ndarray], fps: int) -> None:
    # ffmpeg writes a temporary file, which replaces an older file at `path` only when it is complete.
    with tempfile.TemporaryDirectory() as directory, replacing(path) as target:
        made = Path(directory, "animation.mp4")
        _encode(ffmpeg, made, frames, fps)
        with open(made, "rb") as file:
            shutil.copyfileobj(file, target)


def _encode(program: str, made: Path, frames: Iterator[np.ndarray], fps: int) -> None:
    """Encode the frames with ffmpeg.

    imageio_ffmpeg's own function is not used, because it forks, which is unsafe while threads of a framework run.
    """
    first = next(frames)
    size = f"{first.shape[1]}x{first.shape[0]}"
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", size, "-r", str(fps), "-i", "-"]
    # H.264 needs even sizes, and most players need this pixel format.
    result = ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-c:v", "libx264", "-pix_fmt", "yuv420p", str(made)]
    command = [program, "-y", "-loglevel", "error", *source, *result]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output)
        try:
            with process.stdin as pipe:  # type: ignore[union-attr]
                for frame in itertools.chain([first], frames):
                    pipe.write(frame.data)
        except BrokenPipeError:
            pass  # ffmpeg's own message explains more
        finally:
            process.wait()
        if process.returncode:
            output.seek(0)
            raise OSError(f"ffmpeg failed: {output.read().decode(errors='replace')[-1000:]}")
