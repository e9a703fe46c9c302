"""Playing one episode and writing it as a picture that moves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from noterl import envs, saving
from noterl.agent_setup import check_positive
from noterl.random import Generators

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
    path = Path(path)
    if path.suffix not in (".gif", ".mp4"):
        raise ValueError(f"path must end in .gif or .mp4, got {str(path)!r}")
    check_positive("fps", fps)
    if max_steps is not None:
        check_positive("max_steps", max_steps)
    saving.check_writable(path)
    write = _write_gif if path.suffix == ".gif" else _mp4_writer()
    agent._ensure_compiled()
    agent.build()
    source = agent.source if env is None else envs.resolve(env)
    environment = source.make_evaluation(render_mode="rgb_array")
    try:
        frames, reward = _play(agent, environment, max_steps, agent.generators.seed if seed is None else seed)
    finally:
        environment.close()
    write(path, frames, fps)
    return reward


def _play(agent: Agent, environment: Any, max_steps: int | None, seed: int) -> tuple[list[np.ndarray], float]:
    agent.mark_stale()
    observation, _ = environment.reset(seed=int(Generators(seed)("animation").integers(2**31)))
    frames, reward = [_frame(environment)], 0.0
    while max_steps is None or len(frames) <= max_steps:
        action = agent.act_on(np.asarray(observation)[None], True, agent.policy, agent.steps)[0]
        observation, gained, terminated, truncated, _ = environment.step(
            action.item() if np.ndim(action) == 0 else action
        )
        reward += float(gained)
        frames.append(_frame(environment))
        if terminated or truncated:
            break
    return frames, reward


def _frame(environment: Any) -> np.ndarray:
    frame = environment.render()
    if not isinstance(frame, np.ndarray) or frame.ndim != 3:
        raise ValueError("env: the environment renders no frames; it must support render_mode='rgb_array'")
    return np.ascontiguousarray(frame[..., :3], np.uint8)


def _write_gif(path: Path, frames: list[np.ndarray], fps: int) -> None:
    from PIL import Image

    first, *rest = (Image.fromarray(frame) for frame in frames)
    # GIF counts in hundredths of a second; browsers slow anything below two of them down.
    duration = max(20, round(1000 / fps))
    first.save(path, save_all=True, append_images=rest, duration=duration, loop=0, optimize=True)


def _mp4_writer() -> Any:
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise ImportError('writing .mp4 needs an extra: pip install "noterl[mp4]"; a .gif needs none') from error

    def write(path: Path, frames: list[np.ndarray], fps: int) -> None:
        height, width = frames[0].shape[:2]
        writer = imageio_ffmpeg.write_frames(
            str(path), (width, height), fps=fps, macro_block_size=2, ffmpeg_log_level="error"
        )
        writer.send(None)
        for frame in frames:
            writer.send(frame)
        writer.close()

    return write
