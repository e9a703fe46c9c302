"""A callback that writes an animation at the end of training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from noterl import saving
from noterl.callback import Callback
from noterl.random import check_seed
from noterl.training.play import animation_path
from noterl.types import Logs
from noterl.utils.checks import check_bool, check_positive


class Animate(Callback):
    """Play an episode after training and write an animation, unless training failed.

    An animation that exists is kept if the `fit` takes no step, because `BackupAndRestore` has then found a complete
    run.

    Args:
        path: path of a `.gif` file, or of a `.mp4` file, which needs the extra `mp4`.
        env: environment to play in, as in `Agent.evaluate`, with the render mode "rgb_array".
        max_steps: the episode is cut off after this number of steps; None for no limit.
        fps: frames per second.
        seed: seed of the environment; by default the agent's seed.
        overlay: whether frames show the step, the return so far, and the agent's estimate of the value.

    Raises:
        ValueError: if an argument is not one of the allowed values; when training has ended, if the environment renders
            no frames.
        ImportError: when training has ended, if `path` ends in `.mp4` and the extra `mp4` is not installed.
        OSError: when training begins, if the file cannot be written.

    Attributes:
        reward: the total reward of the last episode that was played; None before the first.

    Example:
    >>> import os, noterl
    >>> from noterl.callbacks import Animate
    >>> agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    >>> history = agent.fit(episodes=2, callbacks=[Animate("learned.gif", max_steps=3)], verbose=0)
    >>> os.path.exists("learned.gif")
    True
    """

    def __init__(
        self,
        path: str | Path,
        env: Any = None,
        max_steps: int | None = None,
        fps: int = 30,
        *,
        seed: int | None = None,
        overlay: bool = False,
    ) -> None:
        self.path: Path = animation_path("path", path)
        self.env: Any = env
        self.max_steps: Any = check_positive("max_steps", max_steps, none=True)
        self.fps: int = check_positive("fps", fps)
        check_seed(seed)
        self.seed: int | None = seed
        self.overlay: bool = check_bool("overlay", overlay)
        self.reward: float | None = None
        self._failed = False
        self._first_step = 0

    def on_train_begin(self, logs: Logs) -> None:
        """Check that the file can be written."""
        self._failed = False
        self._first_step = self.agent.log_step
        saving.check_writable(self.path)

    def on_exception(self, error: BaseException) -> None:
        """Skip the animation."""
        self._failed = True

    def on_train_end(self, logs: Logs) -> None:
        """Play an episode and write the animation, unless training failed or the animation of this agent exists."""
        # A fit without steps repeats a complete run, whose animation need not be written again.
        if not self._failed and not (self.agent.log_step == self._first_step and self.path.exists()):
            self.reward = self.agent.animate(
                self.path, self.env, self.max_steps, self.fps, seed=self.seed, overlay=self.overlay
            )
